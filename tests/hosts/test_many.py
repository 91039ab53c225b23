#!/usr/bin/python3
"""Many communicators over the same hosts at once: they share one connection between each two hosts,
and nothing else."""

import hosts
import world

PERSISTENT = tuple(k for k in world.KINDS if k not in (*world.EXCHANGES, "send_recv"))


class Many(world.WorldTest):
    @classmethod
    def setUpClass(cls):
        cls.world = world.World(3)
        cls.addClassCleanup(cls.world.close)

    def setUp(self):
        self.watch(self.world)

    def group(self, placement, **how):
        group = self.world.group(placement, **how)
        self.addCleanup(group.close)
        return group

    def tearDown(self):
        self.doCleanups()
        self.world.expect_nothing_left()

    def exact_together(self, calls):
        """Each group's own call, all under way before any is waited for."""
        for group, kind, words in calls:
            group.tell(kind, **words)
        for group, kind, words in calls:
            group.expect_exact(kind, **words)

    def connections(self, host):
        """Of daemons, as this host sees them: listening, and connected."""
        port = f"( sport = :{hosts.PORT} or dport = :{hosts.PORT} )"
        for state in ("listening", "established"):
            yield len(host.run("ss", "-Htn", "state", state, port).splitlines())

    def test_groups_compute_at_once(self):
        groups = [self.group(p) for p in ("0011", "1100", "012", "0112", "22", "20")]
        for turn in range(10):
            calls = []
            for number, group in enumerate(groups):
                kind = world.KINDS[(turn + number) % len(world.KINDS)]
                words = {"count": 10_007 + number, "seed": turn + 1, "budget": 1 << 12 + number}
                calls.append((group, kind, words))
            self.exact_together(calls)
        for group in groups:
            group.leave()

    def test_large_and_small_ones_get_on_beside_each_other(self):
        large, small = self.group("01"), self.group("01")
        large.tell("all_reduce", count=2_000_003, times=4)
        for _ in range(20):
            small.exact("all_reduce", count=9)
        large.expect_exact("all_reduce", count=2_000_003, times=4)
        large.leave()
        small.leave()

    def test_they_share_one_connection_and_one_listener(self):
        groups = [self.group(p) for p in ("012", "0011", "2100", "12", "10")]
        self.exact_together([(group, "all_reduce", {"count": 1009}) for group in groups])
        for number, host in enumerate(self.world.hosts):
            self.assertEqual(list(self.connections(host)), [1, 2])
            peers = self.world.status(number)["peers"]
            self.assertEqual([peer["state"] for peer in peers], ["up", "up"])
            others = {f"host{n + 1}" for n in range(3)} - {host.name}
            self.assertEqual({peer["host"] for peer in peers}, others)
        for group in groups:
            group.leave()

    def test_a_failed_one_is_nobody_elses(self):
        doomed, lucky = self.group("0012"), self.group("0012")
        self.assertEqual(doomed.ranks[3].ask(doomed.command("abort")).kind, "ok")
        for answer in doomed.run("all_reduce", count=9):
            self.assertEqual(answer.code, "aborted")
        lucky.exact("all_reduce", count=1009)
        lucky.leave()

    def test_ranks_may_have_several(self):
        first = self.group("0012")
        second = self.group([2, 1, 0, 0], ranks=first.ranks[::-1], name="d")
        third = self.group([0, 1], ranks=[first.ranks[1], first.ranks[2]], name="e")
        for turn in range(5):
            for group in (first, second, third):
                group.exact(world.KINDS[turn], count=1009, seed=turn + 1)
        for group in (third, second, first):
            group.leave()

    def test_ids_made_at_once_do_not_meet(self):
        """Both hosts make one, and dial each other."""
        for _ in range(5):
            groups = [world.Group(p, self.world.start_ranks(p), "c") for p in ([0, 1], [1, 0])]
            ids = [self.world.new_id(group.placement[0]) for group in groups]
            for group, id in zip(groups, ids):
                self.addCleanup(group.close)
                self.world.tell_join(group, id)
            for group in groups:
                group.expect_ok("join", group.answers())
            self.exact_together([(group, "all_reduce", {"count": 1009}) for group in groups])
            for group in groups:
                group.leave()
                group.close()

    def test_daemons_that_meet_for_the_first_time_dial_each_other_at_once(self):
        w = world.World(2)
        self.addCleanup(w.close)
        groups = [world.Group(p, w.start_ranks(p), "c") for p in ([0, 1], [1, 0])]
        for group in groups:
            self.addCleanup(group.close)
        ids = [w.new_id(group.placement[0]) for group in groups]
        for group, id in zip(groups, ids):
            w.tell_join(group, id)
        for group in groups:
            group.expect_ok("join", group.answers())
        self.exact_together([(group, "all_reduce", {"count": 1009}) for group in groups])
        self.assertEqual(list(self.connections(w.hosts[0])), [1, 1])
        for group in groups:
            group.leave()
            group.close()
        w.expect_nothing_left()
        w.expect_good_end()

    def test_splits_compute_among_their_own(self):
        group = self.group("001122")
        # even ranks in reverse, on all hosts; odd ones but the last; the last in none
        colors, keys = [0, 1, 0, 1, 0, -1], [5, 1, 4, 2, 3, 9]
        children = group.split(colors, keys, "d")
        self.assertEqual(children[0].placement, [2, 1, 0])
        self.assertEqual(children[1].placement, [0, 1])
        for kind in world.KINDS:
            self.exact_together([(child, kind, {"count": 1009}) for child in children.values()])
        group.exact("all_reduce", count=1009)
        grandchildren = children[0].split([1, 1, 2], [0, 0, 0], "e")
        self.assertEqual([len(child) for child in grandchildren.values()], [2, 1])
        self.exact_together([(c, "all_reduce", {"count": 77}) for c in grandchildren.values()])
        for child in (*grandchildren.values(), *children.values(), group):
            child.leave()

    def test_a_split_that_one_rank_does_not_call_is_a_mismatch(self):
        group = self.group("012")
        for number, rank in enumerate(group.ranks):
            split = group.command("split", into="d", color=0, key=0)
            rank.tell(split if number else group.command("all_reduce", count=9))
        answers = group.answers()
        self.assertEqual({answer.code for answer in answers}, {"mismatch"})
        self.assertEqual(len({answer.text for answer in answers}), 1)
        group.exact("all_reduce", count=9)
        group.leave()

    def test_persistent_operations(self):
        group = self.group("0012")
        for kind in PERSISTENT:
            for words in ({"count": 9}, {"count": 30_011}, {"count": 1009, "budget": 4096}):
                group.exact(kind, persistent=True, times=20, root=2, **words)
        group.leave()

    def test_persistent_operations_that_differ_are_refused(self):
        group = self.group("012")
        for number, rank in enumerate(group.ranks):
            rank.tell(group.command("all_reduce", count=9 + number // 2, persistent=True))
        answers = group.answers()
        self.assertEqual({answer.code for answer in answers}, {"mismatch"})
        group.exact("all_reduce", count=9, persistent=True, times=3)
        group.leave()

    def test_communicators_come_and_go(self):
        for turn in range(20):
            group = self.world.group("01")
            group.exact("all_reduce", count=1009, seed=turn + 1)
            group.leave()
            group.close()


if __name__ == "__main__":
    world.main()
