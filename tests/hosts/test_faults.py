#!/usr/bin/python3
"""Daemons that die, stop, are cut off, have the wrong key or are no daemons: whoever is left is
told by name and in time, goes on with others, and holds nothing of it any more."""

import os
import signal
import time

import hosts
import proxy
import world

TOLD_SECONDS = world.PEER_TIMEOUT + world.SOON
HEAL_TRIES = 20
LARGE = 8_000_003  # elements of f32, at RATE a matter of many seconds
RATE = "50mbit"
UNDER_WAY_BYTES = 1 << 20
TRAVELLING = LARGE  # elements, of which some set out only once all agree


def received_bytes(host):
    return int(host.run("cat", "/sys/class/net/eth0/statistics/rx_bytes"))


class Kill:
    """The daemon dies; another is started."""

    ends_ranks = True  # those of its host

    def strike(self, daemon):
        daemon.kill()

    def undo(self, daemon):
        daemon.start()


class Stop:
    """The daemon stands still."""

    ends_ranks = False

    def strike(self, daemon):
        os.kill(daemon.process.pid, signal.SIGSTOP)

    def undo(self, daemon):
        os.kill(daemon.process.pid, signal.SIGCONT)


class Cut:
    """The host's cable is pulled."""

    ends_ranks = False

    def strike(self, daemon):
        daemon.host.cut()

    def undo(self, daemon):
        daemon.host.heal()


class FaultTest(world.WorldTest):
    def make_world(self, count, **how):
        limits = {
            "peer_timeout": f"{world.PEER_TIMEOUT}s",
            "connect_timeout": f"{world.CONNECT_TIMEOUT}s",
        }
        return super().make_world(count, **limits | how)

    def group(self, w, placement, **how):
        group = w.group(placement, **how)
        self.addCleanup(group.close)
        return group

    def expect_told(self, answer, host, ranks):
        """By name: the host, and each of its ranks."""
        self.assertEqual(answer.code, "rank-lost", answer)
        self.assertIn(host.name, answer.text)
        self.assertEqual(answer.ranks, ranks, answer)
        for rank in ranks:
            self.assertRegex(answer.text, rf"\b{rank}\b")

    def expect_at_work(self, w, placement, **join):
        """A new communicator, of new ranks, does what it should."""
        group = w.group(placement, **join)
        try:
            group.exact("all_reduce", count=100_003, op="mean")
            group.exact("all_to_all_v", count=1009)
            group.leave()
        finally:
            group.close()


