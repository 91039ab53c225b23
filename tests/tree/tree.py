"""What the tests of the tree stand on: where things lie, and a daemon of one's own."""

import os
import pathlib
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RUCCL_BUILD", SOURCE / "build"))
SKIP = 77  # exit status that meson takes for "skipped"

RUCCLD = BUILD / "daemon/ruccld"
RUCCLCTL = BUILD / "client/ctl/rucclctl"
RUCCL_PERF = BUILD / "client/perf/ruccl-perf"
LIBRUCCL = BUILD / "client/libruccl.so.0"
EXAMPLE = BUILD / "deploy/all_reduce"


def run(*command, **options):
    """Runs a command that has to succeed; returns what it printed to standard output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise AssertionError(
            f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def environment(**variables):
    """Ours without what is about ruCCL and Python, and with `variables`."""
    ours = ("RUCCL", "PYTHON")
    other = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return other | {key: str(value) for key, value in variables.items()}


class Daemon:
    """A daemon in a directory of its own, for a `with`; stopping well is part of the test."""

    def __init__(self, *command, start_seconds=30, stop_seconds=30):
        self._command = [str(word) for word in command or (RUCCLD,)]
        self._start_seconds, self._stop_seconds = start_seconds, stop_seconds

    def __enter__(self):
        self._dir = tempfile.TemporaryDirectory(prefix="ruccl-")
        self.dir = pathlib.Path(self._dir.name)
        self.socket = self.dir / "ruccld.sock"
        self._log = open(self.dir / "log", "w+")
        self._process = subprocess.Popen(
            [*self._command, "--socket", str(self.socket)], env=environment(), stderr=self._log
        )
        deadline = time.monotonic() + self._start_seconds
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"the daemon does not answer; it said:\n{self.log()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        try:
            status = self._process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        log = self.log()
        self._log.close()
        self._dir.cleanup()
        if status and exception == (None, None, None):
            raise AssertionError(f"the daemon ended with status {status}; it said:\n{log}")

    def environment(self, **variables):
        return environment(RUCCL_SOCKET=self.socket, **variables)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def _answers(self):
        asked = subprocess.run(
            [RUCCLCTL, "status", "--socket", self.socket], env=environment(), capture_output=True
        )
        return asked.returncode == 0
