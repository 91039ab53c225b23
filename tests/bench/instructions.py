"""Instructions of the request path, counted by callgrind: a measure that no noise can touch.

Daemon and ranks run K operations, then 2K; the difference over K is what one operation costs,
without the start, the joining and the stopping.
"""

import itertools
import json
import pathlib
import re
import shutil
import tempfile

from contestants import MEMORIES, Arena, Trouble
from report import size_text

CALLS = 500
SECONDS = 120


def valgrind(folder, name):
    return ("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/{name}.%p")


def total(folder, name):
    """Over all processes of that name."""
    counts = [
        int(re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE)[1])
        for path in pathlib.Path(folder).glob(f"{name}.*")
    ]
    if not counts:
        raise Trouble(f"callgrind counted nothing for {name}")
    return sum(counts)


def count_calls(build, contestant, collective, dtype, ranks, size, ncalls):
    """Instructions of the daemon and of all ranks together."""
    with tempfile.TemporaryDirectory(prefix="ruccl-count-") as folder:
        with Arena(build, valgrind(folder, "daemon")) as arena:
            _, trouble = arena.run(
                contestant, collective, dtype, ranks, f"{ncalls}x", [size], SECONDS,
                wrapper=("env", f"LD_PRELOAD={build}/bench/pidfd.so", *valgrind(folder, "client")),
            )  # fmt: skip
        if trouble:
            raise Trouble(f"{contestant.name} under callgrind: {trouble}")
        return total(folder, "daemon"), total(folder, "client")


def count(arguments):
    if not shutil.which("valgrind"):
        raise Trouble("no valgrind; try --install")
    if not arguments.json:
        print("                                             instructions a rank\n"
              "                                             and operation\n"
              "collective      ranks  bytes  dtype  memory   daemon   client")  # fmt: skip
    for collective, dtype, ranks, size, memory in itertools.product(
        arguments.collective, arguments.dtype, arguments.ranks, arguments.bytes, arguments.memory
    ):
        point = (arguments.build, MEMORIES[memory], collective, dtype, ranks, size)
        once, twice = count_calls(*point, CALLS), count_calls(*point, 2 * CALLS)
        daemon, client = (round((b - a) / CALLS / ranks) for a, b in zip(once, twice))
        if arguments.json:
            print(json.dumps({
                "collective": collective, "ranks": ranks, "bytes": size, "dtype": dtype,
                "memory": memory, "daemon_instructions": daemon, "client_instructions": client,
            }), flush=True)  # fmt: skip
        else:
            print(f"{collective:14}  {ranks:5}  {size_text(size):>5}  {dtype:5}  {memory:6}  "
                  f"{daemon:7}  {client:7}", flush=True)  # fmt: skip
    return 0
