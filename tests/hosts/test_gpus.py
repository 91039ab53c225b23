#!/usr/bin/python3
"""Across hosts, tensors in memory of GPUs give the bits that they give in memory of the host, within
the same budgets; and who is left is told when a daemon dies."""

import os
import time
import unittest.mock

import test_exact
import world

# By rank, its host; and its GPU, or - for memory of the host.
PLACEMENTS = (
    ("01", "00"),
    ("01", "0-"),
    ("01", "-1"),
    ("0011", "0101"),
    ("0011", "01-0"),
    ("10", "11"),
    ("0101", "0-1-"),
    ("00011", "0010-"),
    ("012", "010"),
    ("000111222", "01-10-0-1"),
    ("2101", "-0-1"),
)
COUNTS = ((1009, 1), (45, 3), (0, 1))  # elements, and those of a row
BUDGETS = ("none", "odd", "medium")


def calls(kind, nranks, first):
    """Types with operators, a few for every placement; the next has others."""
    types = test_exact.element_types(kind)
    for n in range(6):
        dtype, op = types[(7 * first + 11 * n) % len(types)]
        count, row = COUNTS[n % len(COUNTS)]
        yield {
            "dtype": dtype, "op": op, "count": count, "row": row, "seed": n + 1,
            "root": (n + first) % nranks, "shift": n % 4, "plain": n == 5,
            "in_place": kind in world.IN_PLACE and n % 2 == 0,
            **test_exact.budget_of(BUDGETS[(n + first) % 3], kind, dtype, count, row, nranks),
        }  # fmt: skip


class GPUTest(world.WorldTest):
    def group(self, w, placement, gpus, **how):
        group = w.group(placement, gpus=gpus, **how)
        self.addCleanup(group.close)
        return group

    def expect_gpus(self, w, **numbers):
        """What the daemons say of their GPUs, all together."""
        for number in range(len(w.daemons)):
            found = w.status(number)["gpus"]
            self.assertEqual(len(found), 2)
            for key, value in numbers.items():
                self.assertEqual(sum(gpu[key] for gpu in found), value, found)


class Exact(GPUTest):
    @classmethod
    def setUpClass(cls):
        cls.world = world.World(3)
        cls.addClassCleanup(cls.world.close)

    def setUp(self):
        self.watch(self.world)

    def test_every_collective_wherever_tensors_are(self):
        for first, (placement, gpus) in enumerate(PLACEMENTS):
            group = self.group(self.world, placement, gpus)
            for kind in world.KINDS:
                with self.subTest(placement=placement, gpus=gpus, kind=kind):
                    for words in calls(kind, len(group), first):
                        narrow = world.may_need_more(kind, words["dtype"], words["op"])
                        (group.exact_or_least if narrow else group.exact)(kind, **words)
            group.ok("barrier")
            group.leave()
            group.close()
        self.world.expect_nothing_left()
        self.expect_gpus(self.world, mappings=0, mapped_bytes=0, failures=0)

    def test_every_algorithm_gives_the_same_bits(self):
        for kind, names in test_exact.ALGORITHMS.items():
            op = "sum" if kind in world.REDUCTIONS else None
            for name in names:
                group = self.group(self.world, "0012", "01-1", algorithm=name)
                with self.subTest(kind=kind, algorithm=name):
                    for budget in ({}, {"budget": 4096}):
                        answers = group.exact_or_least(
                            kind, dtype="f32", op=op, count=5003, root=1, **budget
                        )
                        self.assertEqual({answer.algorithm for answer in answers}, {name})
                group.leave()
                group.close()

    def test_large_tensors(self):
        group = self.group(self.world, "0011", "01-0")
        for budget in ({}, {"budget": 1 << 20}, {"budget": 99991}):
            group.exact("all_reduce", count=500_003, op="mean", **budget)
            group.exact("all_to_all", count=100_007, **budget)
            group.exact("send_recv", count=500_003, **budget)
        group.leave()

    def test_calls_in_a_row_and_persistent_ones(self):
        group = self.group(self.world, "0101", "01-1")
        for kind in world.KINDS:
            group.exact(kind, count=1009, times=10)
            if kind not in (*world.EXCHANGES, "send_recv"):
                group.exact(kind, count=1009, times=10, persistent=True)
        group.leave()


class Lost(GPUTest):
    """A daemon, or a GPU, of host 2."""

    def test_a_daemon_killed_in_operations(self):
        w = self.make_world(
            3, peer_timeout=f"{world.PEER_TIMEOUT}s", connect_timeout=f"{world.CONNECT_TIMEOUT}s"
        )
        w.link_all()
        group = self.group(w, "00112", "010-1")
        group.exact("all_reduce", count=100_003)
        group.tell("all_reduce", count=100_003, times=300)
        time.sleep(0.1)  # some are done by then, or none: it makes no difference
        w.daemons[1].kill()
        began = time.monotonic()
        for number in (0, 1, 4):
            answer = group.ranks[number].answer()
            self.assertEqual((answer.code, answer.ranks), ("rank-lost", [2, 3]), answer)
            self.assertIn(w.hosts[1].name, answer.text)
            self.assertLess(answer.at - began, world.PEER_TIMEOUT + world.SOON)
        for number in (2, 3):
            self.assertEqual(group.ranks[number].answer().code, "daemon-lost")
        group.close()
        w.daemons[1].start()
        world.wait_until("the host is back", lambda: self.works_again(w))
        w.expect_nothing_left()
        self.expect_gpus(w, mappings=0, mapped_bytes=0, failures=0)
        w.expect_good_end()

    def test_a_gpu_that_fails_is_named_on_all_hosts(self):
        w = self.make_world(2, daemons=1)
        with unittest.mock.patch.dict(os.environ, FAKE_CUDA_FAIL="kernel:4:700"):
            w.add_daemon(1)
        name = w.status(1)["gpus"][1]["uuid"]
        group = self.group(w, "0011", "0-11")
        for _ in range(10):
            answers = group.run("all_reduce", count=100_003)
            if answers[0].kind != "ok":
                break
        for answer in answers:
            self.assertEqual(answer.code, "system-error", answer)
            self.assertIn(f"{name} failed with CUDA_ERROR_ILLEGAL_ADDRESS", answer.text)
        self.assertEqual(len({answer.text for answer in answers}), 1, answers)
        group.close()
        self.assertTrue(self.works_on(w, "0011", "0-11"))
        w.expect_nothing_left()
        self.assertEqual([gpu["failures"] for gpu in w.status(1)["gpus"]], [0, 1])
        w.expect_good_end()

    def works_again(self, w):
        return self.works_on(w, "0112", "01-0")

    def works_on(self, w, placement, gpus):
        group = self.group(w, placement, gpus, timeout=world.CONNECT_TIMEOUT)
        try:
            group.exact("all_reduce", count=100_003, op="mean")
            group.leave()
        except AssertionError:
            return False
        finally:
            group.close()
        return True


if __name__ == "__main__":
    world.main()
