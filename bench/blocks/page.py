# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of what measure.py measured, into the page of benchmarks and that of blocks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import markdown
from bench.blocks import measure as blocks
from bench.blocks import python
from bench.blocks.measure import FOUR, MANY, MODEL, ONE, RDMA, RESULTS, TCP, Store, instructions
from bench.blocks.workload import Cell
from bench.cells import CellResult, named
from bench.python_cost import measure, run_counted
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.sizes import size_label

HOW_TO = markdown.PAGE.parents[1] / "how-to" / "blocks.md"
# the procedure that moves the data of an operation, and the counter of nfsd
MOVES = {"get": "reads", "put": "writes"}
WORDS = {"reads": "READs", "writes": "WRITEs"}
# of the RPCs of a mount over RDMA
GOAL = 0.5
# of its client's instructions
CLIENT_GOAL = 0.25
APPLICATION = "client application"
PYTHON = "python"


def rpcs(result: CellResult) -> float:
    """RPCs of a block."""
    return float(result["block"]["nfsd rpcs"])


def both(result: CellResult) -> float:
    """Thousands of instructions of a block at both ends."""
    return sum(instructions(result, side) for side in ("client", "server"))


def wire(store: Store, name: str) -> str:
    """The bytes of the wire for each byte of a block, of all cells of a part."""
    part = named(blocks.parts(), name)
    found = []
    for curve in part.curves:
        count = "network bytes" if curve == TCP else "card bytes"
        found += [
            each["block"][count] / cell.size
            for cell in part.cells for each in store.rounds(name, curve, cell)
        ]  # fmt: skip
    return (
        f"nfsd counted each RPC and each {WORDS[MOVES[part.cells[0].operation]][:-1]} that the "
        "clients counted, and no other one; "
        f"the devices {min(found):.3f} to {max(found):.3f} bytes for each byte of a block."
    )


def costs(store: Store, name: str) -> list[str]:
    """The table of gets or of puts, and its checks."""
    part, kind = named(blocks.parts(), name), MOVES[name]
    columns: dict[str, Callable[[CellResult], float]] = {
        "RPCs": rpcs,
        f"besides {WORDS[kind]}": partial(blocks.others, kind=kind),
        "client": partial(instructions, side="client"),
        "of it, user space": partial(blocks.layer, name=APPLICATION),
        "server": partial(instructions, side="server"),
        "both ends": both,
    }
    rows: list[Sequence[object]] = [["block", "way", *columns, f": {RDMA}"]]
    for cell in part.cells:
        beside = store.value(name, RDMA, cell, both)
        for curve in part.curves:
            *counts, whole = (store.value(name, curve, cell, of) for of in columns.values())
            texts = [f"{count:.2f}" for count in counts[:2]]
            texts += [f"{count:.1f}" for count in (*counts[2:], whole)]
            rows.append([size_label(cell.size), curve, *texts, f"{whole / beside:.2f}"])
    return [*markdown.table(rows), "", share(store, name), "", wire(store, name)]


def goals(store: Store) -> list[str]:
    """The goals of the RPCs of gets, with what was found."""
    cells = named(blocks.parts(), "get").cells
    ratio = store.value("get", ONE, cells[0], rpcs) / store.value("get", RDMA, cells[0], rpcs)
    of = partial(blocks.others, kind="reads")
    more = max(store.value("get", curve, cell, of) for curve in (ONE, FOUR) for cell in cells)
    return [
        f"RPCs of a store besides READs, after the first round: {more:.2f} (goal: 0). RPCs of a "
        f"store with blocks of {size_label(cells[0].size)}: {ratio:.2f} of those of the mount "
        f"over RDMA (goal: {GOAL})."
    ]


def share(store: Store, name: str) -> str:
    """The instructions of a store's client, of those of the client of a mount over RDMA."""
    of = partial(instructions, side="client")
    shares = [
        store.value(name, curve, cell, of) / store.value(name, RDMA, cell, of)
        for cell in named(blocks.parts(), name).cells for curve in (ONE, FOUR)
    ]  # fmt: skip
    return (
        f"The client of a store takes {min(shares):.2f} to {max(shares):.2f} of the instructions "
        f"that the client of the mount over RDMA takes (goal: {CLIENT_GOAL})."
    )


def gets(store: Store) -> list[str]:
    return [*costs(store, "get"), "", *goals(store)]


