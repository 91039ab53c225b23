#!/usr/bin/python3
"""What ptxas has said of the image: every kernel is in it for every GPU that it is for, none takes
more registers than a block can have, and what training waits for keeps everything in registers."""

import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
REPORT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
CODES = [code for code in sys.argv[2:] if code.startswith("sm_")]
REGISTERS_MAX = 65536 // 512  # of an SM, by the threads of a block
NEVER_SPILL = re.compile(r"copy|reduce_\w+_(f32|bf16|f16)")
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<code>sm_\d+)'\n"
    r".*Function properties for (?P=name)\n"
    r" *(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers"
)


def rows(header, macro):
    text = (SOURCE / "shared" / header).read_text()
    body = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", text).group(1)
    return [re.split(r", *", row) for row in re.findall(r"X\(([^)]*)\)", body)]


def expected():
    """By the tables that everything else is made from."""
    yield "copy"
    for dtype in rows("dtype.h", "DTYPE_LIST"):
        for operator in rows("collective.h", "OPERATOR_LIST"):
            bitwise = operator[0] in ("AND", "OR", "XOR")
            if dtype[4] == "OPAQUE" or operator[0] == "MEAN" or bitwise and dtype[4] == "FLOAT":
                continue
            yield f"reduce_{operator[1]}_{dtype[1]}"


class Kernels(unittest.TestCase):
    def setUp(self):
        self.kernels = [match.groupdict() for match in KERNEL.finditer(REPORT.read_text())]

    def test_all_are_there_for_every_gpu(self):
        names = list(expected())
        self.assertEqual(len(names), 1 + 6 * 4 + 8 * 7)
        self.assertTrue(CODES)
        self.assertCountEqual(
            [(kernel["name"], kernel["code"]) for kernel in self.kernels],
            [(name, code) for name in names for code in CODES],
        )

    def test_a_block_has_the_registers(self):
        for kernel in self.kernels:
            self.assertLessEqual(int(kernel["registers"]), REGISTERS_MAX, kernel)

    def test_what_is_to_be_fast_does_not_spill(self):
        seen = 0
        for kernel in self.kernels:
            if NEVER_SPILL.fullmatch(kernel["name"]):
                self.assertEqual((kernel["stores"], kernel["loads"]), ("0", "0"), kernel)
                seen += 1
        self.assertEqual(seen, (1 + 3 * 4) * len(CODES))


if __name__ == "__main__":
    if not REPORT:
        print("built without nvcc: there are no kernels")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
