# SPDX-License-Identifier: Apache-2.0
"""Draws what measure.py measured, and writes the numbers of the page *Optimistic reads*.

Only the texts between the marks of the page are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from bench import figures, markdown, published
from bench.cells import KIB, Cell, CellResult, named, own_work
from bench.figures import Lines, Place, Section, plot, sizes
from bench.optimistic import measure as optimistic
from bench.optimistic.measure import (
    BLOCKS,
    DIRECT,
    HITS,
    INLINE,
    NEAR,
    NONE,
    OURS_NAME,
    PATIENT,
    SETS,
    WIRE,
    Part,
    Store,
)
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from nfsrdma_tools.sizes import size_label

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "optimistic-reads.md"
RPC, OPTIMISTIC = map(canvas.personality_colour, ("read-write", "optimistic"))
LOOKS = {
    INLINE: (RPC, "D"), DIRECT: (RPC, "s-"), OURS_NAME: (OPTIMISTIC, "h"),
    PATIENT: (OPTIMISTIC, "X-"), "RPC": (RPC, "D"), "ends the queue pair": (OPTIMISTIC, "o"),
    "recoverable": (OPTIMISTIC, "h"), "recoverable, without pauses": (OPTIMISTIC, "X-"),
}  # fmt: skip
PAPERS = {INLINE: "RPC in-line read", DIRECT: "RPC direct read", OURS_NAME: "ORDMA read"}
KINDS = {"ends the queue pair": "N", "recoverable": "Y"}
# the colours of the kinds, which are all optimistic
REFUSED = {
    "ends the queue pair": canvas.transport_colour("other"),
    "recoverable": OPTIMISTIC,
    "recoverable, without pauses": OPTIMISTIC,
}
LINKS = {NEAR: "2 Gb/s, round trip 20 us", NONE: "no wire"}


class Stores:
    """The results over both devices; ``about`` has the conditions of those that exist."""

    def __init__(self, kernel: str) -> None:
        folders = (optimistic.RESULTS / f"{kernel}-{nic}" for nic in ("card", "rxe"))
        self.card, self.rxe = map(Store, folders)

    def about(self, *stores: Store) -> str:
        return " ".join(store.about for store in stores)


def part(name: str) -> Part:
    return named(optimistic.parts(), name)


def heads_of(store: Store, name: str) -> tuple[str, ...]:
    """The paper's three ways, and one more if a part has results of it."""
    cell = part(name).cells[0]
    return (*optimistic.THREE, *((PATIENT,) if store.path(name, PATIENT, cell).exists() else ()))


def us(result: CellResult) -> float:
    """Microseconds of an operation; on the instruction clock, thousands of instructions."""
    return float(result["ns"]) / 1e3


def of_side(result: CellResult, side: str) -> float:
    """Microseconds of CPU time of a side for an operation, without the device's work."""
    if not result["sides"]["client"] + result["sides"]["server"]:
        return 0.0
    return float(result["busy"]) / 1e3 * float(own_work(result, side))


def of_device(result: CellResult) -> float:
    """Microseconds of the device's work for an operation, which a real card does itself."""
    sides = result["sides"]
    whole = sum(sides[name] for name in ("client", "server", "neither")) + sides.get("card", 0)
    return float(result["busy"]) / 1e3 * float(sides.get("card", 0)) / float(whole)


def count(name: str) -> Callable[[CellResult], float]:
    return lambda result: float(result.get(name, 0.0))


# --- table 3 ---

COUNTS = (
    ("RPCs of nfsd", count("nfsd rpcs"), ".2f"),
    ("run time of nfsd's threads, us", lambda result: result["nfsd ns"] / 1e3, ".2f"),
    ("interrupts of the server's card", count("server card interrupts"), ".2f"),
    ("completions of the server's card", count("server card completions"), ".2f"),
    ("RDMA Reads of the client's card", count("client card reads"), ".2f"),
)


