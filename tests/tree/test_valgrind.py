#!/usr/bin/python3
"""Under valgrind the daemon touches no memory it should not, and loses none.

Its clients are left to the sanitizers: Debian's valgrind knows no pidfd_open.
"""

import shutil
import subprocess
import sys
import time
import unittest

from tree import RUCCL_PERF, RUCCLD, SKIP, Daemon, environment, run

# The daemon would execute itself again to have these variables, and valgrind cannot follow there.
SETTLED = ("env", "UCX_MEM_EVENTS=n", "UCX_HANDLE_ERRORS=none", "UCX_MODULES=^ib,rdmacm,cma")
VALGRIND = (
    *SETTLED, "valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full",
    "--errors-for-leak-kinds=definite,possible", "--show-leak-kinds=definite,possible",
)  # fmt: skip
SHORT = ("--ranks", "3", "--min-bytes", "1K", "--max-bytes", "64K", "--step-factor", "8",
         "--iters", "3", "--warmup", "1", "--check")  # fmt: skip


class Daemons(unittest.TestCase):
    def setUp(self):
        daemon = Daemon(*VALGRIND, RUCCLD, "--workers", "2", start_seconds=120, stop_seconds=120)
        self.socket = self.enterContext(daemon).socket

    def measure(self, *arguments):
        run(RUCCL_PERF, *arguments, "--socket", self.socket, env=environment(), timeout=240)

    def test_memory_is_in_order_after_collectives(self):
        for collective in ("all_reduce", "reduce_scatter", "all_to_all_v", "sendrecv", "barrier"):
            self.measure(collective, *SHORT)

    def test_memory_is_in_order_after_chunks_and_copies(self):
        self.measure("all_reduce", *SHORT, "--budget", "4K", "--memory", "plain")

    def test_memory_is_in_order_after_errors(self):
        with self.assertRaisesRegex(AssertionError, "budget too small"):
            self.measure("all_reduce", *SHORT, "--budget", "4")

    def test_memory_is_in_order_after_a_death(self):
        ranks = subprocess.Popen(
            [RUCCL_PERF, "all_gather", "--iters", "100000", "--socket", self.socket],
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(2)
        self.assertIsNone(ranks.poll())
        ranks.kill()
        ranks.wait()
        self.measure("barrier", "--ranks", "2", "--iters", "3")


if __name__ == "__main__":
    if not shutil.which("valgrind"):
        print("no valgrind here")
        sys.exit(SKIP)
    unittest.main()
