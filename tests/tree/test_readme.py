#!/usr/bin/python3
"""What the README shows is there: its programs, its files, its folders."""

import re
import unittest

from tree import SOURCE

TEXT = (SOURCE / "README.md").read_text()


def fences(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


class Readme(unittest.TestCase):
    def test_programs_are_those_that_are_built_and_run(self):
        for language, name in (("c", "all_reduce.c"), ("python", "all_reduce.py")):
            program = (SOURCE / "deploy/examples" / name).read_text()
            self.assertEqual(fences(language), [program], name)

    def test_files_it_names_are_there(self):
        named = re.findall(r"`((?:\.ci|client|daemon|deploy|proto|shared|tests)/[\w./-]*)", TEXT)
        self.assertGreater(len(named), 30)
        for name in named:
            self.assertTrue((SOURCE / name).exists(), name)


if __name__ == "__main__":
    unittest.main()