class Lost(FaultTest):
    """Host 2 is lost to hosts 1 and 3. Ranks 0 and 1 are on host 1, 2 and 3 on host 2, 4 on host 3.
    Beside them a communicator of hosts 1 and 3 never notices."""

    PLACEMENT = "00112"
    LOST = [2, 3]
    SURVIVORS = [0, 1, 4]

    def lose(self, fault, enter):
        self.world = self.make_world(3)
        self.world.link_all()
        self.victim = self.world.daemons[1]
        self.bystanders = self.group(self.world, "02", name="b")

        ranks, later = enter()
        fault.strike(self.victim)
        for number in later:
            ranks[number].tell(f"all_reduce comm=c count={TRAVELLING}")
        began = time.monotonic()
        for number in self.SURVIVORS:
            answer = ranks[number].answer()
            self.expect_told(answer, self.victim.host, self.LOST)
            self.assertLess(answer.at - began, TOLD_SECONDS)
        self.bystanders.exact("all_reduce", count=1009)
        self.expect_at_work(self.world, "0220")

        fault.undo(self.victim)
        self.expect_others_told(fault, ranks)
        self.expect_as_before(ranks)

    # What ranks are in when it happens: returns them, and the numbers of those that call later.

    def at_rest(self):
        group = self.group(self.world, self.PLACEMENT)
        group.exact("all_reduce", count=1009)
        return group.ranks, range(5)

    def in_set_up(self):
        """All have joined but one, of a host that stays."""
        id = self.world.new_id(0)
        ranks = self.world.start_ranks(map(int, self.PLACEMENT))
        for number, rank in enumerate(ranks):
            self.addCleanup(rank.close)
            rank.tell(world.command("join", id=id, rank=number, nranks=6, comm="c"))
        self.expect_no_answer(ranks)
        return ranks, []

    def before_agreement(self):
        """All have called but rank 1."""
        group = self.group(self.world, self.PLACEMENT)
        group.exact("all_reduce", count=1009)
        for number in (0, 2, 3, 4):
            group.ranks[number].tell(group.command("all_reduce", count=TRAVELLING))
        self.expect_no_answer(group.ranks)
        return group.ranks, [1]

    def in_an_operation(self, **how):
        group = self.group(self.world, self.PLACEMENT)
        for host in self.world.hosts:
            host.limit(RATE)
        before = received_bytes(self.victim.host)
        group.tell("all_reduce", count=LARGE, **how)
        world.wait_until(
            "bytes are on their way",
            lambda: received_bytes(self.victim.host) > before + UNDER_WAY_BYTES,
        )
        return group.ranks, []

    def in_windows(self):
        """Of plain memory, whose owners copy meanwhile."""
        return self.in_an_operation(plain=1, blocking=1)

    def in_windows_under_a_budget(self):
        return self.in_an_operation(plain=1, blocking=1, budget=1 << 18)

    def expect_no_answer(self, ranks):
        time.sleep(0.5)  # nothing shows that they have come so far; else the test is an easier one
        self.assertFalse(any(rank.has_answered() for rank in ranks))

    def expect_others_told(self, fault, ranks):
        """Those of the lost host: their daemon is gone, or others are lost to it."""
        for number in self.LOST:
            answer = ranks[number].answer()
            self.assertEqual(answer.kind, "error", answer)
            if fault.ends_ranks:
                self.assertEqual(answer.code, "daemon-lost")

    def expect_as_before(self, ranks):
        for rank in ranks:
            rank.close()
        for host in self.world.hosts:
            host.limit(None)
        # a peer that is only just back may be found out to be the lost one, once, or not be reached
        # yet; who has joined by then waits for the others as long as it wants to
        world.wait_until("the host is back", self.works_again)
        self.bystanders.exact("all_gather", count=1009)
        self.bystanders.leave()
        self.bystanders.close()
        self.world.expect_nothing_left()
        self.world.expect_good_end()

    def works_again(self):
        try:
            self.expect_at_work(self.world, self.PLACEMENT, timeout=world.CONNECT_TIMEOUT)
        except AssertionError:
            return False
        return True

    def test_a_daemon_killed_at_rest(self):
        self.lose(Kill(), self.at_rest)

    def test_a_daemon_killed_in_set_up(self):
        self.lose(Kill(), self.in_set_up)

    def test_a_daemon_killed_before_agreement(self):
        self.lose(Kill(), self.before_agreement)

    def test_a_daemon_killed_in_an_operation(self):
        self.lose(Kill(), self.in_an_operation)

    def test_a_daemon_stopped_at_rest(self):
        self.lose(Stop(), self.at_rest)

    def test_a_daemon_stopped_in_set_up(self):
        self.lose(Stop(), self.in_set_up)

    def test_a_daemon_stopped_before_agreement(self):
        self.lose(Stop(), self.before_agreement)

    def test_a_daemon_stopped_in_an_operation(self):
        self.lose(Stop(), self.in_an_operation)

    def test_a_host_cut_off_at_rest(self):
        self.lose(Cut(), self.at_rest)

    def test_a_host_cut_off_in_set_up(self):
        self.lose(Cut(), self.in_set_up)

    def test_a_host_cut_off_before_agreement(self):
        self.lose(Cut(), self.before_agreement)

    def test_a_host_cut_off_in_an_operation(self):
        self.lose(Cut(), self.in_an_operation)

    def test_a_daemon_killed_in_windows(self):
        self.lose(Kill(), self.in_windows_under_a_budget)

    def test_a_host_cut_off_in_windows(self):
        self.lose(Cut(), self.in_windows)


