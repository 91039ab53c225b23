#!/usr/bin/python3
"""Starts ranks, each of which adds its number to everybody's. Usage: all_reduce.py [RANKS]"""

import multiprocessing
import sys

import ruccl


def run_rank(id, rank, nranks):
    with ruccl.connect(name="all_reduce") as conn:
        comm = conn.join(id, rank, nranks)
        values = conn.empty(1000, "f32")  # shared memory: the daemon works on it where it is
        for i in range(1000):
            values[i] = rank + 1
        comm.all_reduce(values)
        print(f"rank {rank} of {nranks}: {values[999]:g}")
        comm.leave()


if __name__ == "__main__":
    nranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with ruccl.connect() as conn:
        id = conn.new_id()
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(id, rank, nranks)) for rank in range(nranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))
