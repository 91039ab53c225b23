#!/usr/bin/python3
"""The Python package against a real daemon. Without numpy the tests that need it are skipped."""

import array
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import ruccl
from ruccl._library import lib
from ruccl.dtypes import numpy

import python_jobs as jobs
import python_ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUMMED = "f32 f64 f16 i8 i16 i32 i64 u8 u16 u32 u64".split()


def setUpModule():
    global daemon, ranks
    daemon = python_ranks.Daemon()
    ranks = python_ranks.Ranks(daemon.socket, 4)


def tearDownModule():
    ranks.close()
    assert daemon.stop() == 0, "the daemon did not end well"


@unittest.skipUnless(numpy, "numpy is missing")
class Collectives(unittest.TestCase):
    def all_ranks(self, world_size, function, *arguments, **join):
        """Runs it everywhere, and fails the test with the first error there was."""
        answers = ranks.run(world_size, function, *arguments, **join)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def test_reductions_match_numpy_in_tree_order(self):
        for dtype in SUMMED:
            for shared in (False, True):
                with self.subTest(dtype=dtype, shared=shared):
                    self.all_ranks(3, jobs.reduce_in_every_way, dtype, shared)
        for world_size in (1, 2, 4):
            with self.subTest(world_size=world_size):
                self.all_ranks(world_size, jobs.reduce_in_every_way, "f16", True)

    def test_moves_match_numpy(self):
        for dtype in ("f32", "i8", "bf16", "bool", "c128", "packed_u32", "f8e5m2fnuz"):
            for shared in (False, True):
                with self.subTest(dtype=dtype, shared=shared):
                    self.all_ranks(3, jobs.move_in_every_way, dtype, shared)
        for world_size in (1, 2, 4):
            with self.subTest(world_size=world_size):
                self.all_ranks(world_size, jobs.move_in_every_way, "i64", True)

    def test_rows_go_where_the_counts_say(self):
        for world_size in (1, 2, 3, 4):
            for shared in (False, True):
                with self.subTest(world_size=world_size, shared=shared):
                    self.all_ranks(world_size, jobs.exchange_rows, "i32", shared)

    def test_bf16_is_reduced_over_words(self):
        self.assertEqual(self.all_ranks(2, jobs.reduce_bf16), [[0x4000, 0xC080, 0x40C0]] * 2)

    def test_budgets_do_not_change_a_bit(self):
        results = {
            bits
            for budget in (None, 12, 13, 100, 4096, 1 << 20)
            for bits in self.all_ranks(3, jobs.reduce_under, budget)
        }
        self.assertEqual(len(results), 1)

    def test_sends_are_matched_by_source_and_tag(self):
        self.all_ranks(3, jobs.pass_around)

    def test_split_orders_by_key_and_leaves_out_no_color(self):
        self.assertEqual(
            self.all_ranks(4, jobs.split_in_two),
            [None, (1, 2, [3, 1]), (0, 1, [2]), (0, 2, [3, 1])],
        )

    def test_inputs_that_are_not_contiguous_are_packed(self):
        self.all_ranks(2, jobs.pack_inputs)

    def test_work_is_tested_waited_for_and_overlapped(self):
        self.assertEqual(self.all_ranks(3, jobs.lag_behind), [[6.0] * 3] * 3)

    def test_dropped_work_ends_all_the_same(self):
        self.assertEqual(self.all_ranks(2, jobs.drop_work), [[2.0] * 5] * 2)

    def test_a_large_blocking_call_takes_a_short_stage(self):
        for stage, right in ranks.run(2, jobs.largest_stage):
            self.assertTrue(right)
            self.assertLessEqual(stage, 4 << 20)

    def test_shared_arrays_leave_nothing_behind(self):
        self.assertEqual(self.all_ranks(2, jobs.count_mappings), [True] * 2)


