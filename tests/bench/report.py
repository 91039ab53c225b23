"""What came out: tables, JSON, a picture; and whether it keeps the bounds that we set ourselves."""

import dataclasses
import importlib.util
import json
import statistics

from contestants import MEMORIES, MOVING, Layout

JSON_KEYS = (
    "collective ranks hosts ranks_per_host bytes dtype memory ruccl_us best_peer best_peer_us "
    "ratio limit_us limit_fraction rounds best_peer_rounds"
).split()
BUDGET_KEYS = ["budget_us", "budget_ratio"]  # of runs that have one

LINK_JSON_KEYS = ("link", "bytes", "wait", "us", "gb_per_s", "rounds")

KI, MI = 1 << 10, 1 << 20
EVERY_SIZE_TO = 1 << 62

# ---------------------------------------------------------------- bounds

# The least ratio, best peer's time over ruCCL's, of f32: (collectives, memory, bytes, by ranks).
# What is large has to show what a single pass over mapped memory gains; what is small may lose to
# peers that have no daemon to ask; plain memory has to be copied first.
ANY = "any"
RATIO_FLOORS = (
    (("all_reduce",), "shared", (16 * MI, 64 * MI), {2: 4.5, 4: 6.0, 8: 5.5}),
    (("all_reduce",), "shared", (MI,), {2: 3.2, 4: 4.5, 8: 5.0}),
    (("all_reduce",), "shared", (64 * KI,), {2: 0.6, 4: 1.4, 8: 1.8}),
    (("all_reduce",), "shared", (8, KI), {4: 0.7, 8: 0.7}),
    (("all_reduce",), "plain", (16 * MI, 64 * MI), {2: 0.6, 4: 0.9, 8: 1.3}),
    (("reduce_scatter", *MOVING), "shared", range(64 * KI, MI), {4: 1.0, 8: 1.0}),
    (("reduce_scatter", *MOVING), "shared", range(MI, EVERY_SIZE_TO), {ANY: 1.0}),
)

# Two ranks: a peer's need no one else, so that a time is asked for instead.
SHORT_BYTES, SHORT_RANKS, SHORT_MOST_US = (8, KI), 2, 14.0

# Between hosts: (bytes, by layout: the least ratio, and the one that we want). Peers of two hosts
# with a rank each need no one else, either.
HOST_RATIOS = (
    ((16 * MI, 64 * MI), {"2x1": (0.6, 1.0), "2x2": (1.1, 1.6), "2x4": (1.6, 2.2),
                          "4x1": (0.8, 1.3)}),
    ((MI,), {"2x1": (0.7, 1.0), "2x2": (2.4, 3.0), "2x4": (4.0, 5.0), "4x1": (0.8, 1.2)}),
    ((8, KI), {"2x2": (0.6, 1.0), "2x4": (1.5, 2.2), "4x1": (0.6, 1.0)}),
)  # fmt: skip
HOST_SHORT_LAYOUT, HOST_SHORT_MOST_US, HOST_SHORT_GOAL_US = "2x1", 80.0, 45.0

# What the memory can do (limit.c) is nearly reached by an all_reduce of so many bytes and more.
LIMIT_BYTES, LIMIT_LEAST = 16 * MI, 0.70

# Time over that of f32 for the same bytes: half as wide elements are twice as many.
HALVES, HALF_MOST = ("f16", "bf16"), 1.30

# Time under a budget over that without; the bound is for this point only.
BUDGET_BYTES, BUDGET_OF, BUDGET_MOST = 4 * MI, 64 * MI, 1.15


@dataclasses.dataclass
class Outcome:
    """What was measured: `times` maps (collective, dtype, layout, bytes) to {contestant's name:
    medians of the rounds}, `troubles` a contestant's name to where it first failed and why."""

    memories: list
    rounds: int
    budget: int = 0  # bytes; 0: none
    times: dict = dataclasses.field(default_factory=dict)
    troubles: dict = dataclasses.field(default_factory=dict)


def median(values):
    return statistics.median(values) if values else None


def divide(a, b, digits=3):
    return round(a / b, digits) if a is not None and b else None


