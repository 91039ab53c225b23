#!/usr/bin/python3
"""What is said about the programs is what they do: options, flags, examples."""

import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from tree import EXAMPLE, LIBRUCCL, RUCCL_PERF, RUCCLCTL, RUCCLD, SOURCE, Daemon, environment, run

MANUALS = SOURCE / "deploy/man"
PROGRAMS = {"ruccld.8": RUCCLD, "rucclctl.1": RUCCLCTL, "ruccl-perf.1": RUCCL_PERF}


def manual(name):
    return (MANUALS / name).read_text()


def literals(text):
    """The .Bd -literal displays of a page, as they are printed."""
    for display in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed$", text, re.DOTALL | re.MULTILINE):
        yield display.replace(r"\&", "").replace(r"\e", "\\")


def section(text, title):
    return re.search(rf"^\.Sh {title}$(.*?)^\.Sh ", text, re.DOTALL | re.MULTILINE)[1]


class Configuration(unittest.TestCase):
    """The table in the daemon, the example file and the manual page."""

    def setUp(self):
        self.printed = run(RUCCLD, "--print-config")

    def test_example_file_is_what_the_daemon_prints(self):
        self.assertEqual((SOURCE / "deploy/ruccld.conf").read_text(), self.printed)

    def test_manual_has_the_same_keys_in_the_same_order(self):
        wanted = re.findall(r"^(?:#(?=\w+ =))?(\[\w+\]|\w+(?= =))", self.printed, re.MULTILINE)
        found = re.findall(
            r"^\.(?:Ss|It Cm) (\[\w+\]|\w+)$", manual("ruccld.conf.5"), re.MULTILINE
        )
        self.assertGreater(len(wanted), 15)
        self.assertEqual(found, wanted)

    def test_manual_has_the_same_defaults_and_reloads(self):
        keys = re.split(r"^\.It Cm ", section(manual("ruccld.conf.5"), "DESCRIPTION"), flags=re.M)
        said = {key.partition("\n")[0]: key for key in keys[1:]}
        for comment, key, value in re.findall(
            r"((?:^# .*\n)+)^#(\w+) =\s?(.*)$", self.printed, re.MULTILINE
        ):
            default = rf"Default: {re.escape(value)}[.,]" if value else "Empty, the default:"
            self.assertRegex(said[key], default, key)
            self.assertEqual("\nReload." in said[key], "Follows a reload" in comment, key)

    def test_example_file_is_taken_with_every_key_in_force(self):
        with Daemon() as daemon:
            path = daemon.dir / "ruccld.conf"
            path.write_text(re.sub(r"^#(?=\w+ =)", "", self.printed, flags=re.MULTILINE))
            with Daemon(RUCCLD, "--config", path):
                pass


