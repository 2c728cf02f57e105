# SPDX-License-Identifier: Apache-2.0
"""Draws what papers.py measured, and writes the numbers of docs/papers.md.

Only the texts between the marks of the page are generated: values of the papers and the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from bench import figures, page, papers, published
from bench.cells import KIB, Cell, Found, named
from bench.figures import Lines, Place, Point, Section, plot, sizes
from bench.paper import OLD, TODAY
from bench.papers import KERNELS, Part, Steps, Store
from nfsrdma_tools.host.nfs.personality import PERSONALITIES
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from nfsrdma_tools.sizes import size_label

PAGE = Path(__file__).parents[1] / "docs" / "papers.md"
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
# the ways of small data
WAYS = {
    "read-write": LOOKS["read-write"],
    # version 1 with larger messages
    papers.COPIED: (canvas.personality_colour("read-write"), "o-"),
    papers.PADDED: LOOKS["padded"],
}
ENDS = ("client", "server")


def part(name: str) -> Part:
    return named(papers.parts(), name)


def curve(store: Store, one: Part, name: str, x: str, of: Callable[[Found], float]) -> list[Point]:
    """A point for each cell: a field of the cell, and a value of its results."""
    return [(each[x], store.value(one.name, name, each, of)) for each in one.cells]


def rate(found: Found) -> float:
    return float(found["rate"])


def share(found: Found) -> float:
    return 100 * float(found["cpu"])


def latency(found: Found) -> float:
    """Microseconds of a read."""
    return float(found["us"])


def note(ax: Axes, text: str, place: Point, above: int = 4) -> None:
    ax.annotate(text, place, (4, above), textcoords="offset points", fontsize=8.5,
                color=canvas.MUTED)  # fmt: skip


def star(ax: Axes, x: float, y: float, text: str) -> None:
    """A value of a paper; the scale includes it."""
    ax.plot(x, y, "*", color=canvas.INK, ms=11, zorder=5)
    ax.annotate(text, (x, y), (0, -17), textcoords="offset points", ha="center", fontsize=8.5)
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.2 * y))


# --- 1: figures 15 to 18 of 2003 ---


def ahead(count: int) -> list[Cell]:
    return [each for each in part("ahead").cells if each["ahead"] == count]


def over_ahead(ax: Axes, store: Store, name: str, figure: str, label: str) -> None:
    """Throughput over rsize, a line for each number of reads ahead."""
    colors = canvas.ordered_colours(len(papers.AHEAD))
    looks = {f"{n} ahead": (c, "o") for n, c in zip(papers.AHEAD, colors, strict=True)}
    lines = {
        f"{count} ahead": [
            (each["rsize"], store.value("ahead", name, each, rate)) for each in ahead(count)
        ]
        for count in papers.AHEAD
    }
    plot(ax, lines, looks)
    sizes(ax, papers.SIZES, "rsize")
    ax.set_ylabel("MB/s")
    found = published.point(figure, label)
    star(ax, found["size"], found["rate"], f"paper, {found['ahead']} ahead")


def client_ratio(store: Store, name: str, size: int) -> float:
    """The client's CPU time for a direct read, over that with TCP as in 2003."""
    (one,) = (each for each in part("direct").cells if each["record"] == size)
    mine, tcp = (store.value("direct", n, one, papers.time_of("client")) for n in (name, OLD))
    return mine / tcp


def draw_2003(store: Store) -> Drawing:
    heads = (f"15: {OLD}", "16: read-read", "17: CPU against throughput, 4 reads ahead",
             f"18: CPU of the client, share of that of {OLD}")  # fmt: skip
    figure, axes = panels(heads, one_scale=False)
    figure.subplots_adjust(wspace=0.72)
    over_ahead(axes[0], store, OLD, "15", "TCP")
    over_ahead(axes[1], store, "read-read", "16", "RDMA")
    lines = {}
    for name in part("ahead").curves:
        cells = ahead(4)
        values = [tuple(store.value("ahead", name, c, of) for of in (rate, share)) for c in cells]
        lines[name] = sorted((x, y) for x, y in values)
    plot(axes[2], lines, LOOKS)
    axes[2].set(xlabel="MB/s", ylabel="CPU of both ends (%)", xlim=(0, None))
    low, high = published.point("18", "RDMA : TCP")["ratio"]
    axes[3].axhspan(low, high, color=canvas.GRID, zorder=0)
    others = [name for name in part("direct").curves if name != OLD]
    plot(axes[3], {name: [(s, client_ratio(store, name, s)) for s in papers.SIZES]
                   for name in others}, LOOKS)  # fmt: skip
    sizes(axes[3], papers.SIZES, "direct reads, one at a time")
    note(axes[3], "the paper's range", (papers.SIZES[0], low))
    title = 'Figures 15 to 18 of "NFS over RDMA" (2003)'
    describe(figure, title, "Stars and the band: the paper's results", store.small_print)
    return Drawing("papers-2003", title, "", "", figure)


