#!/usr/bin/python3
"""The hosts of the other tests are what those take them for, and leave nothing behind."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

import hosts
import proxy
import world

SECONDS = 20  # of a call that works at once
TRIES = 10  # for a good moment, on a machine that has other things to do


def networks():
    """Of all processes."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                found.add(os.stat(entry / "ns/net").st_ino)
    return found


def connect(client, server, port=4000, family=socket.AF_INET):
    """A connection from one host to another, as its two ends."""
    address = server.address if family == socket.AF_INET else server.address6
    with server.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        listener.settimeout(SECONDS)
        dialled = client.socket(family)
        dialled.settimeout(SECONDS)
        dialled.connect((address, port))
        accepted, _ = listener.accept()
        accepted.settimeout(SECONDS)
        return dialled, accepted


def can_connect(client, server, seconds=0.5):
    with server.socket() as listener, client.socket() as dialled:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.address, 4001))
        listener.listen()
        dialled.settimeout(seconds)
        try:
            dialled.connect((server.address, 4001))
        except OSError:
            return False
        return True


def seconds_to_send(client, server, nbytes):
    """From one host to another, until all has arrived."""
    sender, receiver = connect(client, server)
    with sender, receiver:
        began = time.monotonic()
        sender.setblocking(False)
        data, left = bytes(1 << 16), nbytes
        sent = 0
        while left > 0:
            with contextlib.suppress(BlockingIOError):
                if sent < nbytes:
                    sent += sender.send(data[: nbytes - sent])
            receiver.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                left -= len(receiver.recv(1 << 20))
            if time.monotonic() - began > world.PATIENCE:
                raise AssertionError(f"{left} of {nbytes} bytes have not arrived")
        return time.monotonic() - began


class Networks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.before = networks()
        cls.links = subprocess.check_output(["ip", "link"])
        cls.hosts = hosts.Hosts(3)
        cls.addClassCleanup(cls.hosts.close)

    def test_reach_each_other(self):
        for family in (socket.AF_INET, socket.AF_INET6):
            for client in self.hosts:
                for server in self.hosts:
                    with self.subTest(family=family, client=client.name, server=server.name):
                        dialled, accepted = connect(client, server, family=family)
                        with dialled, accepted:
                            dialled.sendall(b"hello")
                            self.assertEqual(accepted.recv(9), b"hello")

    def test_have_names_and_interfaces_of_their_own(self):
        for number, host in enumerate(self.hosts, start=1):
            self.assertEqual(host.run("hostname"), f"host{number}\n")
            self.assertEqual(host.run("ls", "/sys/class/net"), "eth0\nlo\n")
        self.assertNotIn("host", os.uname().nodename[:4])

    def test_are_not_seen_by_the_machine(self):
        self.assertEqual(subprocess.check_output(["ip", "link"]), self.links)
        self.assertEqual(len(networks() - self.before), 4)  # with the switch's

    def test_use_one_congestion_control(self):
        dialled, accepted = connect(self.hosts[0], self.hosts[1])
        with dialled, accepted:
            for end in (dialled, accepted):
                name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                self.assertEqual(name.rstrip(b"\0").decode(), hosts.CONGESTION)

    def expect_fast(self, client, server, nbytes):
        pair = self.hosts[client], self.hosts[server]
        tries = (seconds_to_send(*pair, nbytes) for _ in range(TRIES))
        self.assertTrue(any(seconds < 0.3 for seconds in tries), pair)

    def test_keep_a_limit_in_each_direction(self):
        nbytes = 2 << 20
        self.hosts[1].limit("40mbit")
        try:
            for pair in ((0, 1), (1, 0)):
                seconds = seconds_to_send(*(self.hosts[i] for i in pair), nbytes)
                self.assertGreater(seconds, 0.7 * 8 * nbytes / 40e6, pair)
            self.expect_fast(0, 2, nbytes)
        finally:
            self.hosts[1].limit(None)
        self.expect_fast(0, 1, nbytes)

    def test_lose_packets_and_only_then(self):
        self.hosts[1].lose(5)
        try:
            while self.hosts[1].lost() == 0:
                seconds_to_send(self.hosts[0], self.hosts[1], 1 << 20)
        finally:
            self.hosts[1].lose(0)
        with self.assertRaises(RuntimeError):
            self.hosts[1].lost()

    def test_are_cut_off_and_come_back(self):
        dialled, accepted = connect(self.hosts[0], self.hosts[1])
        with dialled, accepted:
            self.hosts[1].cut()
            try:
                self.assertFalse(can_connect(self.hosts[0], self.hosts[1]))
                self.assertFalse(can_connect(self.hosts[1], self.hosts[0]))
                self.assertTrue(can_connect(self.hosts[0], self.hosts[2], seconds=SECONDS))
                dialled.sendall(b"late")
            finally:
                self.hosts[1].heal()
            self.assertEqual(accepted.recv(9), b"late")
        for pair in ((0, 1), (1, 0)):
            self.assertTrue(can_connect(*(self.hosts[i] for i in pair), seconds=SECONDS))
        dialled, accepted = connect(self.hosts[0], self.hosts[1], family=socket.AF_INET6)
        dialled.close()
        accepted.close()

    def test_delay_where_the_kernel_can(self):
        if not self.hosts[0].delay(50):
            self.skipTest("no netem in this kernel")
        try:
            began = time.monotonic()
            self.assertTrue(can_connect(self.hosts[0], self.hosts[1], seconds=SECONDS))
            self.assertGreater(time.monotonic() - began, 0.05)
        finally:
            self.hosts[0].limit(None)