class Tuning(unittest.TestCase):
    """The example file, the manual page, and what rucclctl takes."""

    FILE = SOURCE / "deploy/tuning.conf"
    KEY = re.compile(r"^#?(\w+) = (.*)$", re.MULTILINE)

    def plan(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(text)
            file.flush()
            return run(RUCCLCTL, "plan", "--collective", "all_reduce", "--tuning", file.name)

    def test_example_file_says_the_defaults(self):
        bare = re.sub(r"^#(?=\w+ =)", "", self.FILE.read_text().partition("#[")[0], flags=re.M)
        self.assertEqual(self.plan(bare), self.plan(""))

    def test_example_file_is_taken_with_every_key_in_force(self):
        bare = re.sub(r"^#(?=\[|\w+ =)", "", self.FILE.read_text(), flags=re.MULTILINE)
        self.assertIn("one piece on node 0", self.plan(bare))

    def test_manual_has_the_same_keys_and_defaults(self):
        said = dict(
            re.findall(r"^\.It Cm (\w+)\n(?:.*\n)*?(?:Default: |of\n.*\n)(\w.*)[.]$",
                       manual("ruccl-tuning.5"), re.MULTILINE)
        )  # fmt: skip
        keys = dict(self.KEY.findall(self.FILE.read_text().partition("#[")[0]))
        self.assertEqual(len(keys), 6)
        self.assertEqual(said, keys)

    def test_of_the_manual_is_taken(self):
        example = next(literals(section(manual("ruccl-tuning.5"), "EXAMPLES")))
        self.assertIn("latency 2.5 us, its posting 0.8 us", self.plan(example))


class Defaults(unittest.TestCase):
    """Of rucclctl plan: what --help says, what the manual says, and what is done."""

    def setUp(self):
        helped = run(RUCCLCTL, "--help")
        self.said = re.findall(r"^  --([a-z-]+) .*\((\w+)\)$", helped, re.MULTILINE)
        self.assertGreaterEqual(len(self.said), 10)

    def test_are_those_of_the_manual(self):
        page = manual("rucclctl.1")
        entries = re.findall(r"^\.It Fl -([a-z-]+) Ar .*\n((?:(?!\.It|\.El).*\n)*)", page, re.M)
        found = [
            (flag, default[1])
            for flag, text in entries
            if (default := re.search(r"^Default:\s(?:\.Cm )?(\w+) ?\.$", text, re.MULTILINE))
        ]
        self.assertEqual(found, self.said)

    def test_are_used(self):
        plan = (RUCCLCTL, "plan", "--collective", "all_reduce")
        words = [word for flag, value in self.said for word in ("--" + flag, value)]
        self.assertEqual(run(*plan, *words), run(*plan))


class Failures(unittest.TestCase):
    """Of ruccl-perf: the cause in one line, and no head of a table that does not come."""

    def fails(self, *words, **variables):
        done = subprocess.run(
            [RUCCL_PERF, *words], capture_output=True, text=True, env=environment(**variables)
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        return lines[0]

    def test_without_a_daemon_are_told_at_once(self):
        for command in "all_reduce", "attach", "scale":
            with self.subTest(command):
                self.assertIn("connecting", self.fails(command, "--socket", "/nonexist/s"))

    def test_of_a_small_budget_are_told_at_once(self):
        line = self.fails("all_reduce", "--budget", "1", RUCCLD=RUCCLD)
        self.assertIn("budget too small", line)

    def test_of_a_missing_program_name_it(self):
        self.assertRegex(
            self.fails("all_reduce", RUCCLD="/nonexist"),
            "^ruccl-perf: cannot run /nonexist: No such file or directory; name the program",
        )


class Flags(unittest.TestCase):
    def test_of_the_manual_are_those_of_the_help(self):
        for page, program in PROGRAMS.items():
            with self.subTest(page):
                helped = set(re.findall(r"--([a-z][a-z-]+)", run(program, "--help")))
                described = set(re.findall(r"^\.It Fl -([a-z-]+)", manual(page), re.MULTILINE))
                self.assertEqual(described, helped | {"help"})

    def test_of_the_synopsis_are_described(self):
        for page in PROGRAMS:
            with self.subTest(page):
                used = set(re.findall(r"Fl -([a-z-]+)", section(manual(page), "SYNOPSIS")))
                described = set(re.findall(r"^\.It Fl -([a-z-]+)", manual(page), re.MULTILINE))
                self.assertLessEqual(used, described)


class Pages(unittest.TestCase):
    @unittest.skipUnless(shutil.which("man"), "no man here")
    def test_are_without_warnings(self):
        for page in sorted(MANUALS.iterdir()):
            with self.subTest(page.name):
                script = 'MANWIDTH=80 man --warnings -l "$1" 2>&1 >/dev/null'
                self.assertEqual(run("sh", "-c", script, "sh", page), "")

    def test_refer_to_pages_that_are_there(self):
        for page in sorted(MANUALS.iterdir()):
            for name, number in re.findall(r"^\.Xr (\S+) (\d)", page.read_text(), re.MULTILINE):
                self.assertTrue((MANUALS / f"{name}.{number}").is_file(), f"{page.name}: {name}")

    def test_example_of_the_library_is_the_program_that_is_built(self):
        program = (SOURCE / "deploy/examples/all_reduce.c").read_text()
        self.assertEqual(list(literals(manual("ruccl.3"))), [program])


class Examples(unittest.TestCase):
    """Each runs against a daemon of its own, and ends well."""

    PATH = ":".join(map(str, (RUCCLD.parent, RUCCLCTL.parent, RUCCL_PERF.parent, "/usr/bin:/bin")))

    def test_of_ruccl_perf_work(self):
        for example in literals(section(manual("ruccl-perf.1"), "EXAMPLES")):
            with self.subTest(example):
                command = shlex.split(example)
                if "--min-bytes" not in command:
                    command += ["--iters", "5"]
                run("env", f"PATH={self.PATH}", *command)

    def test_of_rucclctl_work(self):
        with Daemon() as daemon:
            for example in literals(section(manual("rucclctl.1"), "EXAMPLES")):
                with self.subTest(example):
                    env = daemon.environment(PATH=self.PATH)
                    run("sh", "-c", example.partition("|")[0], env=env)

    def test_of_ruccld_starts(self):
        words = shlex.split(next(literals(section(manual("ruccld.8"), "EXAMPLES"))))
        where = words.index("--socket")
        with Daemon(RUCCLD, *words[1:where], *words[where + 2 :]):
            pass

    def test_of_the_configuration_is_taken(self):
        text = next(literals(section(manual("ruccld.conf.5"), "EXAMPLES")))
        with Daemon() as daemon:
            path = daemon.dir / "ruccld.conf"
            path.write_text(text)
            with Daemon(RUCCLD, "--config", path):
                pass

    def test_in_c_and_python_add_up(self):
        with Daemon() as daemon:
            python = SOURCE / "deploy/examples/all_reduce.py"
            env = daemon.environment(
                RUCCL_LIBRARY=LIBRUCCL, PYTHONPATH=SOURCE / "client/python",
                PYTHONDONTWRITEBYTECODE=1,
            )  # fmt: skip
            for command in ((EXAMPLE,), (EXAMPLE, "1"), ("/usr/bin/python3", python, "3")):
                with self.subTest(command):
                    lines = sorted(run(*command, env=env).splitlines())
                    total = len(lines) * (len(lines) + 1) // 2
                    wanted = [f"rank {r} of {len(lines)}: {total}" for r in range(len(lines))]
                    self.assertEqual(lines, wanted)


if __name__ == "__main__":
    unittest.main()