def spread(values):
    """The best and the worst round."""
    return min(values), max(values)


def rows(outcome):
    """One for each point and kind of memory, and the rounds behind ruCCL's and the best peer's."""
    for (collective, dtype, layout, size), times in outcome.times.items():
        peers = {n: t for n, t in times.items() if n != "limit" and not n.startswith("ruccl")}
        best = min(peers, key=lambda name: median(peers[name]), default=None)
        for memory in outcome.memories:
            if not MEMORIES[memory].fits(collective, dtype, layout.ranks):
                continue
            ours, theirs = times.get(f"ruccl {memory}", []), peers.get(best, [])
            row = {
                "collective": collective, "ranks": layout.ranks, "hosts": layout.hosts,
                "ranks_per_host": layout.per_host, "bytes": size, "dtype": dtype,
                "memory": memory, "ruccl_us": median(ours), "best_peer": best,
                "best_peer_us": median(theirs), "limit_us": median(times.get("limit", [])),
                "rounds": len(ours), "best_peer_rounds": len(theirs),
                "budget_us": median(times.get(f"ruccl {memory} budget", [])),
            }  # fmt: skip
            row["ratio"] = divide(row["best_peer_us"], row["ruccl_us"])
            row["limit_fraction"] = divide(row["limit_us"], row["ruccl_us"])
            row["budget_ratio"] = divide(row["budget_us"], row["ruccl_us"])
            yield row, ours, theirs


def print_link_json(link):
    for (what, size, wait), values in link.items():
        key = "us" if is_latency(what) else "gb_per_s"
        row = {"link": what, "bytes": size, "wait": wait, "rounds": len(values),
               key: median(values)}  # fmt: skip
        print(json.dumps({key: row.get(key) for key in LINK_JSON_KEYS}))


def print_json(outcome):
    keys = JSON_KEYS + (BUDGET_KEYS if outcome.budget else [])
    for row, _, _ in rows(outcome):
        print(json.dumps({key: row[key] for key in keys}))


# ---------------------------------------------------------------- the table


def size_text(size):
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def time_text(us):
    return "-" if us is None else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def range_text(values):
    return "" if not values else "{}..{}".format(*map(time_text, spread(values)))


def ratio_text(ratio):
    return "-" if ratio is None else f"{ratio:.2f}"


POINT_HEADER = ("collective", "ranks", "bytes", "dtype", "memory")
HEADER = (
    *POINT_HEADER, "ruccl us", "min..max", "best us", "min..max", "ratio", "limit us", "of limit",
    "rounds", "best peer",
)  # fmt: skip


def layout_text(row):
    return str(Layout(row["hosts"], row["ranks_per_host"]))


def point_cells(row):
    return (
        row["collective"], layout_text(row), size_text(row["bytes"]), row["dtype"], row["memory"]
    )  # fmt: skip


def ours_text(row, ours, outcome):
    """A kind of memory that has never come through failed, as told below the table."""
    failed = not ours and f"ruccl {row['memory']}" in outcome.troubles
    return "failed" if failed else time_text(row["ruccl_us"])


def rounds_text(row, rounds):
    """Empty where every round counts."""
    if row["rounds"] == row["best_peer_rounds"] == rounds:
        return ""
    return f"{row['rounds']}, {row['best_peer_rounds']}"


def print_cells(header, lines):
    """Words to the left, numbers to the right; columns that say nothing are left out."""
    words = {"collective", "dtype", "memory", "what", "wait", "verdict", "best peer"}
    columns = [column for column in zip(header, *lines) if not {*column[1:]} <= {"", "-"}]
    aligned = []
    for title, *cells in columns:
        width = max(map(len, (title, *cells)))
        align = str.ljust if title in words else str.rjust
        aligned.append([align(cell, width) for cell in (title, *cells)])
    for line in zip(*aligned):
        print("  ".join(line).rstrip())


