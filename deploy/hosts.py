"""Several hosts on one machine, for a demonstration and for tests.

A host is a namespace of network, host name and mounts (/sys shows its own interfaces). Cables lead
from each to a switch, a bridge in one more namespace, so that the machine's own network sees
nothing of them. None has a name outside: each lives by a process that waits for this one, and is
gone when this one is, whatever ends it.

    with Hosts(2) as hosts:
        daemons = [Daemon(host, directory, key) for host in hosts]

Needs root, iproute2 and util-linux; nftables to lose packets. reason_not() says what is missing.
"""

import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid

SOURCE = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("RUCCL_BUILD", SOURCE / "build"))
PORT = 7777  # where daemons await each other

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux",
         "taskset": "util-linux", "setpriv": "util-linux", "mount": "mount"}  # fmt: skip
CLONE_NEWNET = 0x40000000
CONGESTION = "cubic"  # what most machines use, whatever this one does
SECONDS = 20  # nothing here takes longer
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", "")


def reason_not(*more_tools):
    """Why there can be no hosts here, or None. `more_tools`: "nft", to lose packets."""
    if os.geteuid():
        return "namespaces of networks need root"
    packages = TOOLS | {"nft": "nftables"}
    for tool in (*TOOLS, *more_tools):
        if not shutil.which(tool, path=_PATH):
            return f"{tool} is missing: install {packages[tool]}"
    try:
        Hosts(1).close()
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        return f"no hosts can be made here: {error}"
    return None


def _run(command):
    """Runs a command that has to succeed; returns what it printed to standard output."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS,
        env=os.environ | {"PATH": _PATH},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


class _Namespace:
    """One that lives as long as a process that waits for the end of its input."""

    MAKE = (
        'mount -t sysfs sysfs /sys && echo "$1" >/proc/sys/kernel/hostname && ip link set lo up &&'
        " echo made && exec cat"
    )

    def __init__(self, name, cpus=None):
        self.name = name
        self._bound = ["taskset", "--cpu-list", cpus] if cpus else []
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--", "sh", "-c", self.MAKE, "sh", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PATH": _PATH},
        )  # fmt: skip
        if self._holder.stdout.readline() != b"made\n":
            self._holder.stdin.close()
            self._holder.wait()
            with self._holder.stdout, self._holder.stderr:
                raise RuntimeError(self._holder.stderr.read().decode().strip())
        self.pid = self._holder.pid
        self._network = os.stat(f"/proc/{self.pid}/ns/net").st_ino

    def enter(self, *command):
        """The command that runs `command` in here."""
        return [
            "nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--wd", "--",
            *self._bound, *map(str, command),
        ]  # fmt: skip

    def run(self, *command):
        """Runs a command in here that has to succeed; returns what it printed."""
        return _run(self.enter(*command))

    def processes(self):
        """Everyone in here but the holder, by process id."""
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != self.pid:
                    if os.stat(entry / "ns/net").st_ino == self._network:
                        yield int(entry.name)

    def close(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()
        self._holder.stderr.close()


class Host(_Namespace):
    """A host with one interface, eth0; processes on it end with this one."""

    def __init__(self, number, switch, cpus=None):
        super().__init__(f"host{number}", cpus)
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self._switch, self._port = switch, f"port{number}"
        self._started = []
        try:
            self._connect()
        except Exception:
            self.close()
            raise

    def _connect(self):
        port = self._port
        self._switch.run("ip", "link", "add", "name", port, "type", "veth",
                         "peer", "name", "eth0", "netns", self.pid)  # fmt: skip
        self._switch.run("ip", "link", "set", port, "master", "switch", "up")
        for flags in (["noprefixroute"], ["noprefixroute", "nodad"]):
            address = f"{self.address6}/64" if "nodad" in flags else f"{self.address}/24"
            self.run("ip", "address", "add", address, "dev", "eth0", *flags)
        self.run("ip", "link", "set", "eth0", "up")
        # by route: a namespace may not choose for itself what its machine restricts
        for prefix in ("10.77.0.0/24", "fd77::/64"):
            self.run("ip", "route", "add", prefix, "dev", "eth0", "congctl", CONGESTION)

    def start(self, *command, **options):
        """A subprocess.Popen of the command; closing the host kills it."""
        process = subprocess.Popen(
            self.enter("setpriv", "--pdeathsig", "KILL", "--", *command), **options
        )
        self._started.append(process)
        return process

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """A socket that is this process's, in the network of the host."""
        made = []

        def make():
            libc = ctypes.CDLL(None, use_errno=True)
            network = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(network, CLONE_NEWNET) == 0:
                    made.append(socket.socket(family, kind))
            finally:
                os.close(network)

        thread = threading.Thread(target=make)  # what it enters it alone is in
        thread.start()
        thread.join()
        if not made:
            raise RuntimeError(f"cannot make a socket on {self.name}")
        return made[0]

    def limit(self, rate):
        """To so much ("100mbit") in each direction; None: no limit, and no delay."""
        for place, interface in ((self, "eth0"), (self._switch, self._port)):
            if rate is not None:
                place.run("tc", "qdisc", "replace", "dev", interface, "root",
                          "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")  # fmt: skip
            elif "noqueue" not in place.run("tc", "qdisc", "show", "dev", interface):
                place.run("tc", "qdisc", "del", "dev", interface, "root")

    def lose(self, percent):
        """Loses that share of the packets that come in; 0: none any more."""
        with contextlib.suppress(RuntimeError):
            self.run("nft", "delete", "table", "inet", "loss")
        if percent == 0:
            return
        self.run("nft", "add", "table", "inet", "loss")
        self.run("nft", "add", "chain", "inet", "loss", "input",
                 "{ type filter hook input priority 0; }")  # fmt: skip
        self.run("nft", "add", "rule", "inet", "loss", "input", "iifname", "eth0",
                 f"numgen random mod 1000 < {round(10 * percent)} counter drop")  # fmt: skip

    def lost(self):
        """Packets lost so far by lose()."""
        listed = json.loads(self.run("nft", "-j", "list", "table", "inet", "loss"))["nftables"]
        rules = [entry["rule"]["expr"] for entry in listed if "rule" in entry]
        return sum(e["counter"]["packets"] for rule in rules for e in rule if "counter" in e)

    def delay(self, milliseconds):
        """Delays what is sent; returns whether this kernel can (it needs netem)."""
        try:
            self.run("tc", "qdisc", "replace", "dev", "eth0", "root",
                     "netem", "delay", f"{milliseconds}ms")  # fmt: skip
        except RuntimeError:
            return False
        return True

    def cut(self):
        """As if its cable were pulled at the switch."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def heal(self):
        self._switch.run("ip", "link", "set", self._port, "up")

    def close(self):
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        super().close()


class Hosts:
    """Hosts host1, host2, ... with the addresses 10.77.0.1, fd77::1, and so on. `cpus` ("0-1"): for
    each the CPUs that it has; None: all have all."""

    def __init__(self, count, cpus=None):
        self._hosts = []
        self._switch = _Namespace("switch")
        atexit.register(self.close)
        try:
            self._switch.run("ip", "link", "add", "name", "switch", "type", "bridge")
            self._switch.run("ip", "link", "set", "switch", "up")
            for number in range(1, count + 1):
                self._hosts.append(Host(number, self._switch, cpus and cpus[number - 1]))
        except Exception:
            self.close()
            raise

    def close(self):
        atexit.unregister(self.close)
        while self._hosts:
            self._hosts.pop().close()
        if self._switch:
            self._switch.close()
            self._switch = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __getitem__(self, index):
        return self._hosts[index]

    def __len__(self):
        return len(self._hosts)


# ---------------------------------------------------------------- daemons on hosts


def new_key(path):
    """Makes a cluster key that only the owner of the file can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path


