"""Tickets for operations that were started and go on by themselves."""

import ctypes
import threading
import time
from ctypes import c_uint64
from typing import NamedTuple

from . import _library
from .errors import Closed, check, last_error
from ._library import PENDING, lib

# A signal handler, Ctrl-C's too, runs between two calls of the library: no call may wait for long.
SLICE_US = 100_000


class Progress(NamedTuple):
    """How far an operation is. Chunks are rounds for all_to_all_v, and rows are only its."""

    elements_done: int
    elements_total: int
    chunks_done: int
    chunks_total: int
    rows_sent: int
    rows_to_send: int
    rows_received: int
    rows_to_receive: int


class Stats(NamedTuple):
    """What a finished operation took.

    sequence        its number in its communicator; 0 for send and recv
    wait_us         microseconds from this rank's arrival until all ranks agreed
    run_us          microseconds from then until the last byte was written
    chunks          how many
    chunk_elements  elements of a full one; rows for all_to_all_v
    peak_bytes      most tensor bytes in flight on this node outside inputs and outputs; never above
                    the budget
    algorithm       its name, as join() takes it, or "slate": without the daemon
    """

    sequence: int
    wait_us: int
    run_us: int
    chunks: int
    chunk_elements: int
    peak_bytes: int
    algorithm: str


class Work:
    """An operation under way, as the ..._async calls return it.

    It holds the arrays of the operation. Inputs may be changed, and outputs read, once it is done.
    Dropping it lets the operation go on by itself.
    """

    def __init__(
        self, connection, handle, *, keep=(), finish=None, undo=None, world_size=0, attended=False
    ):
        """finish(work) makes the result of a success, undo() tidies up after a failure.

        handle      a c_void_p, in which the operation's may be put later
        attended    it only goes on while somebody waits for it, or tests it
        """
        self._connection = connection
        self._handle = handle
        self._owned = [handle]  # empty once it was let go of
        self._keep = keep
        self._finish = finish
        self._undo = undo
        self._world_size = world_size
        self._attended = attended
        self._lock = threading.Lock()
        self._done = False
        self._failure = None
        self._result = None

    def test(self):
        """Whether the operation is done. Raises its Error if it failed; does not wait for it."""
        if not self._done:
            with self._connection._gate:
                self._settle(lib.ruccl_work_test(self._handle))
        if self._done:
            self._outcome()
        return self._done

    def wait(self, timeout=None):
        """Waits for the end, at most `timeout` seconds; returns what the blocking call returns.

        Raises the operation's Error if it failed, and TimeoutError if it is not done in time, in
        which case it goes on and may be waited for again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            left_us = SLICE_US
            if deadline is not None:
                left_us = min(left_us, max(0, int((deadline - time.monotonic()) * 1e6)))
            with self._connection._gate:
                self._settle(lib.ruccl_work_wait(self._handle, left_us))
            if left_us == 0 and not self._done:
                raise TimeoutError(f"the operation is not done after {timeout} s; it goes on")
        return self._outcome()

    @property
    def result(self):
        """What wait() returns; None while the operation is not done, or if it failed."""
        return self._result

    def progress(self):
        """A Progress, at any time: a read of shared memory, no message."""
        progress = _library.Progress()
        with self._connection._gate:
            check(lib.ruccl_work_progress(self._handle, ctypes.byref(progress)))
        return Progress(*(getattr(progress, name) for name in Progress._fields))

    def stats(self):
        """A Stats, once the operation is done."""
        stats = _library.Stats()
        with self._connection._gate:
            check(lib.ruccl_work_stats(self._handle, ctypes.byref(stats)))
        fields = {name: getattr(stats, name) for name in Stats._fields}
        return Stats(**{**fields, "algorithm": stats.algorithm.decode()})

    def receive_counts(self):
        """all_to_all_v, once done: the rows received from each rank, a list."""
        counts = (c_uint64 * self._world_size)()
        with self._connection._gate:
            check(lib.ruccl_work_receive_counts(self._handle, counts))
        return list(counts)

    def _settle(self, code):
        if code == PENDING:
            return
        failure = last_error(code) if code < 0 else None
        with self._lock:
            if self._done:
                return
            if failure is None and self._finish is not None:
                self._result = self._finish(self)
            self._failure = failure
            self._done = True
        if failure is not None and self._undo is not None:
            self._undo()
        self._keep = self._finish = self._undo = None

    def _outcome(self):
        if self._failure is not None:
            raise self._failure
        return self._result

    def drop(self):
        """Lets go: an unfinished operation goes on by itself. The last call."""
        try:
            if self._attended and not self._done and self._is_under_way():
                self._connection._attend(self._owned, self._keep)
                return
        except Closed:
            return  # close() has released it
        except BaseException:
            self._let_go()  # nobody attends it
            raise
        self._let_go()

    def _is_under_way(self):
        with self._connection._gate:
            return bool(self._handle) and lib.ruccl_work_test(self._handle) == PENDING

    def _let_go(self):
        """What is attended and under way is aborted by this."""
        if not self._owned:
            return
        try:
            with self._connection._gate:
                handle = claim(self._owned)
                if not handle:
                    return
                if self._attended or self._done or lib.ruccl_work_test(handle) != PENDING:
                    lib.ruccl_work_release(handle)
                else:
                    self._connection._adopt(handle, self._keep)
        except Closed:
            pass  # close() has released it

    def __del__(self):
        if hasattr(self, "_failure"):
            self._let_go()


def claim(owned):
    """The handle that whoever comes first is to let go of; None for the others."""
    try:
        return owned.pop()
    except IndexError:
        return None