def said_2003(store: Store) -> list[str]:
    """The results, and the table of the client's CPU time."""
    ranges = []
    for name in ("read-read", "read-write", KERNELS):
        values = [client_ratio(store, name, size) for size in papers.SIZES]
        ranges.append(f"{name} {values[0]:.2f} for 8 KiB and {values[-1]:.2f} for "
                      f"{papers.SIZES[-1] // KIB} KiB")  # fmt: skip
    peaks = []
    for name in part("ahead").curves:
        best = max(part("ahead").cells, key=lambda c: store.value("ahead", name, c, rate))
        peaks.append(f"{name} {store.value('ahead', name, best, rate):.0f} MB/s "
                     f"({best['rsize'] // KIB} KiB, {best['ahead']} ahead)")  # fmt: skip
    names = part("direct").curves
    rows = [["read", *(f"{n}, {end}, ms per MiB" for n in names for end in ("client", "server"))]]
    for one in part("direct").cells:
        times = [store.value("direct", n, one, papers.time_of(end))
                 for n in names for end in ("client", "server")]  # fmt: skip
        rows.append([size_label(one["record"]), *(f"{value:.3f}" for value in times)])
    tcp, rdma = published.point("15", "TCP"), published.point("16", "RDMA")
    low, high = published.point("18", "RDMA : TCP")["ratio"]
    return [
        f"The paper: TCP reached {tcp['rate']:.0f} MB/s and RDMA {rdma['rate']:.0f} MB/s, and the "
        f"client needed {low:.0%} to {high:.0%} of TCP's CPU time.",
        f"Here, the highest rates are: {'; '.join(peaks)}.",
        f"For direct reads, the client's CPU time is this share of that with {OLD}: "
        f"{'; '.join(ranges)}.",
        "", *page.table(rows),
    ]  # fmt: skip


# --- 2: figures 3 and 4 of the FAST paper ---


def draw_blocks(store: Store) -> Drawing:
    one = part("blocks")
    figure, axes = panels(("3: throughput", "4: CPU of the client"), one_scale=False)
    figure.subplots_adjust(wspace=0.62)
    rates = {n: curve(store, one, n, "record", rate) for n in one.curves}
    # the labels of curves that end together need room
    plot(axes[0], rates, LOOKS, room=1.35)
    cpu = {n: curve(store, one, n, "record", lambda f: 100 * papers.of_client(f))
           for n in one.curves}  # fmt: skip
    plot(axes[1], cpu, LOOKS)
    axes[0].set_ylabel("MB/s")
    axes[1].set_ylabel("CPU of the client (%)")
    for ax in axes:
        sizes(ax, papers.BLOCKS, "block")
    for found in published.points():
        if found["figure"] == "3":
            ends = (found.get("from", papers.BLOCKS[0]), papers.BLOCKS[-1])
            axes[0].plot(ends, [found["rate"]] * 2, color=canvas.MUTED, ls=(0, (5, 3)), lw=1.1)
    # where no curve is; the values of two designs are close
    note(axes[0], "paper: pre-posting\nand hybrid", (64 * KIB, 230), -36)
    note(axes[0], "paper: NFS", (64 * KIB, published.point("3", "NFS")["rate"]))
    dafs = published.point("4", "DAFS")
    ends = (dafs["from"], papers.BLOCKS[-1])
    axes[1].fill_between(ends, 0, 100 * dafs["cpu"], color=canvas.GRID, zorder=0)
    note(axes[1], "paper: DAFS", (ends[0], 0))
    title = "Asynchronous direct reads over the block size, 8 at a time"
    describe(figure, title, "Dashed and shaded: the paper's results", store.small_print)
    return Drawing("papers-blocks", title, "", "", figure)