class Daemon:
    """The ruccld of a host, out of a build directory, which awaits others at PORT. What belongs to
    it lies in `directory`."""

    def __init__(self, host, directory, key=None, build=BUILD, **settings):
        self.host = host
        self._ruccld = build / "daemon/ruccld"
        self._rucclctl = build / "client/ctl/rucclctl"
        self.socket = pathlib.Path(directory) / f"{host.name}.sock"
        self.log_path = pathlib.Path(directory) / f"{host.name}.log"
        self.settings = {
            "listen": f"{host.address}:{PORT}",
            "cluster_key": key,
            "node": uuid.uuid4(),  # the hosts share the machine's id
        } | settings
        self.process = None
        self.start()

    def start(self):
        """Returns once it answers."""
        settings = [f"--set={k}={v}" for k, v in self.settings.items() if v is not None]
        with open(self.log_path, "ab") as log:
            self.process = self.host.start(
                self._ruccld, "--socket", self.socket, *settings,
                stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            self.check()
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ruccld on {self.host.name} does not answer:\n{self.log()}")
            time.sleep(0.02)

    def check(self):
        """Raises, with what it said, if it has ended by itself."""
        if self.process.poll() is not None:
            status = self.process.returncode
            raise RuntimeError(f"ruccld on {self.host.name} ended with {status}:\n{self.log()}")

    def stop(self):
        """Returns the exit status of a daemon that was asked to end."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def control(self, *arguments):
        """What rucclctl prints."""
        return _run([self._rucclctl, *arguments, "--socket", self.socket])

    def log(self):
        return self.log_path.read_text(errors="replace")

    def _answers(self):
        try:
            self.control("status")
        except RuntimeError:
            return False
        return True
