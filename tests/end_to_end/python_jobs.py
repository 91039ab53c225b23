"""What the Python tests let ranks do, and what has to come out of it."""

import gc
import os
import pathlib
import signal
import threading
import time

import ruccl
from ruccl.dtypes import numpy as np

SIZES = (0, 1, 3, 257, 1031)
WITHIN_SECONDS = 1  # whoever is about to wait does so, on a machine that has other things to do


# ---------------------------------------------------------------- what is expected


def tensor_of(rank, dtype, shape, seed=0):
    """What `rank` puts in: small enough that integers do not hide a wrong order, floats show it."""
    rng = np.random.default_rng([seed, rank])
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return (rng.standard_normal(shape) * 3).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def in_tree_order(terms, combine):
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return combine(in_tree_order(terms[:half], combine), in_tree_order(terms[half:], combine))


def reduced(terms, op):
    """One fixed order of additions, f16 in f32, one rounding at the end."""
    combine = {
        "sum": np.add, "mean": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip
    dtype = terms[0].dtype
    wide = np.dtype("f4") if dtype == np.float16 else dtype
    with np.errstate(over="ignore"):
        total = in_tree_order([term.astype(wide) for term in terms], combine)
        if op == "mean":
            total = total / wide.type(len(terms))
        return total.astype(dtype)


def same_bits(found, wanted):
    return found.dtype == wanted.dtype and found.shape == wanted.shape and (
        found.tobytes() == wanted.tobytes()
    )


def expect(found, wanted, what):
    if not same_bits(np.asarray(found), np.asarray(wanted)):
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")


# ---------------------------------------------------------------- what ranks do


def place(connection, value, shared):
    """A copy of `value`, in shared memory or in plain."""
    if not shared:
        return value.copy()
    copy = connection.empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def reduce_in_every_way(connection, comm, dtype, shared):
    ops = "sum product min max".split()
    ops += ["mean"] if dtype.startswith("f") else ["and", "or", "xor"]
    storage = connection.empty(0, dtype).dtype
    everyone = range(comm.world_size)
    for size in SIZES:
        for op in ops:
            terms = [tensor_of(rank, storage, size) for rank in everyone]
            wanted = reduced(terms, op)
            mine = place(connection, terms[comm.rank], shared)
            out = place(connection, np.zeros_like(mine), shared)
            expect(comm.all_reduce(mine, out, op), wanted, f"all_reduce {op} of {size}")
            expect(mine, terms[comm.rank], "an input")
            root = comm.world_size - 1
            result = comm.reduce(mine, root, op=op)
            if comm.rank == root:
                expect(result, wanted, f"reduce {op} of {size}")
                mine[...] = terms[root]
            assert comm.all_reduce(mine, op=op) is mine
            expect(mine, wanted, f"all_reduce {op} in place of {size}")

        rows = [tensor_of(rank, storage, (comm.world_size * size, 2)) for rank in everyone]
        wanted = reduced(rows, "sum")[comm.rank * size : (comm.rank + 1) * size]
        mine = place(connection, rows[comm.rank], shared)
        expect(comm.reduce_scatter(mine), wanted, f"reduce_scatter of {size}")


def move_in_every_way(connection, comm, dtype, shared):
    storage = connection.empty(0, dtype).dtype
    everyone = range(comm.world_size)
    for size in SIZES:
        terms = [tensor_of(rank, storage, (size, 3)) for rank in everyone]
        mine = place(connection, terms[comm.rank], shared)
        whole = np.concatenate(terms)
        root = comm.world_size - 1

        expect(comm.all_gather(mine, dtype=dtype), whole, f"all_gather of {size}")
        out = place(connection, np.zeros_like(whole), shared)
        block = out[comm.rank * size : (comm.rank + 1) * size]
        block[...] = mine
        comm.all_gather(block, out, dtype=dtype)
        expect(out, whole, f"all_gather in place of {size}")

        result = comm.gather(mine, root, dtype=dtype)
        if comm.rank == root:
            expect(result, whole, f"gather of {size}")
        else:
            assert result is None

        part = place(connection, np.zeros_like(mine), shared)
        comm.scatter(whole if comm.rank == root else None, root, part, dtype=dtype)
        expect(part, mine, f"scatter of {size}")

        copy = place(connection, mine, shared)
        comm.broadcast(copy, root, dtype=dtype)
        expect(copy, terms[root], f"broadcast of {size}")

        rows = [tensor_of(rank, storage, (comm.world_size * size, 3), 1) for rank in everyone]
        blocks = [r[comm.rank * size : (comm.rank + 1) * size] for r in rows]
        mine = place(connection, rows[comm.rank], shared)
        result = comm.all_to_all(mine, dtype=dtype)
        expect(result, np.concatenate(blocks), f"all_to_all of {size}")


def row_counts(source, world_size):
    """Uneven, with a rank that sends nothing and one that sends itself nothing."""
    return [(source * (3 + 2 * to)) % 7 for to in range(world_size)]


def exchange_rows(connection, comm, dtype, shared):
    storage = connection.empty(0, dtype).dtype
    everyone = range(comm.world_size)
    counts = [row_counts(rank, comm.world_size) for rank in everyone]
    rows = [tensor_of(rank, storage, (sum(counts[rank]), 5)) for rank in everyone]
    parts = [np.split(rows[rank], np.cumsum(counts[rank])[:-1]) for rank in everyone]
    wanted = np.concatenate([parts[source][comm.rank] for source in everyone])
    received = [counts[source][comm.rank] for source in everyone]
    mine = place(connection, rows[comm.rank], shared)

    for extra in (0, 4):
        out, found = comm.all_to_all_v(mine, counts[comm.rank], capacity=sum(received) + extra)
        expect(out, wanted, "all_to_all_v")
        assert found == received, found
    out, _ = comm.all_to_all_v(mine, counts[comm.rank], expected_counts=received)
    expect(out, wanted, "all_to_all_v with expected counts")
    work = comm.bounded(comm.world_size * 5 * storage.itemsize).all_to_all_v_async(
        mine, counts[comm.rank], expected_counts=received
    )
    expect(work.wait()[0], wanted, "all_to_all_v a row at a time")
    assert work.stats().chunks == max(map(max, counts)), work.stats()


def reduce_bf16(connection, comm):
    words = np.array([0x3F80, 0xC000, 0x4040], np.uint16)  # 1, -2, 3
    comm.all_reduce(words, dtype=ruccl.bf16)
    return words.tolist()


def reduce_under(connection, comm, budget):
    mine = tensor_of(comm.rank, "f4", 1031)
    bounded = comm if budget is None else comm.bounded(budget)
    work = bounded.all_reduce_async(mine)
    result = work.wait()
    stats, progress = work.stats(), work.progress()
    assert result is mine and work.result is mine and work.test()
    assert progress.elements_done == progress.elements_total == 1031, progress
    if budget is not None:
        chunk = budget // comm.world_size // 4
        assert stats.chunk_elements == chunk and stats.chunks == -(-1031 // chunk), stats
        assert stats.peak_bytes <= budget, stats
        assert bounded.max_chunk_bytes == budget and bounded.unbounded().max_chunk_bytes is None
    return mine.tobytes()


def pass_around(connection, comm):
    """A ring of sends, all at once, two tags to each."""
    to, source = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    boxes = [np.zeros(5, np.int64) for _ in range(2)]
    works = [comm.recv_async(boxes[tag], source, tag) for tag in (1, 0)]
    works += [comm.send_async(np.full(5, 10 * comm.rank + tag), to, tag) for tag in (0, 1)]
    for work in works:
        work.wait()
    for tag, box in enumerate(boxes):
        expect(box, np.full(5, 10 * source + tag), f"what was sent with tag {tag}")


def split_in_two(connection, comm):
    """Colors: none for rank 0, the rest by parity, in reverse order."""
    color = None if comm.rank == 0 else comm.rank % 2
    child = comm.split(color, -comm.rank)
    if child is None:
        return None
    with child:
        return child.rank, child.world_size, child.all_gather(np.array([comm.rank])).tolist()


def outcome(call, *arguments, **options):
    """What a call that has to fail raised, and how long that took."""
    began = time.monotonic()
    try:
        call(*arguments, **options)
    except ruccl.Error as error:
        return error, time.monotonic() - began
    raise AssertionError("it succeeded")


def disagree(connection, comm):
    mine = np.full(3 if comm.rank == 1 else 4, 7.0)
    error, _ = outcome(comm.all_reduce, mine)
    assert (mine == 7).all(), "a failed call has written"
    return error, comm.all_reduce(np.ones(1))[0]


def refuse_at_rank_1(connection, comm, way):
    good = np.ones((4, 4))
    arguments, options = (good,), {}
    if comm.rank == 1:
        if way == "not contiguous":
            arguments = (np.ones((4, 8))[:, ::2],)
        elif way == "read-only":
            good.flags.writeable = False
        elif way == "no such op":
            options = {"op": "sideways"}
        elif way == "no array":
            arguments = (17,)
        elif way == "no argument":
            arguments = ()
    try:
        error, _ = outcome(comm.all_reduce, *arguments, **options)
    except TypeError as raised:
        error = raised
    return error, comm.all_reduce(np.ones(1))[0]


def fail_everywhere(connection, comm, way):
    whole = np.ones(comm.world_size)
    error, _ = {
        "budget": lambda: outcome(comm.bounded(comm.world_size * 8 - 1).all_reduce, whole),
        "root": lambda: outcome(comm.broadcast, whole, comm.world_size),
        "op": lambda: outcome(comm.all_reduce, np.ones(1, np.int32), op="mean"),
        "dtype": lambda: outcome(comm.all_reduce, np.ones(1, np.uint32), dtype="packed_u32"),
        "shape": lambda: outcome(comm.reduce_scatter, np.ones(comm.world_size + 1)),
        "scalar": lambda: outcome(comm.all_gather, np.float32(1)),
        "capacity": lambda: outcome(
            comm.all_to_all_v, whole, [1] * comm.world_size, capacity=comm.world_size - 1
        ),
        "counts": lambda: outcome(
            comm.all_to_all_v, whole, [1] * comm.world_size, np.ones(9),
            expected_counts=[2] * comm.world_size,
        ),
    }[way]()  # fmt: skip
    return error, comm.all_reduce(np.ones(1))[0]


def pack_inputs(connection, comm):
    value = np.arange(12.0).reshape(3, 4)
    expect(comm.all_gather(value.T)[:4], np.ascontiguousarray(value.T), "a transposed input")
    expect(comm.all_gather(value[:, ::-1])[:3], value[:, ::-1].copy(), "a reversed input")
    frozen = value.copy()
    frozen.flags.writeable = False
    expect(comm.all_gather(frozen)[:3], value, "a read-only input")


def lag_behind(connection, comm):
    """Rank 0 is late: it waits until the others have found their work unfinished."""
    for other in range(1, comm.world_size if comm.rank == 0 else 1):
        comm.recv(bytearray(1), other)
    mine = np.full(3, comm.rank + 1.0)
    work = comm.all_reduce_async(mine)
    second = comm.barrier_async()
    if comm.rank != 0:
        assert not work.test() and work.result is None
        try:
            work.wait(0.05)
            raise AssertionError("the wait did not end")
        except TimeoutError:
            pass
        comm.send(b"!", 0)
    assert second.wait(30) is None and work.test()
    return work.wait().tolist()


def drop_work(connection, comm):
    """An operation whose ticket is dropped ends all the same, and its arrays live until then."""
    shared = connection.empty(5, "f32")
    shared[:] = 1
    plain = np.ones(100_000)
    if comm.rank == 0:
        time.sleep(0.2)
    for mine in (plain, shared):
        comm.all_reduce_async(mine)
    del mine, plain
    gc.collect()
    comm.barrier()
    comm.barrier()
    assert not connection._dropped
    return shared.tolist()


def die(connection, comm):
    comm.barrier()
    if comm.rank == 2:
        os._exit(9)
    raise outcome(comm.all_reduce, np.ones(1000))[0]


def die_late(connection, comm):
    """As die(), with the others waiting by then; returns how long they were kept."""
    comm.barrier()
    if comm.rank == 2:
        time.sleep(0.3)
        os._exit(9)
    error, seconds = outcome(comm.barrier)
    again, _ = outcome(comm.barrier)
    return error, again, seconds


def leave_early(connection, comm):
    comm.barrier()
    if comm.rank == 1:
        return None
    raise outcome(comm.barrier)[0]


def abort_by_exception(connection, comm):
    try:
        with comm:
            if comm.rank == 1:
                raise KeyError("no such parameter")
            comm.barrier()
    except KeyError:
        pass


def stay_away(connection, comm, directory):
    """Rank 1 does not come until the others have left word in the directory."""
    words = pathlib.Path(directory)
    if comm.rank == 1:
        deadline = time.monotonic() + 20
        while len(list(words.iterdir())) < comm.world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        return None
    error, _ = outcome(comm.barrier)
    (words / str(comm.rank)).touch()
    raise error


def press_control_c(connection, comm):
    """Rank 0 waits for a rank that does not come before it has been told of the interruption."""
    if comm.rank != 0:
        comm.recv(bytearray(1), 0)
        comm.barrier()
        return True
    work = comm.barrier_async()
    try:
        threading.Timer(WITHIN_SECONDS, os.kill, (os.getpid(), 2)).start()
        work.wait()
        return False
    except KeyboardInterrupt:
        comm.send(b"!", 1)
    return work.wait() is None


def largest_stage(connection, comm):
    """Bytes of the longest shared memory after a blocking call on 16 MiB; and whether it is right."""
    x = np.full(1 << 22, comm.rank + 1, "f4")
    comm.all_reduce(x)
    sizes = [0]
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if "memfd:ruccl" in line:
            first, end = line.split()[0].split("-")
            sizes.append(int(end, 16) - int(first, 16))
    return max(sizes), bool((x == 3).all())


def interrupt_a_large_call(connection, comm):
    """Rank 0 is interrupted in a call on much plain memory, which rank 1 finishes none the less."""
    x = np.full(1 << 22, comm.rank + 1, "f4")
    out = np.zeros(1 << 22, "f4")
    if comm.rank == 0:
        threading.Timer(WITHIN_SECONDS, os.kill, (os.getpid(), 2)).start()
        try:
            comm.all_reduce(x, out)
            return False
        except KeyboardInterrupt:
            comm.send(b"!", 1)
    else:
        comm.recv(bytearray(1), 0)
        comm.all_reduce(x, out)
        if not (out == 3).all():
            return False
    comm.all_reduce(x)
    return bool((x == 3).all())


def interrupt_a_large_call_and_close(connection, comm, socket, id):
    """Rank 0 leaves with the interruption: rank 1 is told, and no thread of rank 0 complains."""
    x = np.ones(1 << 22, "f4")
    complaints = []
    threading.excepthook = complaints.append
    own = ruccl.connect(socket)
    with own:
        short = own.join(id, comm.rank, 2)
        if comm.rank == 1:
            comm.recv(bytearray(1), 0)  # it has been interrupted, and has left
            try:
                short.all_reduce(x)
                return False
            except ruccl.Error as error:
                return error.code in (ruccl.Code.RANK_LOST, ruccl.Code.RANK_LEFT)
        threading.Timer(WITHIN_SECONDS, os.kill, (os.getpid(), 2)).start()
        try:
            with own:
                short.all_reduce(x)
            return False
        except KeyboardInterrupt:
            comm.send(b"!", 1)
    while threading.active_count() > 1:
        time.sleep(0.01)
    return not complaints


def call_from_a_handler(connection, comm):
    """A signal's handler makes calls behind the large one that it has interrupted."""
    x = np.full(1 << 22, comm.rank + 1, "f4")
    called = []

    def handler(*_):
        comm.send(b"!", 1)
        comm.barrier()
        called.append(True)

    if comm.rank == 0:
        signal.signal(signal.SIGUSR1, handler)
        threading.Timer(WITHIN_SECONDS, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        comm.all_reduce(x)
        return bool(called) and bool((x == 3).all())
    comm.recv(bytearray(1), 0)
    comm.all_reduce(x)
    comm.barrier()
    return bool((x == 3).all())


def fork_and_carry_on(connection, comm):
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
            os._exit(1)
        except ruccl.Error as error:
            os._exit(0 if error.code == ruccl.Code.FORKED else 2)
    _, status = os.waitpid(child, 0)
    comm.barrier()
    return os.waitstatus_to_exitcode(status)


def count_mappings(connection, comm):
    def mapped():
        maps = pathlib.Path("/proc/self/maps").read_text()
        return maps.count("memfd:ruccl"), len(os.listdir("/proc/self/fd"))

    def use_arrays():
        for size in (1, 1000, 1 << 20):
            comm.all_reduce(connection.empty(size, "u8"))

    use_arrays()
    gc.collect()
    before = mapped()
    for _ in range(50):
        use_arrays()
    gc.collect()
    return before == mapped()