class Ranks(FaultTest):
    """A rank alone fails, on another host than those that are told."""

    def test_that_die_are_named_with_their_host(self):
        w = self.make_world(2)
        w.link_all()
        group = self.group(w, "0011")
        group.exact("all_reduce", count=1009)
        for rank in group.ranks[:3]:
            rank.tell(group.command("all_reduce", count=9))
        group.ranks[3].process.kill()
        began = time.monotonic()
        for rank in group.ranks[:3]:
            answer = rank.answer()
            self.expect_told(answer, w.hosts[1], [3])
            self.assertLess(answer.at - began, world.SOON)
        group.close()
        w.expect_nothing_left()

    def test_that_die_while_memory_passes_through_windows_are_named(self):
        w = self.make_world(2)
        w.link_all()
        group = self.group(w, "0011")
        for host in w.hosts:
            host.limit(RATE)
        before = received_bytes(w.hosts[1])
        group.tell("all_reduce", count=LARGE, plain=1, blocking=1)
        world.wait_until(
            "bytes are on their way",
            lambda: received_bytes(w.hosts[1]) > before + UNDER_WAY_BYTES,
        )
        group.ranks[3].process.kill()
        for rank in group.ranks[:3]:
            self.expect_told(rank.answer(), w.hosts[1], [3])
        group.close()
        w.expect_nothing_left()

    def test_that_leave_are_named(self):
        w = self.make_world(2)
        group = self.group(w, "01")
        self.assertEqual(group.ranks[1].ask(group.command("leave")).kind, "ok")
        answer = group.ranks[0].ask(group.command("all_reduce", count=9))
        self.assertEqual((answer.code, answer.ranks), ("rank-left", [1]))

    def test_that_abort_reach_all(self):
        w = self.make_world(2)
        group = self.group(w, "0011")
        for rank in group.ranks[:3]:
            rank.tell(group.command("all_reduce", count=9))
        self.assertEqual(group.ranks[3].ask(group.command("abort")).kind, "ok")
        for rank in group.ranks[:3]:
            answer = rank.answer()
            self.assertEqual((answer.code, answer.ranks), ("aborted", [3]))
            self.assertIn("the test says so", answer.text)

    def test_that_never_call_are_named_with_what_they_did_last(self):
        w = self.make_world(2)
        w.link_all()
        group = self.group(w, "0011", timeout=4)  # of joining too
        group.exact("broadcast", count=9)
        for rank in group.ranks[:3]:
            rank.tell(group.command("all_reduce", count=9))
        for rank in group.ranks[:3]:
            answer = rank.answer()
            self.assertEqual((answer.code, answer.ranks), ("timeout", [3]), answer)
            self.assertIn("broadcast", answer.text)
            self.assertIn("host2", answer.text)
        group.close()
        w.expect_nothing_left()


class Network(FaultTest):
    def test_that_loses_packets_loses_no_bits(self):
        w = self.make_world(3)
        w.link_all()
        for host in w.hosts:
            host.lose(1)
        group = self.group(w, "0012")
        for _ in range(20):
            group.exact("all_reduce", count=100_003)
            group.exact("all_to_all", count=30_011, budget=65536)
            if sum(host.lost() for host in w.hosts) > 20:
                break
        self.assertGreater(sum(host.lost() for host in w.hosts), 0)
        group.leave()
        group.close()
        for host in w.hosts:
            host.lose(0)
        w.expect_nothing_left()

    def test_that_is_gone_for_a_moment_is_not_noticed(self):
        w = self.make_world(2)
        for _ in range(HEAL_TRIES):
            group = self.group(w, "01")
            group.exact("all_reduce", count=1009)
            began = time.monotonic()
            w.hosts[1].cut()
            group.tell("all_reduce", count=1009)
            time.sleep(world.PEER_TIMEOUT / 4)
            w.hosts[1].heal()
            if time.monotonic() - began < world.PEER_TIMEOUT / 2:
                group.expect_exact("all_reduce", count=1009)
                group.leave()
                return
            group.answers()  # it was longer than a moment: whatever came of it
            group.close()
        self.fail("the cable cannot be pulled for a moment alone")

    def test_at_rest_is_not_missed(self):
        w = self.make_world(2)
        group = self.group(w, "01")
        w.hosts[1].cut()
        time.sleep(2 * world.PEER_TIMEOUT)
        w.hosts[1].heal()
        group.exact("all_reduce", count=1009)
        group.leave()


