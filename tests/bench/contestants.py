"""Who takes part on one host, how each is built, and how each is run at its best."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CPUS = len(os.sched_getaffinity(0))

UNSUPPORTED = 77  # a contestant's exit status
MOST_SAID = 2000  # characters of what somebody said who failed
GRACE_SECONDS, DAEMON_GRACE_SECONDS = 3, 30  # between asking to stop and killing

PACKAGES = (
    "build-essential openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev "
    "ucx-utils iproute2 python3-matplotlib valgrind"
).split()

REDUCING = ("all_reduce", "reduce_scatter")
C_FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O3", f"-I{ROOT}"]

# With glibc's defaults every large message maps and unmaps its staging: up to 15 times slower.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
UCX = {"UCX_TLS": "self,posix,sysv,cma", "UCX_LOG_LEVEL": "error"}
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    **UCX,
}
OB1 = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}
# without the two "any" it finds no device that it thinks worth using
PML_UCX = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_opal_common_ucx_tls": "any",
    "OMPI_MCA_opal_common_ucx_devices": "any",
}
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
SPIN = {"OMPI_MCA_mpi_yield_when_idle": "0"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where ranks are: as many on each host, those of a host one behind the other."""

    hosts: int
    per_host: int

    @property
    def ranks(self):
        return self.hosts * self.per_host

    def __str__(self):
        return str(self.ranks) if self.hosts == 1 else f"{self.hosts}x{self.per_host}"


@dataclasses.dataclass(frozen=True, eq=False)
class Contestant:
    """One setting of one program; a peer may have several, and its best counts."""

    name: str
    program: str  # in the folder of what was built
    setting: str = ""
    launcher: tuple = ()  # starts all ranks; {ranks} is filled in
    environment: dict = dataclasses.field(default_factory=dict)
    spins: bool = False  # unusable with more ranks than CPUs
    collectives: tuple = ()  # empty: every one
    two_powers: bool = False

    def fits(self, collective, dtype, ranks):
        if self.spins and ranks > CPUS:
            return False
        if self.two_powers and ranks & (ranks - 1):
            return False
        if self.collectives and collective not in self.collectives:
            return False
        return dtype in SUMS.get(self.program, (dtype,)) or collective not in REDUCING


# What a peer can add up; anything can be moved.
SUMS = {"openmpi": ("f32", "i64"), "mpich": ("f32", "i64"), "gloo": ("f32", "f16", "i64")}

OPEN_MPI_RUN = ("mpirun.openmpi", "-np", "{ranks}")
MPICH_RUN = ("mpirun.mpich", "-iface", "lo", "-np", "{ranks}")
MOVING = ("all_gather", "broadcast", "all_to_all_v")

# ruCCL's tensors; persistent ones are shared, and what is done with them was said once; those that
# are posted are shared, too, and go to the daemon however small they are
MEMORIES = {
    "shared": Contestant("ruccl shared", "ruccl", "shared"),
    "plain": Contestant("ruccl plain", "ruccl", "plain"),
    "persistent": Contestant(
        "ruccl persistent", "ruccl", "persistent", collectives=("all_reduce",)
    ),
    "posted": Contestant("ruccl posted", "ruccl", "posted", collectives=("all_reduce",)),
}
LIMIT = Contestant("limit", "limit")
PEERS = [
    Contestant("openmpi ob1 yield", "openmpi", "", OPEN_MPI_RUN, OPEN_MPI | OB1 | YIELD),
    Contestant("openmpi ob1 spin", "openmpi", "", OPEN_MPI_RUN, OPEN_MPI | OB1 | SPIN, spins=True),
    Contestant("openmpi ucx yield", "openmpi", "", OPEN_MPI_RUN, OPEN_MPI | PML_UCX | YIELD),
    Contestant(
        "openmpi ucx spin", "openmpi", "", OPEN_MPI_RUN, OPEN_MPI | PML_UCX | SPIN, spins=True
    ),
    Contestant("mpich", "mpich", "", MPICH_RUN, UCX | {"UCX_NET_DEVICES": "lo"}, spins=True),
    Contestant("gloo ring", "gloo", "ring", collectives=("all_reduce",)),
    Contestant("gloo ring chunked", "gloo", "ring_chunked", collectives=("all_reduce",)),
    Contestant("gloo bcube", "gloo", "bcube", collectives=("all_reduce",), two_powers=True),
    Contestant(
        "gloo halving doubling", "gloo", "halving_doubling", collectives=REDUCING, two_powers=True
    ),
    Contestant("gloo", "gloo", collectives=MOVING),
]


