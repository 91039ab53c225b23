"""What tests across hosts stand on: hosts with a daemon each, and ranks as processes on them."""

import itertools
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import hosts

RANK = os.environ.get("RUCCL_HOSTS_RANK", hosts.BUILD / "tests/hosts/hosts_rank")
EXPECTED = os.environ.get("RUCCL_HOSTS_EXPECTED", hosts.BUILD / "tests/hosts/hosts_expected")
TRANSPORT = os.environ.get("RUCCL_HOSTS_TRANSPORT", "auto")
SKIP = 77  # exit status that meson takes for "skipped"
PATIENCE = 30  # seconds; nothing that works takes longer

PEER_TIMEOUT = 2  # seconds, in tests that wait for it
CONNECT_TIMEOUT = 3
SOON = 10  # how long a failure may take to be told, on a machine that has other things to do

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
IN_PLACE = (*REDUCTIONS, "all_gather", "broadcast")
EXCHANGES = ("all_to_all", "all_to_all_v")
KINDS = (*IN_PLACE, "gather", "scatter", *EXCHANGES, "send_recv")
WIDTHS = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "i16": 2, "i32": 4,
    "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1, "c64": 8, "c128": 16,
    "packed_u8": 1, "packed_u32": 4,
}  # fmt: skip


def main(*tools):
    """unittest.main(), or the reason why there can be none and a status that says so. `tools`: what
    the tests need beside what makes hosts."""
    reason = hosts.reason_not(*tools)
    if reason:
        print(reason)
        sys.exit(SKIP)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in good order, as Ctrl-C does
    unittest.main()


def command(verb, **words):
    """A line for a rank: command("all_reduce", count=3). What is None is left out."""
    text = {k: int(v) if isinstance(v, bool) else v for k, v in words.items() if v is not None}
    return " ".join([verb, *(f"{key}={value}" for key, value in text.items())])


def least_budget(kind, dtype, nranks, row=1):
    """The least that gives chunks of one element, or row."""
    return (
        WIDTHS[dtype]
        * (row if kind in EXCHANGES else 1)
        * (1 if kind in ("broadcast", "send_recv") else nranks)
    )


def may_need_more(kind, dtype, op):
    """Whether least_budget() may be too small between nodes, whatever the algorithm: partial sums
    travel as wide as they are added up, those of the narrowest floats four times as wide."""
    return kind in REDUCTIONS and dtype in ("f8e4m3", "f8e5m2") and op in ("sum", "product", "mean")


def wait_until(what, holds, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.02)


# ---------------------------------------------------------------- ranks


class Answer:
    """A rank's line: `kind` is ok, error or wrong; a word key=value is the attribute `key`."""

    def __init__(self, line):
        self.line = line.rstrip("\n")
        self.at = time.monotonic()
        head, _, self.text = self.line.partition(" text=")
        self.kind, *words = head.split() or ["nothing"]
        self.code = self.digest = self.wrote = None
        self.ranks = ""
        if self.kind != "wrong":
            for word in words:
                key, _, value = word.partition("=")
                setattr(self, key, value)
        self.ranks = [int(rank) for rank in self.ranks.split(",") if rank]

    def __repr__(self):
        return self.line

    def least_budget(self):
        """What it says is the least budget that works."""
        return int(re.search(r"the least that works is (\d+)", self.text)[1])