class Roots(FaultTest):
    """An id may name what is no root."""

    def join_at(self, w, address):
        """What a rank on host 1 that joins at `address` is told, and after how long."""
        id = w.new_id(0).partition("@")[0] + "@" + address
        rank = world.Rank(w.daemons[0])
        began = time.monotonic()
        try:
            answer = rank.ask(world.command("join", id=id, rank=0, nranks=2))
        finally:
            rank.close()
        self.assertEqual(answer.kind, "error", answer)
        self.assertIn(address, answer.text)
        self.assertLess(answer.at - began, world.CONNECT_TIMEOUT + world.SOON)
        return answer

    def test_that_never_answers(self):
        w = self.make_world(2, daemons=1)
        with proxy.listen(w.hosts[1], hosts.PORT):
            self.join_at(w, f"{w.hosts[1].address}:{hosts.PORT}")
        w.expect_nothing_left()
        self.expect_at_work(w, "00")

    def test_that_answers_with_noise(self):
        w = self.make_world(2, daemons=1)
        with proxy.listen(w.hosts[1], hosts.PORT) as listener:
            id = w.new_id(0).partition("@")[0] + f"@{w.hosts[1].address}:{hosts.PORT}"
            rank = world.Rank(w.daemons[0])
            self.addCleanup(rank.close)
            rank.tell(world.command("join", id=id, rank=0, nranks=2))
            listener.settimeout(world.PATIENCE)
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(os.urandom(4096))
                self.assertEqual(rank.answer().kind, "error")
                self.assertTrue(proxy.is_closed(accepted, world.PATIENCE))
        rank.close()
        w.expect_nothing_left()

    def test_that_is_nowhere(self):
        w = self.make_world(2, daemons=1)
        self.join_at(w, f"{w.hosts[1].address}:{hosts.PORT}")  # nobody listens
        self.join_at(w, f"10.77.0.99:{hosts.PORT}")  # nobody is there
        w.expect_nothing_left()

    def test_that_knows_nothing_of_the_id(self):
        w = self.make_world(2)
        w.link_all()
        answer = self.join_at(w, f"{w.hosts[1].address}:{hosts.PORT}")
        self.assertEqual(answer.code, "not-found")


class Keys(FaultTest):
    def expect_strangers(self, w, *words):
        """Hosts 1 and 2 do not come together; rank 1 is told why, rank 0 that it was missing."""
        group = world.Group([0, 1], w.start_ranks([0, 1]), "c")
        self.addCleanup(group.close)
        began = time.monotonic()
        w.tell_join(group, w.new_id(0), timeout=world.CONNECT_TIMEOUT)
        missed, refused = group.answers()
        self.assertEqual((missed.code, missed.ranks), ("timeout", [1]), missed)
        self.assertEqual(refused.kind, "error", refused)
        for word in (w.hosts[0].address, *words):
            self.assertIn(word, refused.text)
        self.assertLess(time.monotonic() - began, world.CONNECT_TIMEOUT + world.SOON)
        group.close()
        w.expect_nothing_left()
        for number in ("00", "11"):
            self.expect_at_work(w, number)
        w.expect_good_end()

    def test_that_differ(self):
        w = self.make_world(2, daemons=1)
        other = hosts.new_key(w.directory / "other-key")
        w.add_daemon(1, key=other)
        self.expect_strangers(w, "key")

    def test_that_only_the_root_has(self):
        self.expect_strangers(self.make_world(2, each={1: {"key": None}}), "cluster_key")

    def test_that_the_root_has_not(self):
        self.expect_strangers(self.make_world(2, each={0: {"key": None}}), "key")

    def test_that_nobody_has(self):
        self.expect_strangers(self.make_world(2, key=None), "cluster_key")


class Strangers(FaultTest):
    """At the control port of host 1, from host 3, which has no daemon."""

    SHOWN_OUT = world.CONNECT_TIMEOUT + world.SOON
    NOISE = {
        "nothing": b"",
        "a byte": b"\x01",
        "zeros": bytes(64),
        "many zeros": bytes(1 << 20),
        "a great length": b"\xff" * 8,
        "random bytes": os.urandom(1 << 16),
        "another protocol": b"GET / HTTP/1.1\r\nHost: host1\r\n\r\n",
        "a packet of a client": b"\x08\x01\x12\x06\x08\x01\x10\x01\x1a\x00",
    }

    def make_world(self, **how):
        w = super().make_world(3, daemons=2, **how)
        w.link_all()
        return w

    def test_are_heard_out_and_shown_out(self):
        w = self.make_world()
        group = self.group(w, "01")
        for name, payload in self.NOISE.items():
            with self.subTest(name):
                with proxy.dial(w.hosts[2], w.hosts[0].address, hosts.PORT, payload) as stranger:
                    group.exact("all_reduce", count=1009)
                    self.assertTrue(proxy.is_closed(stranger, self.SHOWN_OUT))
        group.exact("all_reduce", count=1009)
        group.leave()
        group.close()
        w.expect_nothing_left()
        self.expect_at_work(w, "0011")
        w.expect_good_end()

    def test_that_only_hold_connections_keep_nobody_out(self):
        w = self.make_world()
        w.daemons[1].kill()  # its link has to be made again, beside them
        held = [proxy.dial(w.hosts[2], w.hosts[0].address, hosts.PORT) for _ in range(300)]
        w.daemons[1].start()
        self.expect_at_work(w, "01")
        self.expect_at_work(w, "10")
        for connection in held:
            self.assertTrue(proxy.is_closed(connection, self.SHOWN_OUT))
            connection.close()
        w.expect_nothing_left()

    def test_that_go_at_once_are_nothing(self):
        w = self.make_world()
        for _ in range(200):
            proxy.dial(w.hosts[2], w.hosts[0].address, hosts.PORT, b"\x40").close()
        self.expect_at_work(w, "01")
        w.expect_nothing_left()


