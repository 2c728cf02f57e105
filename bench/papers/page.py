# SPDX-License-Identifier: Apache-2.0
"""Draws what measure.py measured, and writes the numbers of the page *What RDMA saves*.

Only the texts between the marks of the page are generated: values of the papers and the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from bench import figures, markdown, published
from bench.cells import KIB, CellResult, named
from bench.figures import Lines, Look, Place, Point, Section, plot, sizes
from bench.papers import measure as papers
from bench.papers.measure import KERNELS, Part, Steps, Store
from bench.papers.reads import Cell
from bench.sequential_reads.measure import OLD, TODAY
from nfsrdma_tools.lab.config import KERNELS as LAB_KERNELS
from nfsrdma_tools.personalities import PERSONALITIES
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from nfsrdma_tools.sizes import size_label

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "papers.md"
# colour and marker; other curves get those of style.INK
LOOKS = {
    OLD: (canvas.transport_colour("other"), "^"),
    TODAY: (canvas.transport_colour("tcp"), "o"),
    KERNELS: (canvas.transport_colour("rdma"), "s"),
    **{
        name: (canvas.personality_colour(name), mark)
        for name, mark in zip(PERSONALITIES, "DvpPXh", strict=True)
    },
}
# the user-space client, and that beside a mount
LIBRARY = (papers.NFSD, papers.DAFS)
USERS = {
    "read-write": LOOKS["read-write"],
    papers.NFSD: (canvas.transport_colour("rdma"), "s"),
    papers.DAFS: (canvas.INK, "*"),
}
# the ways of small data
WAYS = {
    "read-write": LOOKS["read-write"],
    # version 1 with larger messages
    papers.COPIED: (canvas.personality_colour("read-write"), "o-"),
    papers.PADDED: LOOKS["padded"],
}


def part(name: str) -> Part:
    return named(papers.parts(), name)


def curve(
    store: Store, source: Part, name: str, x: str, of: Callable[[CellResult], float]
) -> list[Point]:
    """A point for each cell: a field of the cell, and a value of its results."""
    return [(getattr(each, x), store.value(source.name, name, each, of)) for each in source.cells]


def rate(result: CellResult) -> float:
    return float(result["rate"])


def share(result: CellResult) -> float:
    return 100 * float(result["cpu"])


def latency(result: CellResult) -> float:
    """Microseconds of a read."""
    return float(result["us"])


def note(ax: Axes, text: str, place: Point, above: int = 4) -> None:
    ax.annotate(text, place, (4, above), textcoords="offset points", fontsize=8.5,
                color=canvas.MUTED)  # fmt: skip


def star(ax: Axes, x: float, y: float, text: str) -> None:
    """A value of a paper."""
    ax.plot(x, y, "*", color=canvas.INK, ms=11, zorder=5)
    ax.annotate(text, (x, y), (0, -17), textcoords="offset points", ha="center", fontsize=8.5)


def dashed(ax: Axes, begin: float, y: float) -> None:
    """A result of a paper for blocks of a size and larger ones."""
    ends = (begin, papers.BLOCKS[-1])
    ax.plot(ends, [y] * 2, color=canvas.MUTED, ls=(0, (5, 3)), lw=1.1)


# --- 1: figures 15 to 18 of 2003 ---


def ahead(count: int) -> list[Cell]:
    return [each for each in part("ahead").cells if each.ahead == count]


def over_ahead(ax: Axes, store: Store, name: str, figure: str, label: str) -> None:
    """Throughput over rsize, a line for each number of reads ahead."""
    colors = canvas.ordered_colours(len(papers.AHEAD))
    looks = {f"{n} ahead": (c, "o") for n, c in zip(papers.AHEAD, colors, strict=True)}
    lines: Lines = {f"{n} ahead": [(c.rsize, store.value("ahead", name, c, rate)) for c in ahead(n)]
                    for n in papers.AHEAD}  # fmt: skip
    point = published.point(figure, label)
    plot(ax, lines, looks, least=point["rate"])
    sizes(ax, papers.SIZES, "rsize")
    ax.set_ylabel("MB/s")
    star(ax, point["size"], point["rate"], f"paper, {point['ahead']} ahead")


def draw_2003(store: Store) -> Drawing:
    heads = (f"15: {OLD}", "16: read-read", "17: CPU, 4 reads ahead")
    figure, axes = panels(heads, one_scale=False)
    figure.subplots_adjust(wspace=0.72)
    over_ahead(axes[0], store, OLD, "15", "TCP")
    over_ahead(axes[1], store, "read-read", "16", "RDMA")
    lines: Lines = {}
    for name in part("ahead").curves:
        # over throughput, as in the paper, all lines end in one: the wire's rate
        cells = ahead(4)
        lines[name] = [(c.rsize, store.value("ahead", name, c, share)) for c in cells]
    plot(axes[2], lines, LOOKS)
    sizes(axes[2], papers.SIZES, "rsize")
    axes[2].set_ylabel("CPU of both ends (%)")
    title = 'Figures 15 to 17 of "NFS over RDMA" (2003)'
    describe(figure, title, "Stars: the paper's results. CPU with the card model's work",
             store.small_print)  # fmt: skip
    return Drawing("papers-2003", title, "", "", figure)


def lines_of_2003(store: Store) -> list[str]:
    """The highest rates."""
    peaks = []
    for name in part("ahead").curves:
        best = max(store.value("ahead", name, cell, rate) for cell in part("ahead").cells)
        peaks.append(f"{name} {best:.0f} MB/s")
    tcp, rdma = published.point("15", "TCP"), published.point("16", "RDMA")
    return [
        f"The paper: TCP reached {tcp['rate']:.0f} MB/s and RDMA {rdma['rate']:.0f} MB/s.",
        f"Here, the highest rates are: {', '.join(peaks)}.",
    ]


def direct_time(store: Store, name: str, cell: Cell) -> float:
    """Milliseconds of CPU time of both ends for a MiB of direct reads."""
    return store.value("direct", name, cell, papers.time_of_both)


def ratios(store: Store, name: str, other: str = OLD) -> list[Point]:
    """The CPU time of both ends for direct reads, over that with another curve."""
    return [(cell.record, direct_time(store, name, cell) / direct_time(store, other, cell))
            for cell in part("direct").cells]  # fmt: skip


def draw_direct(store: Store) -> Drawing:
    figure, (ax,) = panels([""])
    low, high = published.point("18", "RDMA : TCP")["ratio"]
    ax.axhspan(low, high, color=canvas.GRID, zorder=0)
    plot(ax, {n: ratios(store, n) for n in part("direct").curves if n != OLD}, LOOKS)
    sizes(ax, papers.SIZES, "direct reads, one at a time")
    ax.set_ylabel(f"share of the CPU time over {OLD}")
    note(ax, "the paper's range", (papers.SIZES[0], low))
    title = "18: CPU time of a read, both ends"
    describe(figure, title, "Without the card model's work", store.small_print)
    return Drawing("papers-direct", title, "", "", figure)


def lines_of_direct(store: Store) -> list[str]:
    """The ratios, and the table of the CPU time of both ends."""
    ends = {name: [y for _, y in ratios(store, name)] for name in (KERNELS, *papers.DESIGNS)}
    summaries = [f"{name} {ys[0]:.2f} for 8 KiB and {ys[-1]:.2f} for {papers.SIZES[-1] // KIB} KiB"
                 for name, ys in ends.items()]  # fmt: skip
    names = part("direct").curves
    rows = [["read", *(f"{name}, ms per MiB" for name in names), *(f"{KERNELS} : {other}"
             for other in (OLD, TODAY))]]  # fmt: skip
    beside = [dict(ratios(store, KERNELS, other)) for other in (OLD, TODAY)]
    for cell in part("direct").cells:
        times = [f"{direct_time(store, name, cell):.2f}" for name in names]
        shares = [f"{each[cell.record]:.2f}" for each in beside]
        rows.append([size_label(cell.record), *times, *shares])
    low, high = published.point("18", "RDMA : TCP")["ratio"]
    return [
        f"The paper: the client needed {low:.0%} to {high:.0%} of TCP's CPU time.",
        f"Here, both ends together need this share of the CPU time of {OLD}: "
        f"{'; '.join(summaries)}. "
        "The table has the CPU time of both ends, without the card model's work:",
        "", *markdown.table(rows),
    ]  # fmt: skip


# --- 2: figures 3 and 4 of the FAST paper ---


def cpu_of(
    ax: Axes, store: Store, source: Part, x: str, names: Sequence[str], looks: Mapping[str, Look]
) -> None:
    """The CPU of both ends: where the wire is the limit, the curves differ in this alone."""
    plot(ax, {name: curve(store, source, name, x, share) for name in names}, looks)
    ax.set_ylabel("%")


def copies(ax: Axes) -> None:
    """The axis of the bytes that are copied of a record."""
    ax.set_xticks(papers.COPIES, [f"{value / KIB:g}" for value in papers.COPIES])
    ax.set_xlabel("copied of each record (KiB)")


def draw_blocks(store: Store) -> Drawing:
    blocks = part("blocks")
    figure, (ax, beside) = panels(("throughput", "CPU of both ends"), one_scale=False)
    figure.subplots_adjust(wspace=0.72)
    # the labels of curves that end together need room
    least = max(point["rate"] for point in published.points() if point["figure"] == "3")
    lines = {n: curve(store, blocks, n, "record", rate) for n in blocks.curves}
    plot(ax, lines, LOOKS, room=1.35, least=least)
    ax.set_ylabel("MB/s")
    sizes(ax, papers.BLOCKS, "block")
    cpu_of(beside, store, blocks, "record", blocks.curves, LOOKS)
    sizes(beside, papers.BLOCKS, "block")
    for point in published.points():
        if point["figure"] == "3":
            dashed(ax, point.get("from", papers.BLOCKS[0]), point["rate"])
    # where no curve is; the values of two designs are close
    note(ax, "paper: pre-posting\nand hybrid", (64 * KIB, 230), -36)
    note(ax, "paper: NFS", (64 * KIB, published.point("3", "NFS")["rate"]))
    title = "3: asynchronous direct reads, 8 at a time"
    describe(figure, title, "Dashed: the paper's results. CPU with the card model's work",
             store.small_print)  # fmt: skip
    return Drawing("papers-blocks", title, "", "", figure)


def table_of_rates(store: Store, source: Part, head: str) -> list[list[str]]:
    """MB/s of all curves, a row for each block size or for each number of copied bytes."""
    rows = [[head, *(f"{name}, MB/s" for name in source.curves)]]
    for cell in source.cells:
        label = size_label(cell.record) if head == "block" else f"{cell.copy // KIB} KiB"
        rates = [store.value(source.name, name, cell, rate) for name in source.curves]
        rows.append([label, *(f"{value:.1f}" for value in rates)])
    return rows


def lines_of_blocks(store: Store) -> list[str]:
    blocks = part("blocks")
    rows = table_of_rates(store, blocks, "block")
    given = [f"{p['curve']} {p['rate']:.0f} MB/s" for p in published.points() if p["figure"] == "3"]
    return [f"The paper, from {published.point('3', 'NFS hybrid')['from'] // KIB} KiB on: "
            f"{', '.join(given)}.",
            checks(store, blocks),
            "", *markdown.table(rows)]  # fmt: skip


def checks(store: Store, source: Part) -> str:
    """Bytes that other counters have for the same cells."""
    wire = [each["wire"] for name in source.curves for c in source.cells
            for each in store.rounds(source.name, name, c)]  # fmt: skip
    return (
        f"Devices counted {min(wire):.3f} to {max(wire):.3f} bytes for each byte that the program "
        "read."
    )


# --- 3: figure 5 of the FAST paper ---


def draw_records(store: Store) -> Drawing:
    records = part("records")
    figure, (ax, beside) = panels(("throughput", "CPU of both ends"), one_scale=False)
    figure.subplots_adjust(wspace=0.72)
    plot(ax, {n: curve(store, records, n, "copy", rate) for n in records.curves}, LOOKS, room=1.3)
    ax.set_ylabel("MB/s")
    cpu_of(beside, store, records, "copy", records.curves, LOOKS)
    for each in (ax, beside):
        copies(each)
    title = "An application that copies a part of each record of 60 KiB"
    describe(figure, title, "One CPU is client and server. CPU with the card model's work",
             store.small_print)  # fmt: skip
    return Drawing("papers-records", title, "", "", figure)


def lines_of_records(store: Store) -> list[str]:
    records = part("records")
    rows = table_of_rates(store, records, "copied")
    first, last = ({n: store.value("records", n, records.cells[at], rate) for n in records.curves}
                   for at in (0, -1))  # fmt: skip
    falls = [f"{name} from {first[name]:.0f} to {last[name]:.0f} MB/s" for name in records.curves]
    return ["The paper: without copies, all but NFS come close to the wire; with copies, the order "
            "is that of the client's CPU time for 64 KiB.",
            f"Here, from no copy to a copy of all: {'; '.join(falls)}.",
            "", *markdown.table(rows)]  # fmt: skip


# --- the user-space client ---


def own_share(result: CellResult) -> float:
    """Percent of the CPU that the application used, its polling included."""
    return 100 * float(result["process"])


def over_blocks(
    ax: Axes, store: Store, name: str, cells: Sequence[Cell], figure: str, label: str
) -> None:
    """Throughput over block sizes, and that of a paper."""
    lines: Lines = {
        user: [(cell.record, store.value(name, user, cell, rate)) for cell in cells]
        for user in part(name).curves
    }
    point = published.point(figure, label)
    plot(ax, lines, USERS, room=1.3, least=point["rate"])
    ax.set_ylabel("MB/s")
    sizes(ax, papers.BLOCKS, "block")
    dashed(ax, point["from"], point["rate"])


def draw_user(store: Store) -> Drawing:
    blocks, records = part("user"), part("user-records")
    heads = ("3: 8 reads in flight", "4: CPU of the application",
             "5: CPU of both ends, records of 60 KiB")  # fmt: skip
    figure, axes = panels(heads, one_scale=False)
    figure.subplots_adjust(wspace=0.72)
    over_blocks(axes[0], store, blocks.name, blocks.cells, "3", "DAFS")
    point = published.point("4", "DAFS")
    plot(axes[1], {n: curve(store, blocks, n, "record", own_share) for n in LIBRARY}, USERS,
         least=100 * point["cpu"])  # fmt: skip
    dashed(axes[1], point["from"], 100 * point["cpu"])
    axes[1].set_ylabel("%")
    sizes(axes[1], papers.BLOCKS, "block")
    # all three have the rate of the wire
    cpu_of(axes[2], store, records, "copy", list(USERS), USERS)
    copies(axes[2])
    title = "A user-space client, figures 3 to 5 of 2003"
    describe(figure, title, "Dashed: the paper's DAFS", store.small_print)
    return Drawing("papers-user", title, "", "", figure)


def lines_of_user(store: Store) -> list[str]:
    blocks, records = part("user"), part("user-records")
    rows = table_of_rates(store, blocks, "block")
    rows[0] += [f"{name}, CPU of the application" for name in LIBRARY]
    for row, cell in zip(rows[1:], blocks.cells, strict=True):
        own = [store.value(blocks.name, name, cell, own_share) for name in LIBRARY]
        row += [f"{value:.0f} %" for value in own]
    copied = table_of_rates(store, records, "copied")
    fast, cpu = published.point("3", "DAFS"), published.point("4", "DAFS")
    return [
        f"The paper: DAFS {fast['rate']:.0f} MB/s from {fast['from'] // KIB} KiB on, with at most "
        f"{cpu['cpu']:.0%} of the client's CPU from {cpu['from'] // KIB} KiB on.",
        checks(store, blocks),
        "", *markdown.table(rows), "", *markdown.table(copied),
    ]  # fmt: skip


DEPTHS = {papers.TOGETHER: "asynchronous", papers.ALONE: "synchronous"}


def of_depth(depth: int) -> list[Cell]:
    return [cell for cell in part("2002").cells if cell.depth == depth]


def draw_2002(store: Store) -> Drawing:
    figure, axes = panels((f"{papers.TOGETHER} reads in flight", "one read at a time"))
    figure.subplots_adjust(wspace=0.72)
    for ax, (depth, label) in zip(axes, DEPTHS.items(), strict=True):
        over_blocks(ax, store, "2002", of_depth(depth), "3, 2002", label)
    title = "Figure 3 of the paper of 2002"
    describe(figure, title, "Dashed: the paper's DAFS, at least", store.small_print)
    return Drawing("papers-2002", title, "", "", figure)


def lines_of_2002(store: Store) -> list[str]:
    blocks = part("2002")
    depths = ((papers.TOGETHER, f"{papers.TOGETHER} in flight"), (papers.ALONE, "one at a time"))
    rows = [["block", *(f"{name}, {text}, MB/s" for _, text in depths for name in blocks.curves)]]
    for alone, together in zip(of_depth(papers.ALONE), of_depth(papers.TOGETHER), strict=True):
        rates = [store.value("2002", name, cell, rate)
                 for cell in (together, alone) for name in blocks.curves]  # fmt: skip
        rows.append([size_label(alone.record), *(f"{value:.1f}" for value in rates)])
    fast, slow = (published.point("3, 2002", label) for label in DEPTHS.values())
    return [
        f"The paper: more than {fast['rate']:.0f} MB/s from {fast['from'] // KIB} KiB on "
        f"with {papers.TOGETHER} reads in flight, almost {slow['rate']:.0f} MB/s, the rate of its "
        f"wire, from {slow['from'] // KIB} KiB on with one.",
        checks(store, blocks),
        "", *markdown.table(rows),
    ]  # fmt: skip


# --- 4: where padded pays ---


def ways_of_small_data(store: Store) -> Lines:
    """Microseconds of CPU time of both ends for a read, over its size."""
    padded = part("padded")
    return {
        name: [(each.record, both_us(store, padded.name, name, each)) for each in padded.cells]
        for name in padded.curves
    }


def both_us(store: Store, of_part: str, name: str, cell: Cell) -> float:
    """Microseconds of CPU time of both ends for a read."""
    ms = store.value(of_part, name, cell, papers.time_of_both)
    return ms * 1e3 * float(cell.record / (1 << 20))


def runs_us(store: Store, of_part: str, name: str, cell: Cell) -> list[float]:
    """Microseconds of CPU time of both ends for a read, of each run."""
    results = store.rounds(of_part, name, cell)
    return [papers.time_of_both(each) * 1e3 * float(cell.record / (1 << 20)) for each in results]


def text_of_runs(store: Store, source: Part) -> str:
    """How many runs a point has, and what its bar is."""
    runs = min(len(store.rounds(source.name, n, c)) for n in source.curves for c in source.cells)
    return f"Points: medians of {runs} runs; bars: all runs" if runs > 1 else "Points: one run each"


def draw_padded(store: Store) -> Drawing:
    figure, (ax,) = panels([""])
    lines = ways_of_small_data(store)
    padded = part("padded")
    # the cells of a curve differ less than the runs of one cell do: points, not a line
    for name, points in lines.items():
        spread = [runs_us(store, padded.name, name, each) for each in padded.cells]
        xs, ys = zip(*points, strict=True)
        below = [y - min(runs) for y, runs in zip(ys, spread, strict=True)]
        above = [max(runs) - y for y, runs in zip(ys, spread, strict=True)]
        color, mark = WAYS[name]
        ax.errorbar(xs, ys, yerr=[below, above], fmt=mark[0], color=color, label=name,
                    mfc=canvas.PAPER if mark.endswith("-") else color)  # fmt: skip
    ax.set_ylim(0, 1.12 * max(y for points in lines.values() for _, y in points))
    ax.legend(frameon=False, fontsize=9.5, loc="lower right")
    sizes(ax, papers.SMALLS, "direct reads, one at a time")
    ax.set_ylabel("CPU time of a read, both ends (us)")
    title = "A copy, a chunk, or padding"
    describe(figure, title, f"read-write: inline up to 8 KiB, then in a chunk. Without the card "
             f"model's work. {text_of_runs(store, padded)}", store.small_print)  # fmt: skip
    return Drawing("papers-padded", title, "", "", figure)


def lines_of_padded(store: Store) -> list[str]:
    lines = {name: dict(points) for name, points in ways_of_small_data(store).items()}
    rows = [["read", *(f"{name}, us" for name in lines)]]
    for size in papers.SMALLS:
        rows.append([size_label(size), *(f"{values[size]:.1f}" for values in lines.values())])
    return ["CPU time of both ends for a read, without the card model's work. "
            f"{text_of_runs(store, part('padded'))}.", "", *markdown.table(rows)]  # fmt: skip


# --- 5: why read-write replaced read-read ---


def trips(store: Store, name: str) -> float:
    """Round trips of a direct read: what a longer wire adds, over what it is longer."""
    near, far = (store.value(part, name, papers.ONE, latency) for part in ("near", "far"))
    links = (papers.NEAR, papers.FAR)
    short, long = (float(link.partition("/")[2].removesuffix("us")) for link in links)
    return (far - near) / (long - short)


def of_card(store: Store, name: str, counter: str) -> float:
    """A count of both cards for a read."""
    records = (1 << 20) / papers.ONE.record
    return store.value("near", name, papers.ONE, lambda f: f.get(f"card {counter}", 0) / records)


COUNTED = ("sends", "reads", "writes", "registrations", "completions", "interrupts")


def steps(store: Store, name: str) -> Steps:
    return papers.exposed(store.rounds("exposed", name, papers.DEEP)[0]["events"])


def dones(store: Store, name: str) -> float:
    """RDMA_DONEs of a read, by trace events."""
    results = store.rounds("exposed", name, papers.DEEP)
    reads = papers.DEEP.total / papers.DEEP.record
    counts = [sum(event[1] == "done" for event in result["events"]) for result in results]
    return float(median(counts) / reads)


def grouped(ax: Axes, heads: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Bars side by side, with their values."""
    for at, (name, ys) in enumerate(values.items()):
        xs = [each + 0.38 * at - 0.19 for each in range(len(heads))]
        bars = ax.bar(xs, ys, 0.36, color=LOOKS[name][0], label=name)
        texts = [f"{y:.2g}" if y < 10 else f"{y:.0f}" for y in ys]
        ax.bar_label(bars, texts, fontsize=7.5)
    ax.set_xticks(range(len(heads)), heads, fontsize=8.5)
    ax.set_ylim(0, 1.3 * max(max(ys) for ys in values.values()))
    ax.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=2)