def said_blocks(store: Store) -> list[str]:
    one = part("blocks")
    rows = [["block", *(f"{n}, {what}" for n in one.curves for what in ("MB/s", "client"))]]
    for each in one.cells:
        cells = [size_label(each["record"])]
        for name in one.curves:
            cells.append(f"{store.value('blocks', name, each, rate):.1f}")
            cells.append(f"{store.value('blocks', name, each, papers.of_client):.1%}")
        rows.append(cells)
    middle = cell_of(one, record=64 * KIB)
    found = [f"{name} {store.value('blocks', name, middle, rate):.0f} MB/s with "
             f"{store.value('blocks', name, middle, papers.of_client):.1%}"
             for name in one.curves]  # fmt: skip
    said = [f"{p['curve']} {p['rate']:.0f} MB/s" for p in published.points() if p["figure"] == "3"]
    return [f"The paper, from {published.point('3', 'NFS hybrid')['from'] // KIB} KiB on: "
            f"{', '.join(said)}.",
            f"Here, with 64 KiB, rates and shares of the client's CPU are: {'; '.join(found)}.",
            checks(store, one),
            "", *page.table(rows)]  # fmt: skip


def checks(store: Store, one: Part) -> str:
    """Values of other counters for the same cells."""
    found = [each for name in one.curves for c in one.cells
             for each in store.rounds(one.name, name, c)]  # fmt: skip
    wire = [each["wire"] for each in found]
    # the server does nothing for optimistic reads
    sides = [each["sides"] for each in found if each["sides"]["nfsd"] and each["sides"]["server"]]
    nfsd = [each["nfsd"] / each["server"] for each in sides]
    return (
        f"Devices counted {min(wire):.3f} to {max(wire):.3f} bytes for each byte that the program "
        f"read; by the scheduler, threads of nfsd ran for {min(nfsd):.2f} to {max(nfsd):.2f} of "
        "the server's CPU time, since they do work of the modelled card, too."
    )


def cell_of(one: Part, **fields: int) -> Cell:
    (found,) = (c for c in one.cells if all(c[key] == value for key, value in fields.items()))
    return found


# --- 3: figure 5 of the FAST paper ---


def draw_records(store: Store) -> Drawing:
    one = part("records")
    figure, (ax,) = panels([""])
    plot(ax, {n: curve(store, one, n, "copy", rate) for n in one.curves}, LOOKS, room=1.3)
    ax.set_xticks(papers.COPIES, [f"{value / KIB:g}" for value in papers.COPIES])
    ax.set(xlabel="copied of each record of 60 KiB (KiB)", ylabel="MB/s")
    title = "An application that copies a part of each record"
    describe(figure, title, "One CPU is client and server", store.small_print)
    return Drawing("papers-records", title, "", "", figure)


def said_records(store: Store) -> list[str]:
    one = part("records")
    rows = [["copied", *(f"{name}, MB/s" for name in one.curves)]]
    for each in one.cells:
        rates = [store.value("records", name, each, rate) for name in one.curves]
        rows.append([f"{each['copy'] // KIB} KiB", *(f"{value:.1f}" for value in rates)])
    first, last = ({n: store.value("records", n, one.cells[at], rate) for n in one.curves}
                   for at in (0, -1))  # fmt: skip
    falls = [f"{name} from {first[name]:.0f} to {last[name]:.0f} MB/s" for name in one.curves]
    order = sorted(last, key=lambda name: -last[name])
    return ["The paper: without copies, all but NFS come close to the wire; with copies, the order "
            "is that of the client's CPU time for 64 KiB.",
            f"Here, from no copy to a copy of all: {'; '.join(falls)}.",
            f"The order with a copy of all is {', '.join(order)}.",
            "", *page.table(rows)]  # fmt: skip


# --- 4: where padded pays ---


def ways_of_small_data(store: Store, end: str) -> Lines:
    """Microseconds of CPU time of an end for a read, over its size."""
    one = part("padded")
    of = papers.time_of(end)
    return {name: [(each["record"], store.value(one.name, name, each, of) * 1e3 *
                    (each["record"] / (1 << 20))) for each in one.cells]
            for name in one.curves}  # fmt: skip