class Between(FaultTest):
    """Host 2 reaches host 1 through host 3, which listens in, repeats, and changes what is said."""

    def setUp(self):
        between = f"10.77.0.3:{hosts.PORT}"
        self.world = self.make_world(3, daemons=2, each={0: {"advertise": between}})
        there = (self.world.hosts[0].address, hosts.PORT)
        self.proxy = proxy.Proxy(self.world.hosts[2], hosts.PORT, there)
        self.addCleanup(self.proxy.close)

    def join(self, timeout=world.CONNECT_TIMEOUT):
        """A group whose control messages take that way; or the answers, where it does not form."""
        group = world.Group([0, 1], self.world.start_ranks([0, 1]), "c")
        self.addCleanup(group.close)
        self.world.tell_join(group, self.world.new_id(0), timeout=timeout)
        return group, group.answers()

    def expect_joined(self):
        group, answers = self.join(world.PATIENCE)
        self.assertEqual([answer.kind for answer in answers], ["ok", "ok"], answers)
        return group

    def works(self):
        """Both ways are to be good again."""
        group, answers = self.join()
        if all(answer.kind == "ok" for answer in answers):
            group.exact("all_reduce", count=1009)
            group.leave()
        group.close()
        return all(answer.kind == "ok" for answer in answers)

    def test_what_is_handed_on_as_it_is_is_taken(self):
        group = self.expect_joined()
        group.exact("all_reduce", count=100_003)
        group.leave()
        self.assertGreater(len(self.proxy.record), 0)

    def test_nothing_can_be_read(self):
        group = self.expect_joined()
        group.exact("all_reduce", dtype="u8", op="max", count=64)
        group.leave()
        for word in (b"all_reduce", b"hosts", self.world.key.read_bytes().strip()):
            self.assertNotIn(word, self.proxy.record)

    def test_a_conversation_said_again_is_refused(self):
        group = self.expect_joined()
        group.exact("all_reduce", count=1009)
        group.leave()
        group.close()
        there = self.world.hosts[0].address
        for length in (len(self.proxy.record), len(self.proxy.record) // 2):
            said = self.proxy.record[:length]
            with proxy.dial(self.world.hosts[2], there, hosts.PORT, said) as again:
                self.assertTrue(proxy.is_closed(again, world.CONNECT_TIMEOUT + world.SOON))
        self.assertTrue(self.works())
        self.world.expect_nothing_left()

    def test_bytes_said_twice_end_the_connection(self):
        for nbytes in (1, 40, 400):
            with self.subTest(nbytes=nbytes):
                group = self.expect_joined()
                group.exact("all_reduce", count=1009)
                self.proxy.repeat(nbytes)
                self.expect_lost(group)
        world.wait_until("it works again", self.works)
        self.world.expect_nothing_left()

    def test_a_changed_byte_ends_the_connection(self):
        group = self.expect_joined()
        group.exact("all_reduce", count=1009)
        self.proxy.flip(7)
        self.expect_lost(group)
        world.wait_until("it works again", self.works)

    def test_a_changed_byte_of_the_greeting_keeps_them_apart(self):
        for offset in (0, 5, 20, 60, 140):
            with self.subTest(offset=offset):
                self.world.daemons[1].stop()  # for a link to be made anew
                self.world.daemons[1].start()
                self.proxy.flip(offset)
                group, answers = self.join()
                self.assertIn("error", [answer.kind for answer in answers])
                group.close()
        world.wait_until("it works again", self.works)
        self.world.expect_nothing_left()

    def expect_lost(self, group):
        """Host 1, which does not hear what host 2 says, at once; host 2 when it next needs host 1:
        by what it has heard, this operation may have come to its end there."""
        began = time.monotonic()
        group.tell("all_reduce", count=1009)
        there, here = group.answers()
        self.assertEqual(there.code, "rank-lost", there)
        if here.kind == "ok":
            here = group.ranks[1].ask(group.command("all_reduce", count=1009))
        self.assertEqual(here.code, "rank-lost", here)
        self.assertLess(max(there.at, here.at) - began, TOLD_SECONDS)
        group.close()


if __name__ == "__main__":
    world.main("nft")