def rows_of(store: Store, name: str, link: str, heads: Sequence[str]) -> list[list[str]]:
    """The rows of table 3 for a device and a wire; an empty cell where a curve has no result."""
    known = {c["way"]: c for c in part(name).cells}
    # a part's curves beside the paper's three may come later
    known_curves = [c for c in part(name).curves if c in optimistic.THREE
                    or store.path(name, c, known["direct"]).exists()]  # fmt: skip

    def values(of: Callable[[CellResult], float], way: str, form: str) -> list[str]:
        numbers = [of(store.get(name, curve, known[way])) if curve in known_curves else None
                   for curve in heads]  # fmt: skip
        # a difference of two runs may be a little below 0
        return ["" if n is None else f"{n:{form}}".replace("-0.00", "0.00") for n in numbers]

    rows = [
        [f"{link}: response, us", *values(us, "direct", ".1f")],
        [f"{link}: response, into the page cache, us", *values(us, "buffered", ".1f")],
    ]
    for side in ("client", "server"):
        rows.append([f"{link}: CPU of the {side}, us",
                     *values(partial(of_side, side=side), "direct", ".1f")])  # fmt: skip
    rows.append([f"{link}: work of the emulated device, us", *values(of_device, "direct", ".1f")])
    for text, of, form in COUNTS:
        result = store.get(name, heads[0], known["direct"])
        if "card" not in text or result.get("server card interrupts") is not None:
            rows.append([f"{link}: {text}", *values(of, "direct", form)])
    return rows


def lines_of_response(stores: Stores) -> list[str]:
    heads = heads_of(stores.card, "wire")
    given = [published.point("Table 3", PAPERS[name])["us"] for name in PAPERS]
    others = [""] * (len(heads) - len(given))
    rows: list[list[str]] = [["4 KiB read", *heads]]
    for at, text in enumerate(("response, us", "response, into the client's cache, us")):
        rows.append([f"paper: {text}", *(f"{each[at]:.0f}" for each in given), *others])
    rows += rows_of(stores.card, "response", "modelled card, no wire", heads)
    rows += rows_of(stores.card, "wire", "modelled card, 2 Gb/s", heads)
    about = [stores.card]
    try:
        rows += rows_of(stores.rxe, "response", "soft-RoCE, no wire", heads)
        about.append(stores.rxe)
    except KeyError as missing:
        print(f"response: {missing}", flush=True)
    return [*shares(stores.card), "", *markdown.table(rows), "", stores.about(*about)]


def shares(store: Store) -> list[str]:
    """The response times as shares of the direct RPC's."""
    lines = []
    for name, text in (("response", "Without a wire"), ("wire", "With the paper's wire")):
        (cell,) = (c for c in part(name).cells if c["way"] == "direct")
        direct, ours = (us(store.get(name, curve, cell)) for curve in (DIRECT, OURS_NAME))
        lines.append(f"{text}, an optimistic read takes {ours:.1f} us, {ours / direct:.0%} of the "
                     f"{direct:.1f} us of a direct RPC read.")  # fmt: skip
    base, best = (published.point("Table 3", PAPERS[name])["us"][0] for name in (DIRECT, OURS_NAME))
    return [*lines, f"In the paper, it is {best / base:.0%}."]


def lines_of_layers(stores: Stores) -> list[str]:
    """The layers of a 4 KiB read, the most expensive first."""
    (cell,) = (c for c in part("response").cells if c["way"] == "direct")
    results = {name: stores.card.get("response", name, cell) for name in optimistic.THREE}

    def cost(name: str, layer: str) -> float:
        layers = results[name]["layers"]
        return float(results[name]["busy"] / 1e3 * layers.get(layer, 0) / sum(layers.values()))

    known = {layer for each in results.values() for layer in each["layers"]}
    rows = [["thousands of instructions", *results]]
    for layer in sorted(known, key=lambda layer: -max(cost(name, layer) for name in results)):
        rows.append([layer, *(f"{cost(name, layer):.1f}" for name in results)])
    return [*markdown.table(rows), "", stores.card.about]


# --- the first pass ---


def lines_of_first(stores: Stores) -> list[str]:
    (cell,) = part("first").cells
    result = stores.card.get("first", OURS_NAME, cell)
    total = result["operations"]
    extents = optimistic.FILE_SIZE >> 20
    return [
        f"{total:,.0f} reads of 4 KiB in random order, each page of {optimistic.FILE_SIZE >> 20} "
        f"MiB once: {result['nfsd reads'] * total:,.0f} READs by RPC, "
        f"{result['optimistic_reads'] * total:,.0f} optimistic reads. The file has {extents} "
        f"extents.", "", stores.card.about,
    ]  # fmt: skip