@unittest.skipUnless(numpy, "numpy is missing")
class Failures(unittest.TestCase):
    def test_mismatch_is_the_same_error_on_every_rank_and_survivable(self):
        answers = ranks.run(3, jobs.disagree)
        self.assertEqual(len({error.text for error, _ in answers}), 1)
        for error, later in answers:
            self.assertIsInstance(error, ruccl.Mismatch)
            self.assertIn(1, error.ranks)
            self.assertEqual(later, 3)

    def test_a_refusal_by_the_package_reaches_every_rank_at_once(self):
        for way in ("not contiguous", "read-only", "no such op", "no array", "no argument"):
            with self.subTest(way):
                answers = ranks.run(3, jobs.refuse_at_rank_1, way)
                for rank, (error, later) in enumerate(answers):
                    self.assertIsInstance(error, (ruccl.Rejected, TypeError))
                    if rank != 1:
                        self.assertEqual(error.ranks, (1,), error)
                    self.assertEqual(later, 3)

    def test_bad_arguments_have_their_code_on_every_rank(self):
        for way, code, kind in (
            ("budget", ruccl.Code.BUDGET_TOO_SMALL, ruccl.BudgetTooSmall),
            ("root", ruccl.Code.INVALID_ROOT, ruccl.Rejected),
            ("op", ruccl.Code.INVALID_OPERATION, ruccl.Rejected),
            ("dtype", ruccl.Code.UNSUPPORTED_DTYPE, ruccl.Rejected),
            ("shape", ruccl.Code.INVALID_SHAPE, ruccl.Rejected),
            ("scalar", ruccl.Code.INVALID_SHAPE, ruccl.Rejected),
            ("capacity", ruccl.Code.CAPACITY, ruccl.CapacityTooSmall),
            ("counts", ruccl.Code.UNEXPECTED_COUNTS, ruccl.Rejected),
        ):
            with self.subTest(way):
                for error, later in ranks.run(3, jobs.fail_everywhere, way):
                    self.assertEqual(error.code, code, error)
                    self.assertIs(type(error), kind)
                    self.assertEqual(later, 3)

    def test_a_killed_rank_is_named_to_the_others_at_once(self):
        for function in (jobs.die, jobs.die_late):
            doomed = python_ranks.Ranks(daemon.socket, 3)
            self.addCleanup(doomed.close)
            first, second, third = doomed.run(3, function)
            self.assertIsNone(third)
            for answer in (first, second):
                if function is jobs.die_late:
                    answer, again, seconds = answer
                    self.assertLess(seconds, 5)
                    self.assertEqual(again.text, answer.text)
                self.assertIsInstance(answer, ruccl.RankLost)
                self.assertEqual(answer.ranks, (2,))

    def test_leaving_early_fails_the_others(self):
        first, second, third = ranks.run(3, jobs.leave_early)
        self.assertIsNone(second)
        for error in (first, third):
            self.assertIsInstance(error, ruccl.RankLeft)
            self.assertEqual(error.ranks, (1,))

    def test_an_exception_in_a_with_block_aborts_for_all(self):
        first, second, third = ranks.run(3, jobs.abort_by_exception)
        self.assertIsNone(second)
        for error in (first, third):
            self.assertIsInstance(error, ruccl.Aborted)
            self.assertIn("no such parameter", error.text)

    def test_a_timeout_names_who_is_missing(self):
        with tempfile.TemporaryDirectory() as directory:
            first, second, third = ranks.run(3, jobs.stay_away, directory, timeout=2)
        self.assertIsNone(second)
        for error in (first, third):
            self.assertIsInstance(error, ruccl.Timeout)
            self.assertIn("rank 1", error.text)

    def test_control_c_ends_a_wait(self):
        self.assertEqual(ranks.run(2, jobs.press_control_c), [True, True])

    def test_control_c_in_a_large_call_does_not_keep_the_others(self):
        self.assertEqual(ranks.run(2, jobs.interrupt_a_large_call), [True, True])

    def test_control_c_in_a_large_call_ends_with_the_connection(self):
        with ruccl.connect(daemon.socket) as connection:
            id = connection.new_id()
        job = jobs.interrupt_a_large_call_and_close
        self.assertEqual(ranks.run(2, job, daemon.socket, id), [True, True])

    def test_a_handler_may_call_in_the_middle_of_a_large_call(self):
        self.assertEqual(ranks.run(2, jobs.call_from_a_handler), [True, True])

    def test_after_fork_the_child_is_refused_and_the_parent_goes_on(self):
        self.assertEqual(ranks.run(2, jobs.fork_and_carry_on), [0, 0])


