"""The connection to the node's daemon."""

import ctypes
import math
import operator
import threading
from ctypes import byref, c_void_p

from . import _library, dtypes, memory, tensors
from .communicator import forming, unsigned
from .dtypes import DType, numpy
from .errors import Closed, Code, Rejected, check
from .gate import Gate
from .work import SLICE_US, claim
from ._library import PENDING, lib


def connect(socket=None, *, name=None):
    """Connects to the daemon at `socket`, a path; returns a Connection, to be used in a `with`.

    socket  if None: $RUCCL_SOCKET, else /run/ruccl/ruccld.sock for root and
            $XDG_RUNTIME_DIR/ruccl/ruccld.sock for others
    name    shown by `rucclctl status`
    Errors: SYSTEM (nobody listens there), TIMEOUT (a daemon that hangs: it does not answer within
    10 s), VERSION, QUOTA.
    """
    handle = c_void_p()
    check(lib.ruccl_connect(_bytes(socket), _bytes(name), byref(handle)))
    return Connection(handle)


class Connection:
    """A connection to the daemon. Every method may be called from any thread.

    `with` leaves the communicators in good order at the end of the block and closes; an exception
    closes at once, and the other ranks are told that this one is lost.
    """

    def __init__(self, handle):
        self._handle = handle
        self._gate = Gate("the connection was closed")
        self._regions = memory.Regions(self._gate)
        self._members = set()
        self._dropped = []  # (handle, what it uses) of unfinished work that nobody waits for

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, traceback):
        try:
            if exception is None:
                for member in list(self._members):
                    member.leave()
        finally:
            self.close()

    def close(self):
        """Ends the connection; communicators not left count as lost to their other members.

        Unfinished work ends with Closed. Arrays made by empty() remain, as ordinary memory. Closing
        twice does nothing.
        """
        if self._gate.shut():
            lib.ruccl_close(self._handle)
            self._members.clear()
            self._dropped.clear()

    def __del__(self):
        if hasattr(self, "_dropped"):
            self.close()

    def empty(self, shape, dtype="f32"):
        """An array in shared memory, which collectives use where it is; zero at first.

        shape   an integer or a sequence of them
        dtype   a DType, its name, or a numpy type; bf16 and the like are stored in unsigned words
        Returns a numpy array, or a memoryview where numpy is missing. Each call makes a mapping of
        whole pages: make a large array and slice it rather than many small ones.
        Errors: QUOTA, NO_MEMORY.
        """
        shape = tuple(map(operator.index, shape)) if hasattr(shape, "__iter__") else (shape,)
        if any(axis < 0 for axis in shape):
            raise Rejected(Code.INVALID_SHAPE, f"a shape of {shape} has a negative axis")
        storage, width = _storage(dtype)
        size = math.prod(shape) * width
        pages = self._regions.allocate(self._handle, size) if size else bytearray()
        return tensors.view_of(pages, storage, shape)

    def register_cuda(self, pointer, nbytes):
        """Registers memory of a GPU: `nbytes` from a device pointer on, of any kind.

        Arrays in it may be passed to collectives from now on. Returns a CudaMemory, to be released
        before the memory is freed; as a `with`, at its end.
        Errors: INVALID_ARGUMENT (not a GPU's memory), OUT_OF_RANGE, NOT_FOUND (no driver, or a daemon
        that uses no GPU), QUOTA.
        """
        return self._regions.register_cuda(self._handle, pointer, nbytes)

    def new_id(self):
        """A fresh communicator id, a str to hand to every rank by whatever means.

        Good for one communicator; lapses if nobody has joined within ten minutes. Ranks of other
        nodes can join by it where the daemon listens to them.
        Errors: QUOTA, TIMEOUT (a daemon that hangs, as in connect()).
        """
        text = ctypes.create_string_buffer(_library.ID_BYTES)
        with self._gate:
            check(lib.ruccl_new_id(self._handle, text))
        return text.value.decode()

    def drop_id(self, id):
        """Gives an unused id back at once. Errors: NOT_FOUND, and TIMEOUT as new_id()."""
        with self._gate:
            check(lib.ruccl_drop_id(self._handle, id.encode()))

    def join(self, id, rank, world_size, *, label=None, timeout=300.0, algorithm=None):
        """Joins as `rank` of `world_size`; returns a Communicator once all ranks have joined.

        label       shown by rucclctl and in errors, at most 63 bytes
        timeout     seconds for the join and for each operation, from its first rank's arrival on
                    the node; None for none. Kept by the daemon: one that hangs keeps its ranks
                    waiting until it goes on or is killed. The same for every rank, as is
        algorithm   forced by name: "hierarchical" on one node; "direct", "pairwise",
                    "halving-doubling", "tree" or "ring" between nodes. None: the cheapest that fits
        Errors: NOT_FOUND, DUPLICATE_RANK, MISMATCH, TIMEOUT (naming who is missing), PERMISSION,
        QUOTA.
        """
        work = self.join_async(
            id, rank, world_size, label=label, timeout=timeout, algorithm=algorithm
        )
        return work.wait()

    def join_async(self, id, rank, world_size, *, label=None, timeout=300.0, algorithm=None):
        """As join(), but returns a Work at once: several ranks of one thread join, then wait."""
        options = _library.JoinOptions(_bytes(label), _timeout_us(timeout), _bytes(algorithm))
        raw, handle = _library.Comm(), c_void_p()
        ranks = unsigned(rank, "rank"), unsigned(world_size, "world_size")
        with self._gate:
            check(
                lib.ruccl_join_async(
                    self._handle, id.encode(), *ranks, byref(options), byref(raw), byref(handle)
                )
            )
        return forming(self, raw, handle)

    # ------------------------------------------------------------------ a program's own loop

    def fileno(self):
        """A descriptor that is readable when dispatch() has something to do."""
        with self._gate:
            return check(lib.ruccl_fd(self._handle))

    def dispatch(self):
        """Takes in what the daemon has sent; never waits. Raises DaemonLost once it is gone."""
        with self._gate:
            check(lib.ruccl_dispatch(self._handle))

    # ------------------------------------------------------------------ dropped work

    def _adopt(self, handle, keep):
        """Keeps what unfinished work uses after its Work is gone. Called inside the gate."""
        self._dropped.append((handle, keep))

    def _attend(self, owned, keep):
        """Waits, in a thread of its own, for dropped work that only goes on while somebody does:
        other ranks wait for it too. Takes the handle out of `owned`."""
        threading.Thread(target=self._wait_for, args=(owned, keep), daemon=True).start()

    def _wait_for(self, owned, keep):
        handle = claim(owned)
        pending = bool(handle)
        try:
            while pending:
                with self._gate:
                    pending = lib.ruccl_work_wait(handle, SLICE_US) == PENDING
                    if not pending:
                        lib.ruccl_work_release(handle)
        except Closed:
            pass  # close() has released it

    def _sweep(self):
        """Lets go of dropped work that is done by now. Called inside the gate."""
        for _ in range(len(self._dropped)):
            handle, keep = self._dropped.pop()
            if lib.ruccl_work_test(handle) == PENDING:
                self._dropped.insert(0, (handle, keep))
            else:
                lib.ruccl_work_release(handle)


def _bytes(text):
    return None if text is None else str(text).encode()


def _timeout_us(seconds):
    if seconds is None:
        return _library.NO_TIMEOUT
    if not 0 < seconds < 2**63 / 1e6:
        raise Rejected(
            Code.INVALID_ARGUMENT, f"timeout is {seconds} s: it has to be above 0, or None for none"
        )
    return max(1, round(seconds * 1e6))


def _storage(dtype):
    """What an array of `dtype` is made with, and the bytes of an element."""
    wanted = dtypes.dtype_of(dtype)
    if numpy is None:
        return wanted.format, wanted.width
    if not isinstance(dtype, (str, DType)):
        return numpy.dtype(dtype), wanted.width
    return dtypes.numpy_storage(wanted), wanted.width