# --- refused reads ---


def share_of(cell: Cell) -> float:
    return 100 / cell["refuse"] if cell["refuse"] else 0.0


def measured(store: Store, name: str, kind: str) -> list[Cell]:
    """The measured cells of a part with a kind of card."""
    cells = [c for c in part(name).cells if c["recoverable"] == kind]
    return [c for c in cells if store.path(name, OURS_NAME, c).exists()]


def rpc_cost(store: Store) -> float:
    (cell,) = (c for c in part("response").cells if c["way"] == "direct")
    return us(store.get("response", INLINE, cell))


def of_refused(store: Store) -> dict[str, list[tuple[Cell, CellResult]]]:
    """The results by kind of card; KeyError if there are too few to compare."""
    by_kind = {
        text: [(c, store.get("refused", OURS_NAME, c)) for c in measured(store, "refused", kind)]
        for text, kind in KINDS.items()
    }
    if any(len(results) < 2 for results in by_kind.values()):
        raise KeyError("no result: refused")
    return by_kind


def draw_refused(stores: Stores) -> Drawing:
    store = stores.card
    figure, (ax,) = panels([""])
    by_kind = of_refused(store)
    lines = {text: [(share_of(c), us(result)) for c, result in by_kind[text]] for text in KINDS}
    more = measured(store, "bursts", "Y")
    if more:
        results = [(share_of(c), us(store.get("bursts", OURS_NAME, c))) for c in more]
        lines["recoverable, without pauses"] = sorted(results)
    xs = [x for points in lines.values() for x, _ in points]
    lines["RPC"] = [(x, rpc_cost(store)) for x in (min(xs), max(xs))]
    # lines from their ends to labels beside the panel would look like data
    for text, places in lines.items():
        color, mark = LOOKS[text]
        ax.plot(*zip(*places, strict=True), f"{mark}-", color=REFUSED.get(text, color), label=text,
                mec=canvas.PAPER, mew=0.7, clip_on=False)  # fmt: skip
    ax.set_ylim(0, 1.12 * max(y for places in lines.values() for _, y in places))
    ax.legend(frameon=False, fontsize=9.5, loc="lower right")
    for text, results_ in by_kind.items():
        for cell, result in results_:
            if result.get("optimistic_pauses"):
                color, mark = REFUSED[text], LOOKS[text][1]
                ax.plot(share_of(cell), us(result), mark, mfc=canvas.PAPER, mec=color, zorder=5)
    ax.set(xlabel="refused reads (%)", ylabel="thousands of instructions of a 4 KiB read")
    title = "What breaks it: refused optimistic reads"
    describe(figure, title, "Hollow: the mount paused optimistic reads", store.small_print)
    return Drawing("optimistic-refused", title, "", "", figure)


EVENTS = ("refused", "connects", "pauses")


def lines_of_refused(stores: Stores) -> list[str]:
    store = stores.card
    rows = [["card", "share to refuse", "us of a read", "optimistic", "refused reads",
             "connections", "pauses", "us of a read afterwards"]]  # fmt: skip
    for text, results in of_refused(store).items():
        for cell, result in results:
            numbers = [result.get(f"optimistic_{n}", 0) * result["operations"] for n in EVENTS]
            rows.append([text, f"{share_of(cell):.0f} %", f"{us(result):.1f}",
                         f"{result['optimistic_reads']:.1%}", *(f"{n:.0f}" for n in numbers),
                         f"{us(result['then']):.1f}"])  # fmt: skip
    lines = [f"A read by RPC takes {rpc_cost(store):.1f} us.", "", *markdown.table(rows)]
    more = [["share to refuse, recoverable", "us of a read", "optimistic", "pauses"]]
    for cell in measured(store, "bursts", "Y"):
        result = store.get("bursts", OURS_NAME, cell)
        pauses = result.get("optimistic_pauses", 0) * result["operations"]
        more.append([f"{share_of(cell):.0f} %", f"{us(result):.1f}",
                     f"{result['optimistic_reads']:.1%}", f"{pauses:.0f}"])  # fmt: skip
    if more[1:]:
        lines += ["", "In bursts that are too short for a pause:", "", *markdown.table(more)]
    return [*lines, "", store.about]