def bounded(contestant, budget):
    """ruCCL as `contestant`, under a budget of so many bytes."""
    return dataclasses.replace(
        contestant, name=f"{contestant.name} budget", environment={"BENCH_BUDGET": str(budget)}
    )


class Trouble(Exception):
    """Something that ends the run, in words for the user."""


def install():
    """Debian's packages of the comparators; asked for with --install only."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", *command], env=environment, check=True)


# ---------------------------------------------------------------- building


def recipes(build):
    """Program: the compiler, then the commands that make it in build/bench."""
    client = build / "client"
    common = [str(HERE / "bench.c"), "-pthread"]
    ruccl = [f"-L{client}", "-lruccl", f"-Wl,-rpath,{client}"]
    return {
        "ruccl": ["cc", *C_FLAGS, str(HERE / "ruccl.c"), *common, *ruccl],
        "limit": ["cc", *C_FLAGS, "-march=native", str(HERE / "limit.c"), *common],
        "openmpi": ["mpicc.openmpi", *C_FLAGS, str(HERE / "mpi.c"), *common],
        "mpich": ["mpicc.mpich", *C_FLAGS, str(HERE / "mpi.c"), *common],
        "bench.o": ["cc", *C_FLAGS, "-c", str(HERE / "bench.c")],
        "pidfd.so": ["cc", *C_FLAGS, "-fPIC", "-shared", str(HERE / "pidfd.c")],
        "gloo": ["c++", "-std=c++17", "-O3", str(HERE / "gloo.cc"), "bench.o", "-lgloo",
                 "-pthread"],
    }  # fmt: skip


def compile_programs(build):
    """Returns the names of those that could be built; ours have to be."""
    folder = build / "bench"
    folder.mkdir(exist_ok=True)
    sources = [*HERE.glob("*.c"), *HERE.glob("*.cc"), HERE / "bench.h", ROOT / "client/ruccl.h"]
    newest = max(path.stat().st_mtime for path in sources)
    built = set()

    for name, command in recipes(build).items():
        target = folder / name
        if target.exists() and target.stat().st_mtime > newest:
            built.add(name)
            continue
        if not shutil.which(command[0]):
            print(f"peers: no {command[0]}: {name} is left out; try --install", file=sys.stderr)
            continue
        done = subprocess.run([*command, "-o", name], cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            built.add(name)
            continue
        print(f"peers: {name} is left out; try --install\n{done.stderr}", file=sys.stderr)
    missing = {"ruccl", "limit"} - built
    if missing:
        raise Trouble(f"cannot build {' and '.join(sorted(missing))}")
    return built


# ---------------------------------------------------------------- running


def adopt_orphans():
    """Whatever a launcher leaves behind becomes a child of ours, and so can be found."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def end_process(process, seconds):
    """Asks first: launchers then end what they have launched."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(processes, seconds):
    """Until all have ended or one has failed: None or what went wrong."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        statuses = [process.poll() for process in processes]
        for status in statuses:
            if status not in (None, 0, UNSUPPORTED):
                return f"status {status}"
        if None not in statuses:
            return None
        time.sleep(0.02)
    return f"took more than {seconds:.1f} s"