class Proxies(unittest.TestCase):
    def setUp(self):
        there, here, between = made = hosts.Hosts(3)
        self.addCleanup(made.close)
        listener = proxy.listen(there, hosts.PORT)
        self.addCleanup(listener.close)
        self.proxy = proxy.Proxy(between, hosts.PORT, (there.address, hosts.PORT))
        self.addCleanup(self.proxy.close)
        self.client = proxy.dial(here, between.address, hosts.PORT)
        self.addCleanup(self.client.close)
        listener.settimeout(SECONDS)
        self.server, _ = listener.accept()
        self.server.settimeout(SECONDS)
        self.addCleanup(self.server.close)

    def expect_heard(self, end, wanted):
        heard = b""
        while len(heard) < len(wanted):
            heard += end.recv(len(wanted) - len(heard))
        self.assertEqual(heard, wanted)

    def test_hand_on_both_ways_and_keep_what_the_client_says(self):
        self.client.sendall(b"question")
        self.expect_heard(self.server, b"question")
        self.server.sendall(b"answer")
        self.expect_heard(self.client, b"answer")
        self.assertEqual(self.proxy.record, b"question")

    def test_hand_on_the_end(self):
        self.client.close()
        self.assertTrue(proxy.is_closed(self.server, SECONDS))

    def test_say_it_twice(self):
        self.client.sendall(b"question")
        self.expect_heard(self.server, b"question")
        self.proxy.repeat(3)
        self.expect_heard(self.server, b"ion")

    def test_change_one_byte(self):
        self.client.sendall(b"aaaa")
        self.expect_heard(self.server, b"aaaa")
        self.proxy.flip(6)
        for _ in range(3):
            self.client.sendall(b"bbbb")
        self.expect_heard(self.server, b"bbbbbbcbbbbb")


# Makes two hosts, on each a process, and one with the command CHILD; says who they are; does END,
# and waits.
SCRIPT = """
import signal, sys, time, hosts
signal.signal(signal.SIGTERM, signal.default_int_handler)
with hosts.Hosts(2) as made:
    for host in made:
        host.start("sleep", "1000")
        host.start("sh", "-c", CHILD)
    while not all(len(list(host.processes())) == PROCESSES for host in made):
        time.sleep(0.01)
    print("made", *(pid for host in made for pid in (host.pid, *host.processes())), flush=True)
    END
    sys.stdin.read()
"""