def ranked(ax: Axes, heads: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Horizontal bars, a row for each head, with their values."""
    for at, (name, xs) in enumerate(values.items()):
        ys = [each + 0.38 * at - 0.19 for each in range(len(heads))]
        bars = ax.barh(ys, xs, 0.36, color=LOOKS[name][0], label=name)
        ax.bar_label(bars, [f"{x:.2g}" for x in xs], fontsize=7.5, padding=2)
    ax.set_yticks(range(len(heads)), heads, fontsize=8.5)
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.set_xlim(0, 1.15 * max(max(xs) for xs in values.values()))
    ax.tick_params(axis="y", length=0)


def draw_why(store: Store) -> Drawing:
    heads = ("Counts of a read", "CPU time of a read, both ends (us)",
             "Exposed memory, 8 reads at a time (KiB)",
             "Time of a read (us)")  # fmt: skip
    figure, axes = panels(heads, one_scale=False, room=False)
    figure.subplots_adjust(left=0.13, wspace=0.24, hspace=0.3)
    names = papers.DESIGNS
    counts = {n: [trips(store, n), dones(store, n), *(of_card(store, n, c) for c in COUNTED)]
              for n in names}  # fmt: skip
    ranked(axes[0], ("round trips", "DONEs", *COUNTED), counts)
    grouped(axes[1], ("without the card model's work",),
            {n: [both_us(store, "near", n, papers.ONE)] for n in names})  # fmt: skip
    means = {n: papers.mean_exposed(steps(store, n)) / KIB for n in names}
    # with read-write, the server's memory is not exposed; with read-read, the client's is not
    of_server = {n: means[n] if n == "read-read" else 0.0 for n in names}
    grouped(axes[2], ("the server's", "the client's"),
            {n: [of_server[n], means[n] - of_server[n]] for n in names})  # fmt: skip
    times = {n: [store.value(p, n, papers.ONE, latency) for p in ("near", "far")] for n in names}
    grouped(axes[3], (papers.NEAR, papers.FAR), times)
    title = "Why read-write replaced read-read: direct reads of 64 KiB"
    describe(figure, title, "Client and server are one machine", store.small_print)
    return Drawing("papers-why", title, "", "", figure)


def lines_of_why(store: Store) -> list[str]:
    rows = [["for a direct read of 64 KiB", *papers.DESIGNS]]
    for label, of in (("round trips", trips), ("RDMA_DONEs", dones)):
        rows.append([label, *(f"{of(store, name):.2f}" for name in papers.DESIGNS)])
    spent = [both_us(store, "near", name, papers.ONE) for name in papers.DESIGNS]
    rows.append(["CPU time of both ends, without the card model's work, us",
                 *(f"{us:.1f}" for us in spent)])  # fmt: skip
    for counter in COUNTED:
        values = [f"{of_card(store, name, counter):.2f}" for name in papers.DESIGNS]
        rows.append([f"{counter} of both cards", *values])
    means = [papers.mean_exposed(steps(store, name)) / KIB for name in papers.DESIGNS]
    rows.append(["exposed memory, mean, KiB (8 at a time)", *(f"{value:.0f}" for value in means)])
    return markdown.table(rows)


# --- reads into the same memory ---


def client_us(store: Store, name: str, cell: Cell) -> float:
    """Microseconds of CPU time of the client for a read."""
    ms = store.value("same", name, cell, papers.time_of_client)
    return ms * 1e3 * float(cell.record / (1 << 20))


def of_layers(result: CellResult) -> dict[str, int]:
    """The client's time by layer, without the sum of all."""
    return {layer: ns for layer, ns in result["sides"]["layers"].items() if layer != "busy"}


def layer_us(store: Store, name: str, cell: Cell, layer: str) -> float:
    """The same, of a layer."""

    def of(result: CellResult) -> float:
        layers = of_layers(result)
        return float(layers.get(layer, 0) / sum(layers.values()))

    return client_us(store, name, cell) * store.value("same", name, cell, of)


def lines_of_same(store: Store) -> list[str]:
    """The client's CPU time of a read of 64 KiB, beside read-write's, and by layer."""
    names = papers.KEEPERS
    deep, alone = part("same").cells
    rows = [["CPU time of the client, us", *names]]
    for cell, label in ((deep, "8 reads at a time"), (alone, "one read at a time")):
        spent = [client_us(store, name, cell) for name in names]
        rows.append([label, *(f"{us:.1f} ({us / spent[0]:.2f})" for us in spent)])
    layers = of_layers(store.rounds("same", names[0], deep)[0])
    for layer in sorted(layers, key=lambda each: -layers[each]):
        spent = [layer_us(store, name, deep, layer) for name in names]
        if max(spent) >= 1:
            rows.append([f"of the first row: {layer}", *(f"{us:.1f}" for us in spent)])
    return ["Direct reads of 64 KiB into the same memory; in brackets, the share of read-write's.",
            "", *markdown.table(rows)]  # fmt: skip


# --- the page ---


FIGURES: tuple[Section[Store], ...] = (
    ("2003", draw_2003, lines_of_2003, "Throughput over rsize, and CPU over throughput"),
    ("direct", draw_direct, lines_of_direct,
     "CPU time of direct reads over their size, as a share of that over TCP as in 2003"),
    ("blocks", draw_blocks, lines_of_blocks,
     "Throughput over block sizes, for two TCPs and all personalities"),
    ("same", None, lines_of_same, ""),
    ("records", draw_records, lines_of_records,
     "Throughput of an application over the bytes that it copies of each record"),
    ("user", draw_user, lines_of_user,
     "Throughput and CPU of a user-space client, over block sizes and copies"),
    ("2002", draw_2002, lines_of_2002,
     "Throughput of a user-space client over block sizes, 64 reads in flight and one"),
    ("padded", draw_padded, lines_of_padded,
     "CPU time over the size of a read, in a chunk, inline and behind padding"),
    ("why", draw_why, lines_of_why,
     "Counts of a read, CPU time, exposed memory and time of a read, for two personalities"),
)  # fmt: skip


def write(store: Store) -> None:
    """Draw and write the sections whose results are in the store."""
    place = Place(PAGE, "papers", "../img")
    figures.write(FIGURES, store, store.folder, place, ["", store.about])


def main(rounds: int = 1, kernel: str = LAB_KERNELS[0], only: str = "") -> None:
    """Measure figures of the papers of 2003 with all personalities, and draw them.

    Cells with a result stay; ``only``: parts, with commas between them.
    """
    store = Store(papers.RESULTS / kernel)
    todo = papers.jobs(store, rounds, only.split(",") if only else ())
    if todo:
        papers.measure(store, todo, kernel)
    write(store)
