# SPDX-License-Identifier: Apache-2.0
"""Draws what measure.py measured, beside mounts and the paper's values.

Only the texts between the marks of the page *Optimistic reads* are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench import figures, markdown, published
from bench.cells import KIB, Cell, CellResult, named
from bench.figures import Lines, Look, Place, Section, plot, sizes
from bench.optimistic import measure as optimistic
from bench.optimistic import page as optimistic_page
from bench.optimistic.measure import BLOCKS, HITS, NEAR, NONE, SETS, Store
from bench.optimistic.page import LINKS, PAGE, PAPERS, per_second, rate, wire
from bench.optimistic_user import measure as optimistic_user
from bench.optimistic_user.measure import DIRECT, INLINE, MEMORIES, OPTIMISTIC, WAYS
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from nfsrdma_tools.sizes import size_label

# the paper's name of each way, and the way of a mount
SYSTEMS = {INLINE: "DAFS, inline", DIRECT: "DAFS, direct", OPTIMISTIC: "ODAFS"}
MOUNTS = {INLINE: optimistic.INLINE, DIRECT: optimistic.DIRECT, OPTIMISTIC: optimistic.OURS_NAME}
# a colour for each way; dashed: that of a mount
COLOURS = {
    INLINE: canvas.personality_colour("pre-posted"),
    DIRECT: canvas.personality_colour("cached"),
    OPTIMISTIC: canvas.personality_colour("optimistic"),
}
MARKS = {INLINE: "D", DIRECT: "s", OPTIMISTIC: "h"}
LOOKS: dict[str, Look] = {
    **{SYSTEMS[way]: (COLOURS[way], MARKS[way]) for way in WAYS},
    **{f"mount: {MOUNTS[way]}": (COLOURS[way], f"{MARKS[way]}-") for way in WAYS},
}
# what was in memory of a session, and what a read of a session with a cache filled
TEXTS = {"direct": "into registered memory", "buffered": "into the session's cache"}


class Stores:
    """The results of libnfsrdma, and those of mounts, which may be absent."""

    def __init__(self, kernel: str) -> None:
        self.own = Store(optimistic_user.RESULTS / kernel)
        self.mounts = optimistic_page.Stores(kernel).card

    def mounted(self, part: str, way: str, cell: Cell) -> CellResult | None:
        """The result of a mount for the same cell."""
        try:
            return self.mounts.get(part, MOUNTS[way], cell)
        except KeyError:
            return None

    @property
    def about(self) -> list[str]:
        texts = [self.own.about]
        if (self.mounts.folder / "about.json").exists():
            texts.append(f"Mounts: {self.mounts.about}")
        return texts


def cells(name: str, **values: object) -> list[Cell]:
    """The cells of a part with some values."""
    part = named(optimistic_user.parts(), name)
    return [cell for cell in part.cells if values.items() <= cell.items()]


def second(result: CellResult) -> float:
    """Transactions a second."""
    return 1e6 / float(result["us"])


def speed(result: CellResult) -> float:
    return float(result["mb_s"])


def lines(
    stores: Stores,
    name: str,
    axis: str,
    own: Callable[[CellResult], float],
    mounted: Callable[[CellResult], float],
    **values: object,
) -> Lines:
    """Lines of the library and of mounts over a value of the cells."""
    curves: Lines = {}
    for way in named(optimistic_user.parts(), name).curves:
        for cell in cells(name, **values):
            value = own(stores.own.get(name, way, cell))
            curves.setdefault(SYSTEMS[way], []).append((cell[axis], value))
            other = stores.mounted(name, way, cell)
            if other:
                curves.setdefault(f"mount: {MOUNTS[way]}", []).append((cell[axis], mounted(other)))
    return curves


def measured(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """A table without the columns that have no value."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


# --- table 3 ---


def lines_of_response(stores: Stores) -> list[str]:
    rows: list[list[str]] = [["4 KiB read", *SYSTEMS.values()]]
    given = [published.point("Table 3", PAPERS[MOUNTS[way]])["us"] for way in WAYS]
    for at, memory in enumerate(MEMORIES):
        rows.append([f"paper: {TEXTS[memory]}, us", *(f"{each[at]:.0f}" for each in given)])
    for link, text in ((NONE, "no wire"), (NEAR, LINKS[NEAR])):
        for cell in cells("response", link=link):
            results = [stores.own.get("response", way, cell) for way in WAYS]
            rows.append([f"{text}: {TEXTS[cell['memory']]}, us",
                         *(f"{result['us']:.1f}" for result in results)])  # fmt: skip
            rows.append([f"{text}: RPCs", *(f"{result['rpcs']:.2f}" for result in results)])
    for link, part in ((NONE, "response"), (NEAR, "wire")):
        name = "no wire" if link == NONE else LINKS[link]
        (cell,) = (c for c in optimistic_page.part(part).cells if c["way"] == "direct")
        others = [stores.mounted(part, way, cell) for way in WAYS]
        if any(others):
            times = (f"{optimistic_page.us(result):.1f}" if result else "" for result in others)
            rows.append([f"{name}: a mount, direct reads, us", *times])
    return [*markdown.table(rows), "", *stores.about]


# --- figure 6 ---


