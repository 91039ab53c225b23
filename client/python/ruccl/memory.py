"""Memory that the daemon maps too: arrays in it are never copied.

A shared array is a view of a Python mmap of a sealed memfd. The library keeps a mapping of its own, so an
array outlives its connection as ordinary memory, and the daemon's share goes with the array.
"""

import bisect
import ctypes
import errno
import fcntl
import mmap
import os
import threading
import weakref
from ctypes import c_char, c_void_p

from .errors import Closed, Code, Error, check
from ._library import lib

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE = 23  # from linux/mman.h; the mmap module has no name for it


class _Region:
    __slots__ = ("start", "end", "handle")

    def __init__(self, start, end, handle):
        self.start = start
        self.end = end
        self.handle = handle


class Regions:
    """The shared memory of one connection, found again by address."""

    def __init__(self, gate):
        self._gate = gate
        self.has_cuda = False  # some memory of a GPU was registered
        self._lock = threading.Lock()
        self._by_start = {}
        self._starts = None  # the keys in order; None once they have changed

    def allocate(self, connection, nbytes):
        """A new zeroed mapping of at least `nbytes` > 0 bytes, known to the daemon."""
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memfd = os.memfd_create("ruccl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memfd, nbytes)
            fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(memfd, nbytes)
            _populate(memory)
            handle = c_void_p()
            with self._gate:
                check(lib.ruccl_register(connection, memfd, nbytes, ctypes.byref(handle)))
        finally:
            os.close(memfd)

        start = ctypes.addressof(c_char.from_buffer(memory))
        with self._lock:
            self._by_start[start] = _Region(start, start + nbytes, handle)
            self._starts = None
        # Before the mapping goes, so that nobody else's memory can be at the address by then.
        weakref.finalize(memory, self._release, start).atexit = False
        return memory

    def find(self, address, nbytes):
        """The region handle and byte offset of a range of memory, or None if it is not shared."""
        starts = self._starts
        if starts is None:
            with self._lock:
                starts = self._starts = sorted(self._by_start)
        index = bisect.bisect_right(starts, address) - 1
        region = self._by_start.get(starts[index]) if index >= 0 else None
        if region is None or address + nbytes > region.end:
            return None
        return region.handle, address - region.start

    def register_cuda(self, connection, pointer, nbytes):
        """Memory of a GPU, which the library finds again by itself."""
        handle = c_void_p()
        with self._gate:
            check(lib.ruccl_register_cuda(connection, pointer, nbytes, ctypes.byref(handle)))
        self.has_cuda = True
        return CudaMemory(self._gate, handle)

    def _release(self, start):
        # Takes no lock: the collector may call this in the middle of anything. A start that stays
        # in the ordered keys finds nothing in the dictionary, which is right.
        region = self._by_start.pop(start)
        self._starts = None
        try:
            with self._gate:
                lib.ruccl_release(region.handle)
        except Closed:
            pass  # close() has released it


class CudaMemory:
    """Memory of a GPU that is registered with a connection, until release() or its close.

    staged  whether the daemon cannot share it, so that calls copy it through host memory
    """

    def __init__(self, gate, handle):
        self._gate = gate
        self._handle = handle
        self.staged = bool(lib.ruccl_region_is_staged(handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, traceback):
        self.release()

    def release(self):
        """The memory may be freed afterwards, if no work uses it. Releasing twice does nothing."""
        handle, self._handle = self._handle, None
        try:
            with self._gate:
                lib.ruccl_release(handle)
        except Closed:
            pass  # close() has released it


def _populate(memory):
    """Backs memory with pages now, where a lack of them is an error and not yet a signal."""
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # that is a kernel before 5.14
            raise Error(Code.NO_MEMORY, f"empty: {len(memory)} bytes: {error.strerror}") from error