# --- figure 6 ---


def cells_of(link: str, name: str) -> list[Cell]:
    return [c for c in part("files").cells if c["link"] == link and c["files"] == name]


def per_second(result: CellResult) -> float:
    return 1e9 / float(result["ns"])


def server_share(result: CellResult) -> float:
    """The share of the time that the threads of nfsd ran."""
    return float(result["nfsd ns"]) / float(result["ns"])


def of_files(store: Store, cell: Cell) -> dict[str, CellResult]:
    """The results of a cell; without a wire, each optimistic read is polled anyway."""
    results = {name: store.get("files", name, cell) for name in optimistic.THREE}
    if cell in part("patient").cells and store.path("patient", PATIENT, cell).exists():
        results[PATIENT] = store.get("patient", PATIENT, cell)
    return results


def draw_files(stores: Stores) -> Drawing:
    store = stores.card
    figure, axes = panels(list(LINKS.values()), one_scale=False)
    figure.subplots_adjust(wspace=0.75)
    for ax, link in zip(axes, LINKS, strict=True):
        lines: Lines = {}
        for cell in cells_of(link, "one"):
            for name, result in of_files(store, cell).items():
                lines.setdefault(name, []).append((cell["hits"], per_second(result) / 1e3))
        plot(ax, lines, LOOKS)
        ax.set(xlabel="hits in the client's cache (%)", ylabel="thousands of transactions a second")
        ax.set_xticks(HITS)
    title = "6: files of 4 KiB, opened, read and closed"
    describe(figure, title, "One CPU of 1 GIPS is client and server", store.small_print)
    return Drawing("optimistic-files", title, "", "", figure)


def lines_of_files(stores: Stores) -> list[str]:
    store = stores.card
    heads = heads_of(store, "patient")
    rows = [["files", "wire", "hits", *(f"{name}, a second" for name in heads),
             *(f"{name} : {DIRECT}" for name in heads[2:])]]  # fmt: skip
    results: dict[str, list[CellResult]] = {name: [] for name in (*heads, PATIENT)}
    for name, (least, most) in SETS.items():
        for link, text in LINKS.items():
            for cell in cells_of(link, name):
                by_curve = of_files(store, cell)
                for curve, result in by_curve.items():
                    results[curve].append(result)
                rates = {curve: per_second(result) for curve, result in by_curve.items()}
                size = "4 KiB" if least == most else f"{least // KIB} to {most // KIB} KiB"
                rows.append([size, text, f"{cell['hits']} %",
                             *(f"{rates[n]:,.0f}" if n in rates else "" for n in heads),
                             *(f"{rates[n] / rates[DIRECT]:.2f}" if n in rates else ""
                               for n in heads[2:])])  # fmt: skip
    given = published.point("6", "ODAFS : DAFS")["ratio"]
    busy = ", ".join(f"{share:.0%}" for share in published.point("6", "DAFS")["cpu"])
    return [
        f"The paper: {given - 1:.0%} more transactions with each hit ratio; the CPU of the server "
        f"busy for {busy} with RPC, and idle without.",
        f"Here, threads of nfsd run for {span(results[INLINE], server_share)} of the time with "
        f"{INLINE}, for {span(results[DIRECT], server_share)} with {DIRECT}, and for "
        f"{span([*results[OURS_NAME], *results[PATIENT]], server_share)} with optimistic reads. "
        f"{span(results[OURS_NAME], used)} of the misses are optimistic reads.",
        *("", *markdown.table(rows), "", store.about),
    ]