def draw_files(stores: Stores) -> Drawing:
    figure, axes = panels(list(LINKS.values()), one_scale=False)
    figure.subplots_adjust(wspace=0.95)
    for ax, link in zip(axes, LINKS, strict=True):
        curves = lines(
            stores, "files", "hits", lambda result: second(result) / 1e3,
            lambda result: per_second(result) / 1e3, link=link, files="one",
        )  # fmt: skip
        plot(ax, curves, LOOKS)
        ax.set(xlabel="hits in the client's cache (%)", ylabel="thousands of transactions a second")
        ax.set_xticks(HITS)
    title = "6: files of 4 KiB, read without a mount"
    describe(figure, title, "One CPU of 1 GIPS is client and server. Dashed: over a mount",
             stores.own.small_print)  # fmt: skip
    return Drawing("optimistic-user-files", title, "", "", figure)


def lines_of_files(stores: Stores) -> list[str]:
    more = published.point("6", "ODAFS : DAFS")["ratio"] - 1
    heads = ["files", "wire", "hits", *(f"{SYSTEMS[way]}, a second" for way in WAYS),
             f"{SYSTEMS[OPTIMISTIC]} : {SYSTEMS[DIRECT]}",
             f"{SYSTEMS[OPTIMISTIC]} : the same over a mount"]  # fmt: skip
    return [
        f"The paper: {more:.0%} more transactions with each hit ratio.",
        "", *markdown.table(measured([heads, *rows_of_files(stores)])), "", *stores.about,
    ]  # fmt: skip


def rows_of_files(stores: Stores) -> Iterator[list[str]]:
    for name, (least, most) in SETS.items():
        size = "4 KiB" if least == most else f"{least // KIB} to {most // KIB} KiB"
        for cell in cells("files", files=name):
            rates = {way: second(stores.own.get("files", way, cell)) for way in WAYS}
            mounted = stores.mounted("files", OPTIMISTIC, cell)
            beside = f"{rates[OPTIMISTIC] / per_second(mounted):.2f}" if mounted else ""
            yield [size, LINKS[cell["link"]], f"{cell['hits']} %",
                   *(f"{rates[way]:,.0f}" for way in WAYS),
                   f"{rates[OPTIMISTIC] / rates[DIRECT]:.2f}", beside]  # fmt: skip


# --- figure 7 ---


def draw_streams(stores: Stores) -> Drawing:
    figure, (ax,) = panels([""])
    figure.subplots_adjust(right=0.78)
    plot(ax, lines(stores, "streams", "block", speed, rate), LOOKS)
    sizes(ax, BLOCKS, "block")
    wire(ax)
    ax.set_ylabel("MB/s")
    paper_rate = published.point("7", "DAFS, 4 KiB blocks, polling")["rate"]
    ax.plot(BLOCKS[0], paper_rate, "*", color=canvas.MUTED, ms=11, zorder=5)
    title = "7: two clients without a mount stream a file"
    finding = "Dashed: over a mount, and the wire's rate. Star: the paper's DAFS, blocks of 4 KiB"
    describe(figure, title, finding, stores.own.small_print)
    return Drawing("optimistic-user-streams", title, "", "", figure)


def lines_of_streams(stores: Stores) -> list[str]:
    ways = named(optimistic_user.parts(), "streams").curves
    rows: list[Sequence[str]] = [["block", *(f"{SYSTEMS[way]}, MB/s" for way in ways),
                                  *(f"mount: {MOUNTS[way]}, MB/s" for way in ways)]]  # fmt: skip
    for cell in cells("streams"):
        own = [f"{speed(stores.own.get('streams', way, cell)):.1f}" for way in ways]
        others = [stores.mounted("streams", way, cell) for way in ways]
        rows.append([size_label(cell["block"]), *own,
                     *(f"{rate(result):.1f}" if result else "" for result in others)])  # fmt: skip
    paper_rate = published.point("7", "DAFS, 4 KiB blocks, polling")["rate"]
    return [
        f"The paper: DAFS {paper_rate:.0f} MB/s with blocks of 4 KiB.",
        "", *markdown.table(measured(rows)), "", *stores.about,
    ]  # fmt: skip


# --- the page ---

FIGURES: tuple[Section[Stores], ...] = (
    ("user-response", None, lines_of_response, ""),
    ("user-files", draw_files, lines_of_files,
     "Transactions a second of clients with and without a mount, over hit ratios"),
    ("user-streams", draw_streams, lines_of_streams,
     "Throughput of two clients with and without a mount, over block sizes"),
)  # fmt: skip


def write(kernel: str) -> None:
    """Draw and write the sections whose results are in the store of a kernel."""
    stores = Stores(kernel)
    figures.write(FIGURES, stores, stores.own.folder, Place(PAGE, "optimistic", "../img"))


def main(kernel: str = KERNELS[0], only: str = "") -> None:
    """Measure optimistic reads of libnfsrdma beside its RPCs, and draw them.

    Cells with a result stay; ``only``: parts, with commas between them.
    """
    store = Store(optimistic_user.RESULTS / kernel)
    todo = optimistic_user.jobs(store, only.split(",") if only else ())
    if todo:
        optimistic_user.work(store, kernel, todo)
    write(kernel)
