"""The C library: the structures and functions of ruccl.h, declared once.

libruccl.so.0 is taken from $RUCCL_LIBRARY, or from the build directory if this is a source tree, or
from where the system's loader looks. ctypes releases the interpreter's lock during every call.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_uint32
from ctypes import c_uint64, c_void_p

PENDING = 1
MAX_AXES = 8
ID_BYTES = 129
NO_BUDGET = 2**64 - 1
NO_TIMEOUT = 0
COLOR_NONE = -1


class Error(Structure):
    _fields_ = [
        ("code", c_int),
        ("nranks", c_uint32),
        ("ranks", c_uint32 * 32),
        ("text", c_char * 512),
    ]


class Tensor(Structure):
    _fields_ = [
        ("dtype", c_int),
        ("naxes", c_uint32),
        ("shape", c_uint64 * MAX_AXES),
        ("region", c_void_p),
        ("offset", c_uint64),
        ("data", c_void_p),
    ]


class Comm(Structure):
    _fields_ = [
        ("member", c_void_p),
        ("max_chunk_bytes", c_uint64),
        ("stream", c_void_p),
        ("attended", c_uint32),
    ]


class JoinOptions(Structure):
    _fields_ = [("label", c_char_p), ("timeout_us", c_uint64), ("algorithm", c_char_p)]


class Progress(Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            "elements_done", "elements_total", "chunks_done", "chunks_total",
            "rows_sent", "rows_to_send", "rows_received", "rows_to_receive",
        )
    ]  # fmt: skip


class Stats(Structure):
    _fields_ = [
        (name, c_uint64)
        for name in ("sequence", "wait_us", "run_us", "chunks", "chunk_elements", "peak_bytes")
    ] + [("algorithm", c_char * 24)]


# The kinds of argument, named as a collective's refusal needs to tell them apart.
TENSOR = POINTER(Tensor)
COUNTS = POINTER(c_uint64)
OP = c_int
RANK = c_uint32
WORK = POINTER(c_void_p)
_HANDLE = POINTER(c_void_p)

_FUNCTIONS = {
    "ruccl_last_error": (POINTER(Error), []),
    "ruccl_code_name": (c_char_p, [c_int]),
    "ruccl_version": (c_char_p, []),
    "ruccl_connect": (c_int, [c_char_p, c_char_p, _HANDLE]),
    "ruccl_close": (None, [c_void_p]),
    "ruccl_fd": (c_int, [c_void_p]),
    "ruccl_dispatch": (c_int, [c_void_p]),
    "ruccl_register": (c_int, [c_void_p, c_int, c_uint64, _HANDLE]),
    "ruccl_register_cuda": (c_int, [c_void_p, c_void_p, c_uint64, _HANDLE]),
    "ruccl_region_is_staged": (c_int, [c_void_p]),
    "ruccl_release": (None, [c_void_p]),
    "ruccl_new_id": (c_int, [c_void_p, c_char_p]),
    "ruccl_drop_id": (c_int, [c_void_p, c_char_p]),
    "ruccl_join_async": (c_int, [c_void_p, c_char_p, RANK, c_uint32, POINTER(JoinOptions),
                                 POINTER(Comm), WORK]),
    "ruccl_split_async": (c_int, [Comm, c_int32, c_int32, POINTER(Comm), WORK]),
    "ruccl_leave": (c_int, [Comm]),
    "ruccl_abort": (c_int, [Comm, c_char_p]),
    "ruccl_rank": (c_uint32, [Comm]),
    "ruccl_world_size": (c_uint32, [Comm]),
    "ruccl_id": (c_char_p, [Comm]),
    "ruccl_work_test": (c_int, [c_void_p]),
    "ruccl_work_wait": (c_int, [c_void_p, c_int64]),
    "ruccl_work_progress": (c_int, [c_void_p, POINTER(Progress)]),
    "ruccl_work_stats": (c_int, [c_void_p, POINTER(Stats)]),
    "ruccl_work_receive_counts": (c_int, [c_void_p, COUNTS]),
    "ruccl_work_release": (None, [c_void_p]),
    "ruccl_all_reduce_async": (c_int, [Comm, TENSOR, TENSOR, OP, WORK]),
    "ruccl_all_gather_async": (c_int, [Comm, TENSOR, TENSOR, WORK]),
    "ruccl_reduce_scatter_async": (c_int, [Comm, TENSOR, TENSOR, OP, WORK]),
    "ruccl_broadcast_async": (c_int, [Comm, TENSOR, TENSOR, RANK, WORK]),
    "ruccl_reduce_async": (c_int, [Comm, TENSOR, TENSOR, OP, RANK, WORK]),
    "ruccl_gather_async": (c_int, [Comm, TENSOR, TENSOR, RANK, WORK]),
    "ruccl_scatter_async": (c_int, [Comm, TENSOR, TENSOR, RANK, WORK]),
    "ruccl_all_to_all_async": (c_int, [Comm, TENSOR, TENSOR, WORK]),
    "ruccl_all_to_all_v_async": (c_int, [Comm, TENSOR, COUNTS, TENSOR, COUNTS, WORK]),
    "ruccl_barrier_async": (c_int, [Comm, WORK]),
    "ruccl_send_async": (c_int, [Comm, TENSOR, RANK, c_uint32, WORK]),
    "ruccl_recv_async": (c_int, [Comm, TENSOR, RANK, c_uint32, WORK]),
}  # fmt: skip


def _path():
    chosen = os.environ.get("RUCCL_LIBRARY")
    if chosen:
        return chosen
    root = pathlib.Path(__file__).resolve().parents[3]
    built = root / "build" / "client" / "libruccl.so.0"
    if (root / "client" / "ruccl.h").exists() and built.exists():
        return str(built)
    return "libruccl.so.0"


def _load():
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"the ruCCL library cannot be loaded ({error}); install it, or set RUCCL_LIBRARY to the"
            " path of libruccl.so.0"
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(
                f"{path} is not the ruCCL library that this package goes with: it has no {name}()"
            ) from error
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()