def print_table(outcome):
    lines = [
        (
            *point_cells(row), ours_text(row, ours, outcome), range_text(ours),
            time_text(row["best_peer_us"]), range_text(theirs), ratio_text(row["ratio"]),
            time_text(row["limit_us"]), ratio_text(row["limit_fraction"]),
            rounds_text(row, outcome.rounds), row["best_peer"] or "-",
        )
        for row, ours, theirs in rows(outcome)
    ]  # fmt: skip
    print("Times are medians over rounds of the median call, min..max those of the rounds.")
    print(f"rounds: ruCCL's and the best peer's, where they are not {outcome.rounds} each.")
    print_cells(HEADER, lines)
    for name, (where, why) in outcome.troubles.items():
        print(f"{name} failed, first at {where}: {why}")


def is_latency(what):
    return what.endswith("latency")


def link_cells(what, size, wait, values):
    value = ratio_text(median(values))
    us, gb_per_s = (value, "") if is_latency(what) else ("", value)
    rounds = "..".join(map(ratio_text, spread(values))) if values else ""
    return what, size_text(size), wait, us, gb_per_s, rounds


def print_link(link):
    """`link` is a between.Link's times."""
    if not link:
        return
    print("\nThe link between two hosts by UCX over TCP; latencies are one way")
    header = ("what", "bytes", "wait", "us", "GB/s", "min..max")
    print_cells(header, [link_cells(*key, values) for key, values in link.items()])


# ---------------------------------------------------------------- the bounds' tables


def most_text(value, most):
    return "ok" if value <= most else "above"


def least_text(value, least):
    return "ok" if value >= least else "below"


def toward_goal(verdict, reached):
    """Between hosts there is more to want than what is asked for."""
    return "goal" if verdict == "ok" and reached else verdict


def print_halves(measured):
    """f16 and bf16 against f32, worst first."""
    f32_us = {point_cells(row | {"dtype": "f32"}): row["ruccl_us"]
              for row in measured if row["dtype"] == "f32"}  # fmt: skip
    found = []
    for row in measured:
        base_us = f32_us.get(point_cells(row | {"dtype": "f32"}))
        if row["dtype"] in HALVES and base_us:
            found.append((row["ruccl_us"] / base_us, base_us, row))
    if not found:
        return
    print(f"\nruCCL's time over that of f32 for the same bytes, at most {HALF_MOST:.2f}")
    print_cells((*POINT_HEADER, "us", "f32 us", "ratio", "verdict"), [
        (*point_cells(row), time_text(row["ruccl_us"]), time_text(base_us), ratio_text(ratio),
         most_text(ratio, HALF_MOST))
        for ratio, base_us, row in sorted(found, key=lambda item: -item[0])
    ])  # fmt: skip


def print_budget(measured, budget):
    """With the budget against without, worst first."""
    found = [row for row in measured if row["budget_us"]]
    if not found:
        return

    def verdict(row):
        bounded = (row["bytes"], budget) == (BUDGET_OF, BUDGET_BYTES)
        return most_text(row["budget_ratio"], BUDGET_MOST) if bounded else ""

    bound = f"{BUDGET_MOST:.2f} for {size_text(BUDGET_OF)} under {size_text(BUDGET_BYTES)}"
    print(f"\nruCCL's time under a budget of {size_text(budget)} over that without; most: {bound}")
    print_cells((*POINT_HEADER, "us", "budget us", "ratio", "verdict"), [
        (*point_cells(row), time_text(row["ruccl_us"]), time_text(row["budget_us"]),
         ratio_text(row["budget_ratio"]), verdict(row))
        for row in sorted(found, key=lambda row: -row["budget_ratio"])
    ])  # fmt: skip


def ratio_floor(row):
    """None: there is none."""
    for collectives, memory, sizes, by_ranks in RATIO_FLOORS:
        if row["collective"] in collectives and row["memory"] == memory and row["bytes"] in sizes:
            return by_ranks.get(row["ranks"], by_ranks.get(ANY))
    return None