class Rank:
    """A process with a connection to a daemon; it does as it is told, one command at a time."""

    def __init__(self, daemon, gpu=None):
        self.daemon = daemon
        self._text = b""
        self.process = daemon.host.start(
            RANK, *([] if gpu is None else [str(gpu)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"RUCCL_SOCKET": str(daemon.socket)},
        )  # fmt: skip
        answer = self.answer()
        if answer.kind != "ok":
            raise AssertionError(f"a rank on {daemon.host.name} cannot connect: {answer}")

    def tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds=PATIENCE):
        """Its next one, as an Answer."""
        deadline = time.monotonic() + seconds
        stdout = self.process.stdout.fileno()
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise AssertionError(f"a rank has not answered for {seconds} s")
            more = os.read(stdout, 65536)
            if not more:
                raise AssertionError(f"a rank ended with status {self.process.wait()}")
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return Answer(line.decode())

    def has_answered(self):
        return b"\n" in self._text or bool(select.select([self.process.stdout], [], [], 0)[0])

    def ask(self, line, seconds=PATIENCE):
        self.tell(line)
        return self.answer(seconds)

    def close(self):
        """Ends it; it leaves without a word."""
        self.process.stdin.close()
        try:
            self.process.wait(SOON)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Reference:
    """What commands have to come to among ranks that are placed so."""

    def __init__(self, placement):
        nodes = ",".join(map(str, placement))
        self._process = subprocess.Popen(
            [EXPECTED, nodes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def digests(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        digests = self._process.stdout.readline().split()
        if not digests:
            raise AssertionError(f"no reference for: {line}")
        return digests

    def close(self):
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()


class Group:
    """Ranks in a communicator, in order; `placement` has each one's host by number from 0."""

    def __init__(self, placement, ranks, name):
        self.placement, self.ranks, self.name = placement, ranks, name
        self._reference = Reference(placement)

    def __len__(self):
        return len(self.ranks)

    def command(self, verb, **words):
        return command(verb, comm=self.name, **words)

    def tell(self, verb, **words):
        for rank in self.ranks:
            rank.tell(self.command(verb, **words))

    def answers(self, seconds=PATIENCE):
        return [rank.answer(seconds) for rank in self.ranks]

    def run(self, verb, **words):
        self.tell(verb, **words)
        return self.answers()

    def ok(self, verb, **words):
        """The answers to a command that has to succeed everywhere."""
        return self.expect_ok(self.command(verb, **words), self.run(verb, **words))

    def exact(self, verb, **words):
        """Runs a collective; every bit has to be the reference's, within the budget."""
        self.tell(verb, **words)
        return self.expect_exact(verb, **words)

    def exact_or_least(self, verb, **words):
        """The same where the budget may be too small: then with the least that is named, below which
        all is refused."""
        answers = self.run(verb, **words)
        if any(answer.code != "budget-too-small" for answer in answers):
            return self._check_exact(answers, verb, **words)
        least = self.expect_alike(self.command(verb, **words), answers).least_budget()
        if least <= words["budget"]:
            raise AssertionError(f"{answers[0]}: no more than there was")
        refused = self.refused(verb, **words | {"budget": least - 1})
        if refused.code != "budget-too-small" or refused.least_budget() != least:
            raise AssertionError(f"{refused}: and before it was {answers[0]}")
        return self.exact(verb, **words | {"budget": least})

    def expect_exact(self, verb, **words):
        """The same as exact() where ranks have been told."""
        return self._check_exact(self.answers(), verb, **words)

    def _check_exact(self, answers, verb, **words):
        line = self.command(verb, **words)
        expected = self._reference.digests(line)
        self.expect_ok(line, answers)
        digests = [answer.digest for answer in answers]
        if digests != expected:
            raise AssertionError(
                f"{line} on {self.placement}: {digests} instead of {expected}: {answers}"
            )
        for answer in answers:
            if int(answer.peak) > words.get("budget", 1 << 63):
                raise AssertionError(f"{line} on {self.placement}: {answer}: above the budget")
        return answers

    def refused(self, verb, **words):
        """The one error that every rank has to get alike, with nothing written."""
        return self.expect_alike(self.command(verb, **words), self.run(verb, **words))

    def expect_alike(self, line, answers):
        if len({(answer.code, answer.text) for answer in answers}) != 1 or not answers[0].code:
            raise AssertionError(f"{line} on {self.placement}: not refused alike: {answers}")
        if any(answer.wrote != "0" for answer in answers):
            raise AssertionError(f"{line} on {self.placement}: something was written: {answers}")
        return answers[0]

    def split(self, colors, keys, name):
        """The communicators that come of it, by color."""
        for rank, color, key in zip(self.ranks, colors, keys):
            rank.tell(self.command("split", into=name, color=color, key=key))
        self.expect_ok("split", self.answers())
        children = {}
        for color in sorted(set(colors) - {-1}):
            order = sorted((k, i) for i, (c, k) in enumerate(zip(colors, keys)) if c == color)
            chosen = [i for _, i in order]
            children[color] = Group(
                [self.placement[i] for i in chosen], [self.ranks[i] for i in chosen], name
            )
        return children

    def leave(self):
        """All ranks leave; they stay connected."""
        self.ok("leave")
        self._reference.close()

    def close(self):
        """Ends the ranks, wherever they are."""
        for rank in self.ranks:
            rank.close()
        self._reference.close()

    @staticmethod
    def expect_ok(line, answers):
        if any(answer.kind != "ok" for answer in answers):
            raise AssertionError(f"{line}: {answers}")
        return answers


# ---------------------------------------------------------------- hosts with daemons


class World:
    """`count` hosts, and a daemon on each of the first `daemons`, all with one key. More settings
    are every daemon's; `each` has settings of single daemons by their number from 0."""

    def __init__(self, count, daemons=None, each=None, **settings):
        self._directory = tempfile.TemporaryDirectory(prefix="ruccl-")
        self.directory = pathlib.Path(self._directory.name)
        self.key = hosts.new_key(self.directory / "key")
        self.settings = {"key": self.key, "transport": TRANSPORT} | settings
        self.hosts = hosts.Hosts(count)
        self.daemons = []
        try:
            for number in range(count if daemons is None else daemons):
                self.add_daemon(number, **(each or {}).get(number, {}))
        except Exception:
            self.close()
            raise
        self.fds = {}

    def close(self):
        self.hosts.close()
        self._directory.cleanup()

    def add_daemon(self, number, **own):
        """The next one; `own` are settings beside those of all."""
        settings = self.settings | own
        self.daemons.append(hosts.Daemon(self.hosts[number], self.directory, **settings))

    def start_ranks(self, placement, gpus=None):
        return [
            Rank(self.daemons[number], None if gpu == "-" else gpu)
            for number, gpu in zip(placement, gpus or itertools.repeat("-"))
        ]

    def group(self, placement, root=None, ranks=None, name="c", gpus=None, **join):
        """Ranks that have joined. `placement`: "0011", or numbers; `root`: whose daemon makes the
        id, otherwise rank 0's; `gpus`: "01-0", each one's GPU, or - for the host's memory."""
        placement = [int(number) for number in placement]
        group = Group(placement, ranks or self.start_ranks(placement, gpus), name)
        try:
            self.tell_join(group, self.new_id(placement[0] if root is None else root), **join)
            group.expect_ok(f"join on {placement}", group.answers())
        except Exception:
            group.close()
            raise
        return group

    def tell_join(self, group, id, **join):
        for number, rank in enumerate(group.ranks):
            rank.tell(group.command("join", id=id, rank=number, nranks=len(group), **join))

    def new_id(self, number):
        rank = Rank(self.daemons[number])
        answer = rank.ask("new_id")
        rank.close()
        return answer.id

    def status(self, number):
        return json.loads(self.daemons[number].control("status", "--json"))

    def count_fds(self, number):
        return len(os.listdir(f"/proc/{self.daemons[number].process.pid}/fd"))

    def link_all(self):
        """Has every daemon work with every other once. They keep their links; from then on each is
        to hold no more files than now when nobody uses it: expect_nothing_left()."""
        group = self.group(range(len(self.daemons)))
        group.exact("all_reduce", count=100_003)
        group.leave()
        group.close()
        self.expect_nothing_left()
        self.fds = {number: self.count_fds(number) for number in range(len(self.daemons))}

    def expect_nothing_left(self, *numbers):
        """These daemons, or all, have no session, no communicator and nothing unfinished with
        others, their hosts no other process; and they hold no more files than after link_all()."""
        for number in numbers or range(len(self.daemons)):
            wait_until(f"daemon {number} is empty", lambda: self._is_empty(number))
            if number in self.fds:
                most = self.fds[number]
                wait_until(
                    f"daemon {number} holds at most {most} files",
                    lambda: self.count_fds(number) <= most,
                )

    def expect_good_end(self, *numbers):
        """These daemons, or all, end well when they are told to."""
        for number in numbers or range(len(self.daemons)):
            status = self.daemons[number].stop()
            if status:
                log = self.daemons[number].log()
                raise AssertionError(f"daemon {number} ended with status {status}:\n{log}")

    def logs(self):
        return "\n".join(f"-- {d.host.name}\n{d.log()}" for d in self.daemons)

    def _is_empty(self, number):
        status = self.status(number)
        sessions = [s for s in status["sessions"] if s["name"] != "rucclctl"]
        busy = [peer for peer in status["peers"] if peer["expecting"]]
        daemon = self.daemons[number]
        others = set(daemon.host.processes()) - {daemon.process.pid}
        return not (sessions or status["communicators"] or busy or others)


class WorldTest(unittest.TestCase):
    """Where a test fails, the logs of its world's daemons are shown."""

    def make_world(self, count, **how):
        """A world of the test's own, gone after it."""
        made = World(count, **how)
        self.addCleanup(made.close)
        self.watch(made)
        return made

    def watch(self, shared):
        """What the test leaves of a world that it shares with others is to be shown too."""
        self.addCleanup(self._show_failure, shared)

    def _show_failure(self, failed):
        result = self._outcome.result
        tests = [test for test, _ in [*result.failures, *result.errors]]
        if any(getattr(test, "test_case", test) is self for test in tests):
            print(f"{self}:\n{failed.logs()}", file=sys.stderr)
