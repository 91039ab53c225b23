"""Who takes part between hosts, and how each is run there; and what the link itself can do.

Hosts are network namespaces of this machine on one bridge (deploy/hosts.py). A launcher of MPI
starts its ranks by itself; the other contestants are started once on each host. They all see the
same files, and so meet on the same board as those of one host.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time

import contestants
from contestants import (
    MOST_SAID, OB1, OPEN_MPI, PML_UCX, ROOT, SPIN, YIELD, Arena, Contestant, Trouble, end_process
)  # fmt: skip

sys.path.insert(0, str(ROOT / "deploy"))

import hosts as testbed  # noqa: E402

NETWORK_DEVICE = "eth0"  # of every host

# Named, so that nothing crosses hosts through the memory that they share here. (Open MPI goes by
# hosts' names, which differ.)
UCX_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": NETWORK_DEVICE, "UCX_LOG_LEVEL": "error"}
OB1_TCP = OB1 | {"OMPI_MCA_btl": "self,vader,tcp"}
OPEN_MPI_HOSTS = OPEN_MPI | UCX_TCP | {
    "OMPI_MCA_oob_tcp_if_include": NETWORK_DEVICE,
    "OMPI_MCA_btl_tcp_if_include": NETWORK_DEVICE,
    "OMPI_MCA_rmaps_base_mapping_policy": "slot",  # a host is filled before the next
}  # fmt: skip
OPEN_MPI_RUN = (
    "mpirun.openmpi", "-np", "{ranks}", "--host", "{hosts}",
    "--mca", "plm_rsh_agent", "sh {agent}",
)  # fmt: skip


def open_mpi(name, environment, spins=False):
    environment = OPEN_MPI_HOSTS | environment
    return Contestant(name, "openmpi", "polling", OPEN_MPI_RUN, environment, spins)


PEERS = [
    open_mpi("openmpi ob1 yield", OB1_TCP | YIELD),
    open_mpi("openmpi ob1 spin", OB1_TCP | SPIN, spins=True),
    open_mpi("openmpi ucx yield", PML_UCX | YIELD),
    open_mpi("openmpi ucx spin", PML_UCX | SPIN, spins=True),
    *(peer for peer in contestants.PEERS if peer.program == "gloo"),
]


def make_hosts(layouts, bind):
    """As many as the largest layout has. `bind`: CPUs are dealt out to them, one after the other."""
    why_not = testbed.reason_not()
    if why_not:
        raise Trouble(f"--hosts: {why_not}")
    count = max(layout.hosts for layout in layouts)
    return testbed.Hosts(count, cpu_shares(count) if bind else None)


def cpu_shares(count):
    """With fewer CPUs than hosts some share one."""
    cpus = sorted(os.sched_getaffinity(0))
    return [",".join(map(str, cpus[i::count] or [cpus[i % len(cpus)]])) for i in range(count)]


class HostArena(Arena):
    """An arena of several hosts with a ruccld on each; without these, the others still can run."""

    def __init__(self, build, hosts):
        super().__init__(build)
        self._hosts = hosts
        self._no_daemons = None  # why not

    def _open(self):
        self._agent = self._write_agent()
        key = testbed.new_key(self.path / "key")
        try:
            for host in self._hosts:
                self._daemons.append(testbed.Daemon(host, self.path, key, self._build))
        except RuntimeError as trouble:
            self._do_without_daemons(trouble)

    def _check_daemons(self):
        try:
            super()._check_daemons()
        except RuntimeError as trouble:
            self._do_without_daemons(trouble)

    def _do_without_daemons(self, trouble):
        self._no_daemons = str(trouble).strip()[-MOST_SAID:]
        self._end_daemons()

    def _write_agent(self):
        """What mpirun calls like a remote shell, with the address of a host and a command."""
        path = self.path / "agent"
        lines = ["address=$1; shift", "case $address in"]
        for host in self._hosts:
            lines.append(f'{host.address}) exec {shlex.join(host.enter("sh", "-c"))} "$*" ;;')
        path.write_text("\n".join([*lines, "esac", "exit 1", ""]))
        return path

    def _starts(self, contestant, layout, program, scratch):
        hosts = [self._hosts[i] for i in range(layout.hosts)]
        if contestant.launcher:
            slots = ",".join(f"{host.address}:{layout.per_host}" for host in hosts)
            launcher = [
                word.format(ranks=layout.ranks, hosts=slots, agent=self._agent)
                for word in contestant.launcher
            ]
            yield hosts[0].enter(*launcher, *program), {}
            return
        for i, host in enumerate(hosts):
            first = i * layout.per_host
            own = {
                "BENCH_RANKS": f"{first}-{first + layout.per_host - 1}",
                "BENCH_ADDRESS": host.address,
            }
            if self._daemons:
                own["RUCCL_SOCKET"] = str(self._daemons[i].socket)
            yield host.enter(*program), own

    def run(self, contestant, *arguments):
        if contestant.program != "ruccl":
            return super().run(contestant, *arguments)
        result = super().run(contestant, *arguments) if self._daemons else None
        return ([], self._no_daemons) if self._no_daemons else result


# ---------------------------------------------------------------- the link

# ucx_perftest's name for a test, ours, bytes, calls
LINK_TESTS = (
    ("tag_lat", "tag latency", 8, 2000),
    ("ucp_am_lat", "am latency", 8, 2000),
    ("tag_bw", "tag bandwidth", 64 << 10, 1000),
    ("tag_bw", "tag bandwidth", 1 << 20, 200),
    ("tag_bw", "tag bandwidth", 16 << 20, 16),
)
LINK_WAITS = {"poll": "polling", "sleep": "event-driven"}
LINK_SECONDS = 20  # at most, for one test
MIB_S = (1 << 20) / 1e9  # ucx_perftest's unit of bandwidth, in GB/s


def make_link(hosts):
    """None if ucx_perftest is missing."""
    if shutil.which("ucx_perftest"):
        return Link(hosts)
    print("peers: no ucx_perftest: the link is left out; try --install", file=sys.stderr)
    return None


class Link:
    """UCX over tcp between the first two hosts. `times` maps (what, bytes, wait) to what each round
    had: us one way for latencies, GB/s for bandwidths."""

    def __init__(self, hosts):
        self._server, self._client = hosts[0], hosts[1]
        self.times = {}

    def measure(self):
        for test, what, size, ncalls in LINK_TESTS:
            for wait, wait_text in LINK_WAITS.items():
                values = self.times.setdefault((what, size, wait_text), [])
                value = self._run(test, size, ncalls, wait)
                if value is not None:
                    values.append(value)

    def _run(self, test, size, ncalls, wait):
        environment = os.environ | UCX_TCP
        server = subprocess.Popen(
            self._server.enter("ucx_perftest", "-E", wait), env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        command = self._client.enter(
            "ucx_perftest", self._server.address, "-t", test, "-s", size, "-n", ncalls,
            "-w", ncalls // 10, "-E", wait, "-f", "-v",
        )  # fmt: skip
        try:
            return self._ask(command, environment, test)
        finally:
            end_process(server, 1)

    @staticmethod
    def _ask(command, environment, test):
        """None: no answer. The first tries may be before the server listens."""
        deadline = time.monotonic() + LINK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=left
                )
                if done.returncode == 0:
                    return link_value(test, done.stdout)
            time.sleep(0.05)
        return None


def link_value(test, output):
    """Of a line of names and one of numbers."""
    names, numbers = (line.split(",") for line in output.splitlines())
    values = dict(zip(names, map(float, numbers)))
    if test.endswith("_bw"):
        return values["overall_bw"] * MIB_S
    return values["50.0_percentile_lat"]