def draw_padded(store: Store) -> Drawing:
    figure, axes = panels(("CPU of the client", "CPU of the server"), one_scale=False)
    figure.subplots_adjust(wspace=0.75)
    for ax, end in zip(axes, ENDS, strict=True):
        plot(ax, ways_of_small_data(store, end), WAYS)
        sizes(ax, papers.SMALLS, "direct reads, one at a time")
        ax.set_ylabel("us for a read")
    title = "Where padded begins and ends to pay"
    describe(figure, title, "read-write: inline up to 8 KiB, then in a chunk", store.small_print)
    return Drawing("papers-padded", title, "", "", figure)


def cheapest(store: Store, end: str) -> str:
    """The sizes of which padded needs the least CPU time of an end."""
    lines = ways_of_small_data(store, end)
    mine = dict(lines[papers.PADDED])
    others = [dict(lines[name]) for name in papers.SMALL if name != papers.PADDED]
    found = [size for size in mine if all(mine[size] < one[size] for one in others)]
    words = ", ".join(size_label(int(size)) for size in found)
    return f"the {end}: {words or 'none'}"


def said_padded(store: Store) -> list[str]:
    lines = [(n, end, dict(ways_of_small_data(store, end)[n]))
             for n in papers.SMALL for end in ENDS]  # fmt: skip
    rows = [["read", *(f"{name}, {end}, us" for name, end, _ in lines)]]
    for size in papers.SMALLS:
        rows.append([size_label(size), *(f"{values[size]:.1f}" for _, _, values in lines)])
    found = "; ".join(cheapest(store, end) for end in ENDS)
    return [f"padded needs less CPU time than both others for these sizes: {found}.", "",
            *page.table(rows)]  # fmt: skip


# --- 5: why read-write replaced read-read ---


def trips(store: Store, name: str) -> float:
    """Round trips of a direct read: what a longer wire adds, over what it is longer."""
    near, far = (store.value(part, name, papers.ONE, latency) for part in ("near", "far"))
    links = (papers.NEAR, papers.FAR)
    short, long = (float(link.partition("/")[2].removesuffix("us")) for link in links)
    return (far - near) / (long - short)


def of_card(store: Store, name: str, what: str) -> float:
    """A count of both cards for a read."""
    records = (1 << 20) / papers.ONE["record"]
    return store.value("near", name, papers.ONE, lambda f: f.get(f"card {what}", 0) / records)


COUNTED = ("sends", "reads", "writes", "registrations", "completions", "interrupts")


def steps(store: Store, name: str) -> Steps:
    return papers.exposed(store.rounds("exposed", name, papers.DEEP)[0]["events"])


def dones(store: Store, name: str) -> float:
    """RDMA_DONEs of a read, by trace events."""
    found = store.rounds("exposed", name, papers.DEEP)
    reads = papers.DEEP["total"] / papers.DEEP["record"]
    counts = [sum(event[1] == "done" for event in one["events"]) for one in found]
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


def draw_why(store: Store) -> Drawing:
    heads = ("Counts of a read", "CPU time of a read (us)", "Exposed memory, 8 reads at a time",
             "Time of a read (us)")  # fmt: skip
    figure, axes = panels(heads, one_scale=False, room=False)
    figure.subplots_adjust(wspace=0.24, hspace=0.42)
    names = papers.DESIGNS
    counts = {n: [trips(store, n), dones(store, n), *(of_card(store, n, what) for what in COUNTED)]
              for n in names}  # fmt: skip
    grouped(axes[0], ("round trips", "DONEs", *COUNTED), counts)
    axes[0].tick_params(axis="x", rotation=30)
    grouped(axes[1], ENDS, {n: [cpu_of(store, n, end) for end in ENDS] for n in names})
    for name in names:
        xs, ys = zip(*steps(store, name), strict=True)
        of = "client" if name == "read-write" else "server"
        axes[2].step(xs, [y / KIB for y in ys], where="post", color=LOOKS[name][0], lw=1.2,
                     label=f"{name}: memory of the {of}")  # fmt: skip
    axes[2].set(xlabel="us", ylabel="KiB that the peer may access")
    axes[2].set_ylim(0, 1.3 * axes[2].get_ylim()[1])
    axes[2].legend(frameon=False, fontsize=8.5, loc="upper left")
    times = {n: [store.value(p, n, papers.ONE, latency) for p in ("near", "far")] for n in names}
    grouped(axes[3], (papers.NEAR, papers.FAR), times)
    title = "Why read-write replaced read-read: direct reads of 64 KiB"
    describe(figure, title, "Client and server are one machine", store.small_print)
    return Drawing("papers-why", title, "", "", figure)