def floors_of(row):
    """What is asked of a point, the bound, the goal, what was measured, and the verdict."""
    if row["hosts"] > 1:
        yield from host_floors_of(row)
        return
    if row["dtype"] != "f32":
        return
    floor, ratio, us, fraction = (
        ratio_floor(row), row["ratio"], row["ruccl_us"], row["limit_fraction"]
    )  # fmt: skip
    if floor and ratio:
        yield "ratio, least", ratio_text(floor), "", ratio_text(ratio), least_text(ratio, floor)
    if (row["collective"], row["memory"]) != ("all_reduce", "shared"):
        return
    if row["bytes"] in SHORT_BYTES and row["ranks"] == SHORT_RANKS:
        yield "us, most", time_text(SHORT_MOST_US), "", time_text(us), most_text(us, SHORT_MOST_US)
    if row["bytes"] >= LIMIT_BYTES and fraction:
        yield ("of limit, least", ratio_text(LIMIT_LEAST), "", ratio_text(fraction),
               least_text(fraction, LIMIT_LEAST))  # fmt: skip


def host_ratio(row):
    """The least and the wanted one; None: there are none."""
    for sizes, by_layout in HOST_RATIOS:
        if row["bytes"] in sizes:
            return by_layout.get(layout_text(row))
    return None


def host_floors_of(row):
    """The same between hosts."""
    if (row["collective"], row["dtype"], row["memory"]) != ("all_reduce", "f32", "shared"):
        return
    bounds, ratio, us = host_ratio(row), row["ratio"], row["ruccl_us"]
    if bounds and ratio:
        floor, goal = bounds
        verdict = toward_goal(least_text(ratio, floor), ratio >= goal)
        yield "ratio, least", ratio_text(floor), ratio_text(goal), ratio_text(ratio), verdict
    if row["bytes"] in SHORT_BYTES and layout_text(row) == HOST_SHORT_LAYOUT:
        most, goal = HOST_SHORT_MOST_US, HOST_SHORT_GOAL_US
        verdict = toward_goal(most_text(us, most), us <= goal)
        yield "us, most", time_text(most), time_text(goal), time_text(us), verdict


def print_floors(measured):
    lines = [(*point_cells(row), *cells) for row in measured for cells in floors_of(row)]
    if not lines:
        return
    print("\nWhat we ask of ruCCL at these points")
    print_cells((*POINT_HEADER, "what", "bound", "goal", "measured", "verdict"), lines)


def print_bounds(outcome):
    measured = [row for row, ours, _ in rows(outcome) if ours]
    print_halves(measured)
    print_budget(measured, outcome.budget)
    print_floors(measured)


# ---------------------------------------------------------------- the picture


COLORS = {
    "shared": "tab:blue", "plain": "tab:cyan", "persistent": "tab:purple", "posted": "tab:olive",
}  # fmt: skip


def can_plot():
    return importlib.util.find_spec("matplotlib") is not None


def plot(path, outcome):
    """A panel for each collective, type and number of ranks: time against size."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    panels = {}
    for row, ours, _ in rows(outcome):
        panel = row["collective"], row["dtype"], layout_text(row)
        panels.setdefault(panel, []).append((row, ours))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(4.5 * columns, 3.5 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, ((collective, dtype, ranks), points) in zip(grid.flat, panels.items()):
        for memory in outcome.memories:
            mine = [(row, ours) for row, ours in points if row["memory"] == memory and ours]
            color = COLORS[memory]
            sizes = [row["bytes"] for row, _ in mine]
            ranges = [spread(ours) for _, ours in mine]
            axes.plot(sizes, [row["ruccl_us"] for row, _ in mine], "o-", ms=3, color=color,
                      label=f"ruCCL, {memory}")  # fmt: skip
            axes.fill_between(sizes, *zip(*ranges) if ranges else ([], []), color=color, alpha=0.2)
        first = [row for row, _ in points if row["memory"] == points[0][0]["memory"]]
        for key, label, style in (
            ("best_peer_us", "best peer", "s-"),
            ("limit_us", "limit", ":"),
        ):
            drawn = [row for row in first if row[key]]
            axes.plot([row["bytes"] for row in drawn], [row[key] for row in drawn], style, ms=3,
                      color="tab:orange" if key == "best_peer_us" else "gray",
                      label=label)  # fmt: skip
        axes.set(title=f"{collective} {dtype}, {ranks} ranks", xlabel="bytes a rank",
                 ylabel="µs", xscale="log", yscale="log")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, format="svg")
