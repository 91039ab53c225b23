#!/usr/bin/python3
"""Tensors of PyTorch on a GPU: every kind that both know, and calls in torch's own streams."""

import sys

import python_ranks

try:
    import torch
except ImportError as missing:
    torch = None
    reason = str(missing)

WORLD = 3
COUNT = 4099
SKIP = 77
# What all of them hold exactly, and every sum of three.
VALUES = {
    "float32": 1000, "float64": 1000, "float16": 100, "bfloat16": 20,
    "int8": 20, "int16": 1000, "int32": 1000, "int64": 1000, "uint8": 20,
}  # fmt: skip


def pick_gpu(communicator):
    torch.cuda.set_device(communicator.rank % torch.cuda.device_count())


def values(dtype, rank):
    numbers = (torch.arange(COUNT, device="cuda") * (rank + 1)) % VALUES[dtype]
    return numbers.to(getattr(torch, dtype))


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def reduce_and_gather(connection, communicator, dtype):
    pick_gpu(communicator)
    x = values(dtype, communicator.rank)
    y = torch.zeros_like(x)
    all_x = torch.zeros((WORLD, COUNT), dtype=x.dtype, device="cuda")
    memory = [connection.register_cuda(t.data_ptr(), t.nbytes) for t in (x, y, all_x)]
    given = [values(dtype, rank) for rank in range(WORLD)]
    total = sum(g.to(torch.float64) for g in given).to(x.dtype)

    communicator.all_reduce(x[1:], y[1:])
    require(torch.equal(y[1:], total[1:]), f"all_reduce of {dtype}")
    require(y[0] == 0, "an element in front was written")
    communicator.all_gather(x.reshape(1, COUNT), all_x)
    require(torch.equal(all_x, torch.stack(given)), f"all_gather of {dtype}")
    communicator.all_reduce(x, x)
    require(torch.equal(x, total), f"all_reduce of {dtype} in place")
    for m in memory:
        m.release()
    return "done"


def follow_the_stream(connection, communicator):
    """A late input is waited for, and what is queued behind the call sees its output."""
    pick_gpu(communicator)
    busy = torch.rand(4096, 4096, device="cuda")
    product = torch.mm(busy, busy)  # what it needs is there from now on
    x, y, seen = (torch.zeros(COUNT, device="cuda") for _ in range(3))
    memory = [connection.register_cuda(t.data_ptr(), t.nbytes) for t in (x, y)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    works = []
    with torch.cuda.stream(stream):
        for turn in range(1, 6):
            for _ in range(5):
                torch.mm(busy, busy, out=product)
            x.fill_(turn * (communicator.rank + 1))
            works.append(communicator.all_reduce_async(x, y))
            seen += y
            x.fill_(-1000)
    stream.synchronize()
    for work in works:
        work.wait()
    expected = sum(range(1, 6)) * sum(range(1, WORLD + 1))
    require(bool((seen == expected).all()), f"{seen[0]} was seen, not {expected}")
    for m in memory:
        m.release()
    return "done"


def run(ranks, function, *arguments):
    for answer in ranks.run(WORLD, function, *arguments):
        if isinstance(answer, BaseException):
            raise answer
        require(answer == "done", "a rank is gone")


def main():
    if torch is None:
        print(reason)
        return SKIP
    if not torch.cuda.is_available():
        print("torch has no GPU")
        return SKIP
    daemon = python_ranks.Daemon()
    ranks = python_ranks.Ranks(daemon.socket, WORLD)
    try:
        for dtype in VALUES:
            run(ranks, reduce_and_gather, dtype)
        run(ranks, follow_the_stream)
    finally:
        ranks.close()
        status = daemon.stop()
    print(f"torch {torch.__version__}: {len(VALUES)} types, and a stream")
    return status


if __name__ == "__main__":
    sys.exit(main())