def cpu_of(store: Store, name: str, end: str) -> float:
    """Microseconds of CPU time of an end for a read."""
    ms = store.value("near", name, papers.ONE, papers.time_of(end))
    return ms * 1e3 * float(papers.ONE["record"] / (1 << 20))


def said_why(store: Store) -> list[str]:
    rows = [["for a direct read of 64 KiB", *papers.DESIGNS]]
    for what, of in (("round trips", trips), ("RDMA_DONEs", dones)):
        rows.append([what, *(f"{of(store, name):.2f}" for name in papers.DESIGNS)])
    for end in ENDS:
        rows.append([f"CPU time of the {end}, us",
                     *(f"{cpu_of(store, name, end):.1f}" for name in papers.DESIGNS)])  # fmt: skip
    for what in COUNTED:
        values = [f"{of_card(store, name, what):.2f}" for name in papers.DESIGNS]
        rows.append([f"{what} of both cards", *values])
    means = [papers.mean_exposed(steps(store, name)) / KIB for name in papers.DESIGNS]
    rows.append(["exposed memory, mean, KiB (8 at a time)", *(f"{value:.0f}" for value in means)])
    return page.table(rows)


# --- reads into the same memory ---


def client_us(store: Store, name: str, one: Cell) -> float:
    """Microseconds of CPU time of the client for a read."""
    ms = store.value("same", name, one, papers.time_of("client"))
    return ms * 1e3 * float(one["record"] / (1 << 20))


def of_layers(found: Found) -> dict[str, int]:
    """The client's time by layer, without the sum of all."""
    return {layer: ns for layer, ns in found["sides"]["layers"].items() if layer != "busy"}


def layer_us(store: Store, name: str, one: Cell, layer: str) -> float:
    """The same, of a layer."""

    def of(found: Found) -> float:
        layers = of_layers(found)
        return float(layers.get(layer, 0) / sum(layers.values()))

    return client_us(store, name, one) * store.value("same", name, one, of)


def said_same(store: Store) -> list[str]:
    """The client's CPU time of a read of 64 KiB, beside read-write's, and by layer."""
    names = papers.KEEPERS
    deep, alone = part("same").cells
    rows = [["CPU time of the client, us", *names]]
    for one, what in ((deep, "8 reads at a time"), (alone, "one read at a time")):
        spent = [client_us(store, name, one) for name in names]
        rows.append([what, *(f"{us:.1f} ({us / spent[0]:.2f})" for us in spent)])
    found = of_layers(store.rounds("same", names[0], deep)[0])
    for layer in sorted(found, key=lambda each: -found[each]):
        spent = [layer_us(store, name, deep, layer) for name in names]
        if max(spent) >= 1:
            rows.append([f"of the first row: {layer}", *(f"{us:.1f}" for us in spent)])
    return ["Direct reads of 64 KiB into the same memory; in brackets, the share of read-write's.",
            "", *page.table(rows)]  # fmt: skip


# --- the page ---


FIGURES: tuple[Section[Store], ...] = (
    ("2003", draw_2003, said_2003,
     "Throughput over rsize, CPU over throughput, and the client's CPU time over that with TCP"),
    ("blocks", draw_blocks, said_blocks,
     "Throughput and CPU of the client over block sizes, for two TCPs and all personalities"),
    ("same", None, said_same, ""),
    ("records", draw_records, said_records,
     "Throughput of an application over the bytes that it copies of each record"),
    ("padded", draw_padded, said_padded,
     "CPU time of both ends over the size of a read, in a chunk, inline and behind padding"),
    ("why", draw_why, said_why,
     "Counts of a read, CPU time, exposed memory and time of a read, for two personalities"),
)  # fmt: skip


def write(store: Store) -> None:
    """Draw and write the sections whose results are in the store."""
    place = Place(PAGE, "papers", "img")
    figures.write(FIGURES, store, store.folder, place, ["", store.about])