def many(store: Store) -> list[str]:
    """The table of thousands of blocks."""
    rows: list[Sequence[object]] = [[
        f"{MANY.blocks:,} blocks of {size_label(MANY.size)}", "RPCs, first round",
        "look-ups and opens", "RPCs, further rounds", "look-ups and opens",
        "thousands of instructions, both ends and card",
    ]]  # fmt: skip
    for curve in named(blocks.parts(), "many").curves:
        counts = [
            store.value("many", curve, MANY, partial(count_of, turn=turn, name=f"nfsd {name}"))
            for turn in ("first", "block") for name in ("rpcs", "lookups")
        ]  # fmt: skip
        busy = store.value("many", curve, MANY, partial(count_of, turn="block", name="busy"))
        rows.append([curve, *(f"{count:.3f}" for count in counts), f"{busy / 1e3:.1f}"])
    return markdown.table(rows)


def count_of(result: CellResult, turn: str, name: str) -> float:
    """A count of a block, in the first round or in further ones."""
    return float(result[turn][name])


def loads(store: Store) -> list[str]:
    """The table of a model's load."""
    part = named(blocks.parts(), MODEL)
    (cell,) = part.cells
    columns: dict[str, Callable[[CellResult], float]] = {
        "seconds": lambda each: each["block"]["ns"] / 1e9,
        "RPCs": rpcs,
        "RPCs, first load": partial(count_of, turn="first", name="nfsd rpcs"),
        "bytes of the wire for each byte": lambda each: wire_bytes(each) / cell.size,
        "client, millions": lambda each: instructions(each, "client") / 1e3,
        "server, millions": lambda each: instructions(each, "server") / 1e3,
    }
    formats = (".2f", ",.0f", ",.0f", ".3f", ",.0f", ",.0f")
    rows: list[Sequence[object]] = [["way", *columns]]
    for curve in part.curves:
        values = (store.value(MODEL, curve, cell, of) for of in columns.values())
        rows.append([curve, *(format(v, form) for v, form in zip(values, formats, strict=True))])
    return markdown.table(rows)


def wire_bytes(result: CellResult) -> float:
    """Bytes of a load: those of the network devices are few over RDMA."""
    counts = result["block"]
    return float(max(counts["network bytes"], counts["card bytes"]))


def summary(store: Store) -> list[str]:
    """The short table of the page of blocks."""
    cells = [(name, named(blocks.parts(), name).cells[0]) for name in MOVES]
    size = size_label(cells[0][1].size)
    words = ("RPCs", "client", "server")
    rows: list[Sequence[object]] = [
        [f"a block of {size}", *(f"{name}, {word}" for name, _ in cells for word in words)]
    ]
    rows += [[curve, *_few(store, curve, cells)] for curve in (TCP, RDMA, ONE, FOUR)]
    return markdown.table(rows)


def _few(store: Store, curve: str, cells: Sequence[tuple[str, Cell]]) -> list[str]:
    """RPCs, and thousands of instructions at the ends, of some cells."""
    values = []
    for name, cell in cells:
        values.append(f"{store.value(name, curve, cell, rpcs):.1f}")
        for side in ("client", "server"):
            count = store.value(name, curve, cell, partial(instructions, side=side))
            values.append(f"{count:,.0f}")
    return values


SECTIONS: dict[str, tuple[Path, Callable[[Store], list[str]]]] = {
    "get": (markdown.PAGE, gets),
    "put": (markdown.PAGE, lambda store: costs(store, "put")),
    "many": (markdown.PAGE, many),
    MODEL: (markdown.PAGE, loads),
    "summary": (HOW_TO, summary),
}


def write(store: Store, kernel: str) -> None:
    """Write the sections whose cells are measured."""
    for name, (page, lines_of) in SECTIONS.items():
        try:
            lines = [store.about, "", *lines_of(store)]
        except (KeyError, FileNotFoundError) as missing:
            print(f"{name}: {missing}", flush=True)
            continue
        print(f"{name}:", *lines, sep="\n", flush=True)
        if kernel == KERNELS[0]:
            markdown.write(f"blocks {name}", lines, page)


def main(
    rounds: int = 1,
    kernel: str = KERNELS[0],
    only: list[str] | None = None,
    turns: int = 100,
    counted: bool = False,
) -> None:
    """Stores of blocks beside mounts; only: get, put, many, tensors, python.

    ``counted``: executes what Valgrind counts.
    """
    if counted:
        run_counted(python.loads, python.COUNTED)
        return
    wanted = only or [*(part.name for part in blocks.parts()), PYTHON]
    store = Store(RESULTS / kernel)
    todo = blocks.jobs(store, rounds, wanted)
    if todo:
        blocks.measure(store, todo, kernel)
    if PYTHON in wanted:
        if not shutil.which("valgrind"):
            raise SystemExit("the count needs valgrind: apt install valgrind")
        measured = measure(python.loads, python.COUNTED, turns)
        lines = [python.about(turns), "", *python.table(measured)]
        print(*lines, sep="\n", flush=True)
        markdown.write("blocks python", lines)
    write(store, kernel)