def span(results: Sequence[CellResult], of: Callable[[CellResult], float]) -> str:
    """The lowest and the highest value of some results, in percent."""
    ends = [f"{of_all(map(of, results)):.0%}" for of_all in (min, max)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def used(result: CellResult) -> float:
    """The share of the client's READs that were optimistic."""
    reads = result["optimistic_reads"] + result["nfsd reads"]
    return float(result["optimistic_reads"] / reads) if reads else 0.0


# --- figure 7 ---


def rate(result: CellResult) -> float:
    return float(result["bytes"]) / float(result["ns"]) * 1e3


def bound(result: CellResult, block: int) -> float:
    """MB/s that two clients and a server with a CPU each could reach over the wire."""
    client, server = (of_side(result, side) for side in ("client", "server"))
    limits = [WIRE, *(number * block / cost for number, cost in ((2, client), (1, server)) if cost)]
    return min(limits)


def streams_of(store: Store, of: Callable[[CellResult, int], float]) -> Lines:
    streams = part("streams")
    return {
        name: [(c["block"], of(store.get("streams", name, c), c["block"])) for c in streams.cells]
        for name in streams.curves
    }


def draw_streams(stores: Stores) -> Drawing:
    store = stores.card
    heads = (
        *("7: throughput, one CPU for all", "7: with a CPU each, computed"),
        *(f"CPU of the {end} for a block (us)" for end in ("server", "client")),
    )
    figure, axes = panels(heads, one_scale=False)
    figure.subplots_adjust(wspace=0.75, hspace=0.4)
    plot(axes[0], streams_of(store, lambda f, _: rate(f)), LOOKS)
    plot(axes[1], streams_of(store, bound), LOOKS)
    plot(axes[2], streams_of(store, lambda f, _: of_side(f, "server")), LOOKS)
    plot(axes[3], streams_of(store, lambda f, _: of_side(f, "client")), LOOKS)
    for ax in axes:
        sizes(ax, BLOCKS, "block")
    for ax in axes[:2]:
        wire(ax)
        ax.set_ylabel("MB/s")
    title = "Two mounts that stream a file from the server's memory"
    describe(figure, title, "Dashed: the rate of the wire", store.small_print)
    return Drawing("optimistic-streams", title, "", "", figure)


def wire(ax: Axes) -> None:
    ax.axhline(WIRE, color=canvas.MUTED, ls=(0, (5, 3)), lw=1.1)
    ax.set_ylim(0, 1.12 * WIRE)


def lines_of_streams(stores: Stores) -> list[str]:
    store, streams = stores.card, part("streams")
    heads = ("MB/s", "busy", "client, us", "server, us", "a CPU each, MB/s")
    rows = [["block", *(f"{name}, {each}" for name in streams.curves for each in heads)]]
    for cell in streams.cells:
        cells = [size_label(cell["block"])]
        for name in streams.curves:
            result = store.get("streams", name, cell)
            cells += [f"{rate(result):.1f}", f"{result['busy'] / result['ns']:.0%}",
                      *(f"{of_side(result, side):.1f}" for side in ("client", "server")),
                      f"{bound(result, cell['block']):.0f}"]  # fmt: skip
        rows.append(cells)
    return [*markdown.table(rows), "", store.about]


# --- the page ---

FIGURES: tuple[Section[Stores], ...] = (
    ("response", None, lines_of_response, ""),
    ("layers", None, lines_of_layers, ""),
    ("files", draw_files, lines_of_files,
     "Transactions a second over hit ratios, with and without a wire"),
    ("streams", draw_streams, lines_of_streams,
     "Throughput of two mounts, and CPU time of both ends, over block sizes"),
    ("first", None, lines_of_first, ""),
    ("refused", draw_refused, lines_of_refused,
     "Instructions of a read over the share of refused reads"),
)  # fmt: skip


def write(kernel: str) -> None:
    """Draw and write the sections whose results are in the stores of a kernel."""
    stores = Stores(kernel)
    place = Place(PAGE, "optimistic", "../img")
    figures.write(FIGURES, stores, stores.card.folder, place)


def main(kernel: str = KERNELS[0], nic: str = "card", only: str = "") -> None:
    """Measure optimistic reads beside reads by RPC, and draw them.

    Cells with a result stay; ``only``: parts, with commas between them.
    """
    store = Store(optimistic.RESULTS / f"{kernel}-{nic}")
    todo = optimistic.jobs(store, nic, only.split(",") if only else ())
    if todo:
        optimistic.work(store, nic, kernel, todo)
    write(kernel)
