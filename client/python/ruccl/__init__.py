"""ruCCL: collective communication through the node's daemon, ruccld.

    import ruccl

    with ruccl.connect(name="trainer") as conn:
        comm = conn.join(id, rank, world_size)
        gradient = conn.empty(4096, "f32")      # shared memory: never copied
        ...
        comm.all_reduce(gradient, op="mean")    # in place; comm.all_reduce_async() returns a Work
        comm.bounded(1 << 20).all_reduce(gradient, op="mean")  # the same bits in 1 MiB chunks
        comm.leave()

One rank makes the id with conn.new_id() and hands it to the others by whatever means. Ranks may be
on several nodes, each connected to its own node's daemon; no call differs. Failures are subclasses
of ruccl.Error that say what is still of use; see ruccl.errors. Every function may be called from
any thread, and lets other Python threads run while it waits. After a fork the child may only close
its connections.
"""

from ._library import lib as _lib
from .communicator import Communicator
from .connection import Connection, connect
from .dtypes import DType, Op
from .errors import (
    Aborted,
    BudgetTooSmall,
    CapacityTooSmall,
    Closed,
    Code,
    CommunicatorFailed,
    ConnectionFailed,
    DaemonLost,
    DaemonStopping,
    Error,
    Mismatch,
    RankLeft,
    RankLost,
    Rejected,
    Timeout,
)
from .work import Progress, Stats, Work

# The types that numpy has no name for; every one is a member of DType.
bf16 = DType.bf16
f8e4m3 = DType.f8e4m3
f8e5m2 = DType.f8e5m2
f8e4m3fnuz = DType.f8e4m3fnuz
f8e5m2fnuz = DType.f8e5m2fnuz
f8e8m0 = DType.f8e8m0
f4e2m1x2 = DType.f4e2m1x2
packed_u8 = DType.packed_u8
packed_u32 = DType.packed_u32

__version__ = _lib.ruccl_version().decode()

__all__ = [
    "Aborted", "BudgetTooSmall", "CapacityTooSmall", "Closed", "Code", "Communicator",
    "CommunicatorFailed", "Connection", "ConnectionFailed", "DType", "DaemonLost", "DaemonStopping",
    "Error", "Mismatch", "Op", "Progress", "RankLeft", "RankLost", "Rejected", "Stats", "Timeout",
    "Work", "bf16", "connect", "f4e2m1x2", "f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0",
    "packed_u32", "packed_u8",
]  # fmt: skip
