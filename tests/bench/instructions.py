"""Instructions of the request path, counted by callgrind: a measure that no noise can touch.

Daemon and ranks run K operations, then 2K; the difference over K is what one operation costs,
without the start, the joining and the stopping. Counts are those of functions with all that they
call, so that how often either side looks at its rings meanwhile does not matter.
"""

import collections
import itertools
import json
import pathlib
import re
import shutil
import tempfile

from contestants import MEMORIES, Arena, Layout, Trouble
from report import size_text

CALLS = 200
SECONDS = 120

# So long that nobody falls asleep between two operations, even as slow as callgrind makes them:
# bells and wakes would be counted, too, and differ from run to run.
SPIN = ("--set", "spin=10ms")

# Where instructions are spent: those of the functions in the first list, less those of the second.
# What the daemon cannot finish at once it finishes in run_done().
Stage = collections.namedtuple("Stage", "name header counted but")
CLIENT_STAGES = (
    Stage("client_encode", "encode", ["repeat_encode_request"], []),
    Stage("client_post", "post",
          ["post_and_wait", "ruccl_all_reduce_async", "ruccl_start", "ruccl_work_wait"],
          ["repeat_encode_request", "work_finish", "wait_for_others"]),  # fmt: skip
    Stage("client_complete", "complete", ["route_packet"], []),
)
DAEMON_STAGES = (
    Stage("daemon_decode", "decode", ["repeat_decode_request"], []),
    Stage("daemon_run", "run", ["member_post", "member_start", "run_done"], ["session_completed"]),
    Stage("daemon_complete", "complete", ["session_completed"], []),
)
STAGES = (*CLIENT_STAGES[:2], *DAEMON_STAGES, CLIENT_STAGES[2])

# All that a call takes and all that the daemon does for it; "run" is that of ruccl.c.
CLIENT_TOTAL = Stage(
    "total", "total", ["run"], ["rings_look", "rings_sleep", "ppoll", "wait_for_others"]
)
DAEMON_TOTAL = Stage("total", "total", ["session_handle", "run_done"], [])

WIDTH = 8
HELP = (
    "Instructions a rank and operation. client encode: the request's bytes; post: the rest of\n"
    "posting, starting or, at a slate, doing it. daemon decode: from the bytes; run: agree, find\n"
    "the plan, run it, without what workers do; complete: encode and put the reply. client\n"
    "complete: decode and route it. total: the whole call and all that the daemon does about it, without waiting."
)


# The daemon would execute itself again to have these variables, and valgrind cannot follow there.
SETTLED = ("env", "UCX_MEM_EVENTS=n", "UCX_HANDLE_ERRORS=none", "UCX_MODULES=^ib,rdmacm,cma")


def valgrind(folder, name):
    return ("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/{name}.%p")


def add_costs(path, costs):
    """Adds up what a function and its callees cost: whatever a callgrind file has under its name.

    "fn=(3) name" begins a function, "fn=(3)" comes back to it, and so does "cfn=" for a callee;
    lines that begin with a position hold costs, of its own and of calls.
    """
    names, current = {}, None
    for line in path.read_text().splitlines():
        if found := re.match(r"(c?)fn=\((\d+)\)(?: (.+))?", line):
            callee, number, name = found.groups()
            if name:  # a clone counts as the function that it was made of
                names[number] = re.sub(r"\.(constprop|isra)\.\d+", "", name)
            current = current if callee else names[number]
        elif line[:1] in set("0123456789+-*") and current:
            costs[current] += int(line.split()[1])


def costs_of(folder, name):
    """Function: instructions, in all processes of that name."""
    costs = collections.Counter()
    for path in pathlib.Path(folder).glob(f"{name}.*"):
        add_costs(path, costs)
    if not costs:
        raise Trouble(f"callgrind counted nothing for {name}")
    return costs


def count_calls(build, contestant, collective, dtype, ranks, size, ncalls):
    """The costs of all ranks together and of the daemon."""
    with tempfile.TemporaryDirectory(prefix="ruccl-count-") as folder:
        with Arena(build, (*SETTLED, *valgrind(folder, "daemon")), SPIN) as arena:
            _, trouble = arena.run(
                contestant, collective, dtype, Layout(1, ranks), f"{ncalls}x", [size], SECONDS,
                wrapper=("env", f"LD_PRELOAD={build}/bench/pidfd.so", *valgrind(folder, "client")),
            )  # fmt: skip
        if trouble:
            raise Trouble(f"{contestant.name} under callgrind: {trouble}")
        return costs_of(folder, "client"), costs_of(folder, "daemon")


def cost(stage, costs):
    if not any(name in costs for name in stage.counted):
        raise Trouble(f"callgrind saw none of {', '.join(stage.counted)}: a build without symbols?")
    return sum(costs[name] for name in stage.counted) - sum(costs[name] for name in stage.but)


def count_point(build, memory, *point):
    """Stage: instructions a rank and operation; `point`: collective, dtype, ranks, bytes."""
    once, twice = (count_calls(build, MEMORIES[memory], *point, n) for n in (CALLS, 2 * CALLS))
    operations = CALLS * point[2]

    def per_operation(stage, side):
        return round((cost(stage, twice[side]) - cost(stage, once[side])) / operations)

    counts = {stage.name: per_operation(stage, 0) for stage in CLIENT_STAGES}
    counts |= {stage.name: per_operation(stage, 1) for stage in DAEMON_STAGES}
    total = per_operation(CLIENT_TOTAL, 0) + per_operation(DAEMON_TOTAL, 1)
    return {stage.name: counts[stage.name] for stage in STAGES} | {"total": total}


def print_header():
    sides = "".join(f"{stage.name.split('_')[0]:>{WIDTH + 2}}" for stage in STAGES)
    stages = "".join(f"{header:>{WIDTH + 2}}" for header in [s.header for s in STAGES] + ["total"])
    point = "collective      ranks  bytes  dtype  memory    "
    print(f"{HELP}\n{'':{len(point)}}{sides}\n{point}{stages}", flush=True)


def print_counts(row):
    counts = "".join(f"{count:{WIDTH + 2}}" for count in row["instructions"].values())
    print(f"{row['collective']:14}  {row['ranks']:5}  {size_text(row['bytes']):>5}  "
          f"{row['dtype']:5}  {row['memory']:10}{counts}", flush=True)  # fmt: skip


def count(build, collectives, dtypes, ranks, sizes, memories, as_json=False):
    """Counts and prints every combination, but what a kind of memory has not."""
    if not shutil.which("valgrind"):
        raise Trouble("no valgrind; try --install")
    if not as_json:
        print_header()
    for point in itertools.product(collectives, dtypes, ranks, sizes, memories):
        collective, dtype, nranks, size, memory = point
        if not MEMORIES[memory].fits(collective, dtype, nranks):
            continue
        row = {
            "collective": collective, "ranks": nranks, "bytes": size, "dtype": dtype,
            "memory": memory,
            "instructions": count_point(build, memory, collective, dtype, nranks, size),
        }  # fmt: skip
        if as_json:
            print(json.dumps(row), flush=True)
        else:
            print_counts(row)