class Ends(unittest.TestCase):
    def end(self, end="pass", kill=None, child="trap '' TERM; sleep 1000 & wait", processes=3):
        """Runs SCRIPT; returns its status once nothing is left of it."""
        before = networks()
        text = SCRIPT.replace("CHILD", repr(child)).replace("PROCESSES", str(processes))
        script = subprocess.Popen(
            [sys.executable, "-c", text.replace("END", end)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with script:
            word, *pids = script.stdout.readline().split()
            self.assertEqual((word, len(pids)), ("made", 2 + 2 * processes))
            if kill:
                script.send_signal(kill)
            script.stdin.close()
            status = script.wait(world.PATIENCE)
        world.wait_until("all have ended", lambda: not any(map(is_alive, pids)), SECONDS)
        world.wait_until("networks are gone", lambda: networks() <= before, SECONDS)
        return status

    def test_of_a_block_leave_nothing(self):
        self.assertEqual(self.end(), 0)

    def test_by_an_exception_leave_nothing(self):
        self.assertEqual(self.end(end="raise ValueError"), 1)

    def test_by_exit_leave_nothing(self):
        self.assertEqual(self.end(end="sys.exit(3)"), 3)

    def test_by_sigterm_leave_nothing(self):
        self.assertNotEqual(self.end(kill=signal.SIGTERM), 0)

    def test_by_sigkill_leave_nothing(self):
        status = self.end(kill=signal.SIGKILL, child="exec sleep 1000", processes=2)
        self.assertEqual(status, -signal.SIGKILL)


def is_alive(pid):
    return pathlib.Path(f"/proc/{pid}").exists()


class Reasons(unittest.TestCase):
    def test_are_none_here(self):
        self.assertIsNone(hosts.reason_not())

    def test_name_what_is_missing(self):
        self.assertIn("nftables", hosts.reason_not("nft") or "nftables")
        asked = "import hosts; print(hosts.reason_not())"
        printed = subprocess.check_output(
            ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", asked],
            text=True, cwd="/",
        )  # fmt: skip
        self.assertIn("root", printed)
        whole = hosts._PATH
        try:
            hosts._PATH = "/nowhere"
            self.assertIn("iproute2", hosts.reason_not())
        finally:
            hosts._PATH = whole


class References(unittest.TestCase):
    def digests(self, placement, **words):
        reference = world.Reference(placement)
        self.addCleanup(reference.close)
        return reference.digests(world.command("all_reduce", count=10_007, **words))

    def test_add_on_each_host_first(self):
        alone = self.digests([0, 0, 0, 0])
        self.assertEqual(self.digests([0, 0, 1, 1]), alone)
        self.assertEqual(self.digests([3, 3, 2, 2]), alone)
        self.assertEqual(self.digests([0, 1, 2, 3]), alone)
        self.assertNotEqual(self.digests([0, 1, 0, 1]), alone)
        self.assertNotEqual(self.digests([0, 1, 1, 1]), alone)

    def test_do_not_mind_hosts_where_the_order_cannot_show(self):
        for words in ({"dtype": "i32"}, {"op": "max"}, {"dtype": "u8", "op": "product"}):
            alone = self.digests([0, 0, 0], **words)
            self.assertEqual(self.digests([0, 1, 0], **words), alone)


class Ranks(world.WorldTest):
    """On one host, whose daemon knows of no network."""

    def make_lone_world(self):
        return self.make_world(1, key=None, listen=None)

    def test_agree_with_the_reference(self):
        lone = self.make_lone_world()
        group = lone.group("0000000")
        for kind in world.KINDS:
            for dtype in ("f32", "f16", "f64", "i8"):
                group.exact(kind, dtype=dtype, count=1009, shift=1, root=3)
        group.exact("all_reduce", op="mean", dtype="bf16", count=45, row=3, budget=28, times=5)
        group.exact("reduce", op="max", count=77, in_place=True, root=6)
        group.exact("all_to_all_v", count=30, row=3, spare=True, plain=True)
        group.exact("all_gather", count=77, persistent=True, times=9)
        group.leave()
        group.close()
        lone.expect_good_end()

    def test_tell_what_is_refused_and_what_is_wrong(self):
        lone = self.make_lone_world()
        group = lone.group("00")
        refused = group.refused("all_reduce", count=3, budget=7)
        self.assertEqual((refused.code, refused.ranks), ("budget-too-small", [0, 1]))
        self.assertIn("8", refused.text)
        self.assertEqual(group.ranks[0].ask("all_reduce comm=c cuont=3").kind, "wrong")
        self.assertEqual(group.ranks[0].ask("all_reduce comm=d count=3").kind, "wrong")
        children = group.split([1, 1], [5, 4], "d")
        self.assertEqual(children[1].ranks, group.ranks[::-1])
        children[1].exact("all_gather", count=3)
        children[1].leave()
        group.close()

    def test_find_a_daemon_that_was_killed_and_started_again(self):
        lone = self.make_lone_world()
        group = lone.group("00")
        group.tell("all_reduce", count=3)
        group.expect_exact("all_reduce", count=3)
        group.ranks[0].tell(group.command("all_reduce", count=3))
        lone.daemons[0].kill()
        self.assertEqual(group.ranks[0].answer().code, "daemon-lost")
        group.close()
        lone.daemons[0].start()
        group = lone.group("00")
        group.exact("all_reduce", count=3)
        group.close()
        lone.expect_good_end()

    def test_show_bits_that_differ(self):
        lone = self.make_lone_world()
        group = lone.group("00")
        group.tell("all_gather", count=3, seed=1)
        with self.assertRaisesRegex(AssertionError, "instead of"):
            group.expect_exact("all_gather", count=3, seed=2)
        group.close()


if __name__ == "__main__":
    world.main("nft")
