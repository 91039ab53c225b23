"""What the Python tests stand on: a daemon of their own, and processes that play the ranks."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import tempfile
import time
import traceback

import ruccl

PROCESSES = multiprocessing.get_context("spawn")
ANSWER_SECONDS = 30
OPERATION_SECONDS = 15  # less: what hangs is to end with an error that says why


class Daemon:
    """A ruccld, from $RUCCLD, on a socket in a temporary directory."""

    def __init__(self):
        self._dir = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self._dir.name, "ruccld.sock")
        self._process = subprocess.Popen([os.environ["RUCCLD"], "--socket", self.socket])
        deadline = time.monotonic() + 20
        while True:
            try:
                ruccl.connect(self.socket).close()
                return
            except ruccl.Error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.kill()
                    raise
            time.sleep(0.02)

    def stop(self):
        """Returns the exit status of a daemon that was asked to end."""
        self._process.terminate()
        status = self._process.wait(timeout=20)
        self._dir.cleanup()
        return status

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._dir.cleanup()


class Ranks:
    """Processes that stay, each with a connection, and run functions as ranks of a communicator."""

    def __init__(self, socket, count):
        self._socket = socket
        self._workers = self._start(count)

    def _start(self, count):
        """All at once, and none is asked anything before all are there."""
        workers = [_Worker(self._socket) for _ in range(count)]
        for worker in workers:
            worker.answer()
        return workers

    def run(self, world_size, function, *arguments, **join):
        """Calls function(connection, communicator, *arguments) on that many ranks.

        Returns what each returned, or the exception it raised, if that is a ruccl.Error or None if
        the process is gone. Any other exception fails the test.
        """
        with ruccl.connect(self._socket) as connection:
            id = connection.new_id()
        workers = self._workers[:world_size]
        join = {"timeout": OPERATION_SECONDS, "label": "test", **join}
        for rank, worker in enumerate(workers):
            worker.ask((function, id, rank, world_size, join, arguments))
        try:
            return [worker.answer() for worker in workers]
        except AssertionError:
            self.close()  # they may be anywhere; the next test is not to suffer
            self._workers = self._start(len(self._workers))
            raise

    def close(self):
        for worker in self._workers:
            worker.close()


class _Worker:
    def __init__(self, socket):
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_work, args=(socket, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, job):
        self._pipe.send(job)

    def answer(self):
        try:
            if not self._pipe.poll(ANSWER_SECONDS):
                raise AssertionError(f"a rank has not answered for {ANSWER_SECONDS} s")
            kind, value = self._pipe.recv()
        except EOFError:
            return None
        if kind == "failed":
            raise AssertionError(value)
        return value

    def close(self):
        self._pipe.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(socket, pipe):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ruccl.connect(socket, name="test_python") as connection:
        pipe.send(("value", "here"))
        while True:
            try:
                job = pipe.recv()
            except EOFError:
                return
            pipe.send(_answer(connection, *job))


def _answer(connection, function, id, rank, world_size, join, arguments):
    try:
        communicator = connection.join(id, rank, world_size, **join)
        try:
            value = "value", function(connection, communicator, *arguments)
        except ruccl.Error as error:
            value = "value", error
        communicator.leave()
        pickle.dumps(value)
        return value
    except Exception:
        return "failed", f"rank {rank}: {traceback.format_exc()}"
