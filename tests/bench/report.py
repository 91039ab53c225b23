"""What came out: a table, JSON, a picture."""

import json
import statistics

JSON_KEYS = (
    "collective ranks bytes dtype memory ruccl_us best_peer best_peer_us ratio limit_us "
    "limit_fraction"
).split()


def median(values):
    return statistics.median(values) if values else None


def divide(a, b, digits=3):
    return round(a / b, digits) if a is not None and b else None


def spread(values):
    """p10 and p90 over the rounds."""
    if len(values) < 2:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def rows(results, memories):
    """One for each point and kind of memory.

    `results` maps (collective, dtype, ranks, bytes) to {contestant's name: medians of the rounds}.
    """
    for (collective, dtype, ranks, size), times in results.items():
        peers = {n: t for n, t in times.items() if n != "limit" and not n.startswith("ruccl")}
        best = min(peers, key=lambda name: median(peers[name]), default=None)
        for memory in memories:
            ours = times.get(f"ruccl {memory}", [])
            row = {
                "collective": collective, "ranks": ranks, "bytes": size, "dtype": dtype,
                "memory": memory, "ruccl_us": median(ours), "best_peer": best,
                "best_peer_us": median(peers[best]) if best else None,
                "limit_us": median(times.get("limit", [])),
            }  # fmt: skip
            row["ratio"] = divide(row["best_peer_us"], row["ruccl_us"])
            row["limit_fraction"] = divide(row["limit_us"], row["ruccl_us"])
            yield {key: row[key] for key in JSON_KEYS}, ours, peers.get(best, [])


def print_json(results, memories):
    for row, _, _ in rows(results, memories):
        print(json.dumps(row))


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


HEADER = (
    "collective", "ranks", "bytes", "dtype", "memory", "ruccl us", "p10..p90", "best us",
    "p10..p90", "ratio", "limit us", "of limit", "best peer",
)  # fmt: skip


def print_table(results, memories):
    """Times are medians over rounds of the median call; the ranges are those of the rounds."""
    lines = [HEADER]
    for row, ours, theirs in rows(results, memories):
        lines.append((
            row["collective"], str(row["ranks"]), size_text(row["bytes"]), row["dtype"],
            row["memory"], time_text(row["ruccl_us"]), range_text(ours),
            time_text(row["best_peer_us"]), range_text(theirs), ratio_text(row["ratio"]),
            time_text(row["limit_us"]), ratio_text(row["limit_fraction"]), row["best_peer"] or "-",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines)]
    words = {0, 3, 4, len(HEADER) - 1}
    for line in lines:
        cells = [
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        print("  ".join(cells).rstrip())


# ---------------------------------------------------------------- the picture


def plot(path, results, memories):
    """A panel for each collective, type and number of ranks: time against size."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    panels = {}
    for row, ours, _ in rows(results, memories):
        panels.setdefault((row["collective"], row["dtype"], row["ranks"]), []).append((row, ours))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(4.5 * columns, 3.5 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, ((collective, dtype, ranks), points) in zip(grid.flat, panels.items()):
        for memory, color in zip(memories, ("tab:blue", "tab:cyan")):
            mine = [(row, ours) for row, ours in points if row["memory"] == memory and ours]
            sizes = [row["bytes"] for row, _ in mine]
            ranges = [spread(ours) for _, ours in mine]
            axes.plot(sizes, [row["ruccl_us"] for row, _ in mine], "o-", ms=3, color=color,
                      label=f"ruCCL, {memory}")  # fmt: skip
            axes.fill_between(sizes, *zip(*ranges) if ranges else ([], []), color=color, alpha=0.2)
        first = [row for row, _ in points if row["memory"] == memories[0]]
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