class Daemon:
    """A private ruccld by a command of one's own, with its socket and its log in `folder`."""

    def __init__(self, command, folder):
        self.socket = folder / "ruccld.sock"
        self._log_path = folder / "ruccld.log"
        with open(self._log_path, "w") as log:
            self.process = subprocess.Popen(
                [*command, "--socket", str(self.socket)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait_until_ready(self):
        for _ in range(600):
            if self.socket.exists():
                return
            self.check()
            time.sleep(0.05)
        raise Trouble("ruccld does not start")

    def check(self):
        if self.process.poll() is not None:
            said = self._log_path.read_text(errors="replace").strip()[-MOST_SAID:]
            raise Trouble(f"ruccld ended with {self.process.returncode}: {said}")


def end_descendants(spare=()):
    """Ends, by pid, all that came of what we started."""
    while pids := set(descendants(os.getpid())) - set(spare):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):  # not yet ours
                os.waitpid(pid, 0)


class Arena:
    """A directory for whatever a run leaves, and the private daemons; for a `with`.

    It lies in /dev/shm, where peers want their shared memory to be.
    """

    def __init__(self, build, wrapper=(), options=()):
        self._build = build
        self._daemon_command = [*wrapper, str(build / "daemon/ruccld"), *options]
        self._daemons = []  # have a socket, a process, and check() that it lives

    def __enter__(self):
        adopt_orphans()
        self._spare = descendants(os.getpid())
        self._dir = tempfile.TemporaryDirectory(prefix="peers-", dir="/dev/shm")
        self.path = pathlib.Path(self._dir.name)
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._end_daemons()
        end_descendants(self._spare)
        self._dir.cleanup()

    def _open(self):
        self._daemons = [Daemon(self._daemon_command, self.path)]
        self._daemons[0].wait_until_ready()

    def _check_daemons(self):
        for daemon in self._daemons:
            daemon.check()

    def _end_daemons(self):
        for daemon in self._daemons:
            end_process(daemon.process, DAEMON_GRACE_SECONDS)
        self._daemons = []

    def _starts(self, contestant, layout, program, scratch):
        """What has to be started for all ranks: commands and what each has in its environment."""
        launcher = [word.format(ranks=layout.ranks) for word in contestant.launcher]
        yield [*launcher, *program], {"RUCCL_SOCKET": str(self._daemons[0].socket)}

    def run(self, contestant, collective, dtype, layout, budget, sizes, seconds, wrapper=()):
        """One start: the lines that it printed, and None or what went wrong."""
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.path) as scratch:
            environment = MALLOC | {
                "TMPDIR": scratch,
                "BENCH_BOARD": f"{scratch}/board",
                "BENCH_STORE": scratch,
                "OMPI_MCA_btl_vader_backing_directory": scratch,
                "UCX_POSIX_DIR": scratch,
            }
            program = [*wrapper, str(self._build / "bench" / contestant.program)]
            program += [collective, dtype, str(layout.ranks), budget, ",".join(map(str, sizes))]
            program += [contestant.setting] if contestant.setting else []
            starts = [
                (command, environment | contestant.environment | own)
                for command, own in self._starts(contestant, layout, program, scratch)
            ]
            return self._run(starts, seconds)

    def _run(self, starts, seconds):
        spare = descendants(os.getpid())
        # to files: a process left behind that holds a pipe would hold us up
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            processes = []
            try:
                for command, environment in starts:
                    processes.append(subprocess.Popen(
                        command, env=os.environ | environment, stdin=subprocess.DEVNULL,
                        stdout=out, stderr=err, start_new_session=True,
                    ))  # fmt: skip
                trouble = wait_for(processes, seconds)
            finally:
                for process in processes:
                    end_process(process, GRACE_SECONDS)
                end_descendants(spare)
            self._check_daemons()
            out.seek(0)
            err.seek(0)
            if trouble:
                trouble = f"{trouble}: {err.read().strip()[-MOST_SAID:]}"
            return out.read().splitlines(), trouble