class OneProcess(unittest.TestCase):
    """Needs no numpy: arrays are whatever has a buffer."""

    def setUp(self):
        self.connection = ruccl.connect(daemon.socket)
        self.addCleanup(self.connection.close)

    def join(self, world_size, connection=None):
        connection = connection or self.connection
        id = connection.new_id()
        works = [connection.join_async(id, rank, world_size) for rank in range(world_size)]
        return [work.wait(30) for work in works]

    def test_two_ranks_share_a_connection(self):
        first, second = self.join(2)
        self.assertEqual((first.rank, second.rank, first.world_size), (0, 1, 2))
        self.assertEqual(first.id, second.id)
        mine, other = array.array("i", [1, 2, 3]), array.array("i", [10, 20, 30])
        works = [first.all_reduce_async(mine), second.all_reduce_async(other)]
        self.assertEqual([list(work.wait(30)) for work in works], [[11, 22, 33]] * 2)
        second.leave()
        second.leave()
        with self.assertRaises(ruccl.Closed):
            second.barrier()
        with self.assertRaises(ruccl.RankLeft):
            first.barrier()

    def test_buffers_of_every_kind_are_arrays(self):
        (comm,) = self.join(1)
        self.assertEqual(comm.all_gather(array.array("d", [1.5, 2])).tolist(), [1.5, 2.0])
        self.assertEqual(bytes(comm.all_gather(b"read-only")), b"read-only")
        shaped = memoryview(bytearray(range(24))).cast("i", (3, 2))
        out, counts = comm.all_to_all_v(shaped[::-1], [3], capacity=4)
        self.assertEqual((out.tolist(), counts), (shaped.tolist()[::-1], [3]))
        floats = bytearray(array.array("f", [1, 2, 3]).tobytes())
        self.assertIs(comm.all_reduce(floats, dtype="f32", op="mean"), floats)
        self.assertEqual(comm.all_gather(floats, dtype="f32").tolist(), [1, 2, 3])
        with self.assertRaises(ruccl.Rejected):
            comm.all_reduce(bytearray(5), dtype="f32")
        with self.assertRaises(ruccl.Rejected):
            comm.all_reduce(b"abcd")
        with self.assertRaises(TypeError):
            comm.all_reduce([1, 2])

    def test_shared_arrays_are_recognised_by_address(self):
        shared = memoryview(self.connection.empty((4, 8), "f32"))
        find = self.connection._regions.find
        address = ruccl.communicator.tensors.write(shared).address
        handle, offset = find(address, 128)
        self.assertEqual(offset, 0)
        self.assertEqual(find(address + 32, 96), (handle, 32))
        self.assertIsNone(find(address - 4, 8))
        self.assertIsNone(find(address, 1 << 20))

    def test_arrays_outlive_their_connection(self):
        shared = self.connection.empty(3, "i64")
        shared[1] = 5
        self.connection.close()
        self.connection.close()
        self.assertEqual(shared.tolist(), [0, 5, 0])
        for call in (self.connection.new_id, lambda: self.connection.empty(1)):
            with self.assertRaises(ruccl.Closed):
                call()

    def test_a_closed_connection_ends_waits_in_other_threads(self):
        first, second = self.join(2)
        work = first.barrier_async()
        threading.Timer(0.2, self.connection.close).start()
        with self.assertRaises(ruccl.Closed):
            work.wait(30)
        with self.assertRaises(ruccl.Closed):
            work.test()

    def test_threads_call_at_the_same_time(self):
        comms = self.join(4)
        results = [None] * 4

        def run(comm):
            total = array.array("q", [comm.rank])
            for _ in range(200):
                comm.all_reduce(total)
                total[0] //= 2
            results[comm.rank] = total[0]

        threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(len(set(results)), 1, results)
        self.assertIsNotNone(results[0])

    def test_failed_joins_are_named(self):
        with self.assertRaises(ruccl.Error) as caught:
            self.connection.join("rc1-aaaaaaaaaaaaaaaaaaaaaaaaaa@nowhere", 0, 1)
        self.assertEqual(caught.exception.code, ruccl.Code.NOT_FOUND)
        id = self.connection.new_id()
        with self.assertRaises(ruccl.Timeout) as caught:
            self.connection.join(id, 0, 2, timeout=0.2)
        self.assertIn("1", caught.exception.text)
        self.connection.drop_id(self.connection.new_id())
        for bad in ({"timeout": 0}, {"timeout": -1}):
            with self.assertRaises(ruccl.Rejected):
                self.connection.join(id, 0, 1, **bad)

    def test_the_death_of_the_daemon_is_told(self):
        other = python_ranks.Daemon()
        connection = ruccl.connect(other.socket)
        first, second = self.join(2, connection)
        work = first.barrier_async()
        other.kill()
        with self.assertRaises(ruccl.DaemonLost):
            work.wait(10)
        with self.assertRaises(ruccl.DaemonLost):
            second.barrier()
        connection.close()

    def test_a_loop_of_ones_own_is_woken(self):
        import select

        first, second = self.join(2)
        works = [first.barrier_async(), second.barrier_async()]
        deadline = time.monotonic() + 10
        while not all(work.test() for work in works):
            readable, _, _ = select.select([self.connection], [], [], 5)
            self.connection.dispatch()
            self.assertTrue(readable and time.monotonic() < deadline)

    def test_without_numpy_arrays_are_memoryviews(self):
        script = """if True:
            import sys
            sys.modules["numpy"] = None
            import ruccl
            with ruccl.connect(sys.argv[1]) as connection:
                with connection.join(connection.new_id(), 0, 1) as comm:
                    shared = connection.empty((2, 3), "f32")
                    shared[1, 2] = 7
                    assert comm.all_reduce(shared) is shared
                    gathered = comm.all_gather(shared)
                    assert type(gathered) is memoryview, gathered
                    assert gathered.tolist() == [[0, 0, 0], [0, 0, 7]]
                    assert connection.empty(3, "bf16").format == "H"
                    assert connection.empty(0).tolist() == []
        """
        subprocess.run([sys.executable, "-c", script, daemon.socket], check=True, timeout=60)


class Declarations(unittest.TestCase):
    """The package repeats ruccl.h: here the two are compared."""

    header = re.sub(r"/\*.*?\*/", "", (ROOT / "client/ruccl.h").read_text(), flags=re.DOTALL)

    def enum(self, name):
        body = re.search(rf"enum {name} {{(.*?)}}", self.header, re.DOTALL).group(1)
        return {name: int(number) for name, number in re.findall(r"RUCCL_(\w+) = (\d+)", body)}

    def test_another_library_is_told_by_name(self):
        other = subprocess.run(
            [sys.executable, "-c", "import ruccl"], capture_output=True, text=True,
            env=os.environ | {"RUCCL_LIBRARY": "libc.so.6"},
        )  # fmt: skip
        self.assertIn("ImportError: libc.so.6 is not the ruCCL library", other.stderr)

    def test_numbers_are_those_of_the_header(self):
        codes = {"OK": 0, **{code.name: code.value for code in ruccl.Code}}
        self.assertEqual(codes, self.enum("ruccl_code"))
        self.assertEqual({op.name: op.value for op in ruccl.Op}, self.enum("ruccl_op"))
        dtypes = {dtype.name.upper(): dtype.value for dtype in ruccl.DType}
        self.assertEqual(dtypes, self.enum("ruccl_dtype"))

    def test_names_and_widths_are_those_of_the_library(self):
        lib.ruccl_dtype_name.restype = ruccl._library.c_char_p
        for dtype in ruccl.DType:
            self.assertEqual(lib.ruccl_dtype_name(dtype).decode(), dtype.name)
            self.assertEqual(lib.ruccl_dtype_bytes(dtype), dtype.width)

    def test_every_function_of_the_package_is_in_the_header(self):
        for name in ruccl._library._FUNCTIONS:
            self.assertRegex(self.header, rf"\b{name}\(")


if __name__ == "__main__":
    unittest.main(verbosity=2)
