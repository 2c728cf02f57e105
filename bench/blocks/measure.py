# SPDX-License-Identifier: Apache-2.0
"""Blocks by stores without a mount beside mounts: RPCs, and instructions of each end.

One lab with the modelled card on the instruction clock, where a microsecond is a thousand
instructions.  Client and server are one node with one processor; samples of stacks divide its CPU
time between them.  A file in out/blocks/ has the result of each cell, so an interrupted run
continues; a second call only writes the page.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import markdown
from bench.blocks.tensors import Loader, loaded
from bench.blocks.workload import Cell, Measured, Way, measured
from bench.cells import KIB, MIB, OUT, BasePart, BaseStore, CellResult, with_progress
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

RESULTS = OUT / "blocks"
TCP, RDMA, RDMA4, ONE, FOUR = NAMES = (
    "mount, TCP", "mount, RDMA", "mount, RDMA, NFSv4.2", "store, 1 session", "store, 4 sessions",
)  # fmt: skip
WAYS = {
    TCP: Way("vers=3,proto=tcp,port=2049"),
    RDMA: Way("vers=3"),
    RDMA4: Way("vers=4.2"),
    ONE: Way(sessions=1),
    FOUR: Way(sessions=4),
}
SIZES = (256 * KIB, 2 * MIB)
# blocks of a round, for each size
BLOCKS = {"get": (256, 64), "put": (128, 32)}
MANY = Cell("get", 256 * KIB, 4096)
# ways to load a model, and its size; the wire has a speed, because they differ in what they overlap
MODEL, MODEL_SIZE = "tensors", 1024 * MIB
LINK = "10gbit/20us"
LOADERS = {
    "mmap of a mount, TCP": Loader("mapped", "vers=3,proto=tcp,port=2049"),
    "mmap of a mount, RDMA": Loader("mapped", "vers=3"),
    "reads of a mount, TCP": Loader("read", "vers=3,proto=tcp,port=2049"),
    "reads of a mount, RDMA": Loader("read", "vers=3"),
    "store": Loader("blocks", sessions=1),
}
# further rounds that are counted, and samples that divide the CPU time of a way
COUNTED, SAMPLES = 4, 4000


@dataclass(frozen=True)
class Part(BasePart[Cell]):
    """Cells with a number of counted rounds, and of samples."""

    counted: int = COUNTED
    samples: int = SAMPLES
    link: str = "none"


def parts() -> tuple[Part, ...]:
    gets, puts = (
        [Cell(name, size, number) for size, number in zip(SIZES, numbers, strict=True)]
        for name, numbers in BLOCKS.items()
    )
    return (
        Part("get", NAMES, gets),
        Part("put", NAMES, puts, counted=1, samples=SAMPLES // 2),
        Part("many", (FOUR,), [MANY], counted=1, samples=0),
        Part(MODEL, tuple(LOADERS), [Cell("load", MODEL_SIZE, 1)], link=LINK),
    )


class Store(BaseStore[Cell]):
    """The results of the cells, in rounds."""

    def path(self, part: str, curve: str, cell: Cell, number: int = 0) -> Path:
        words = "-".join(map(str, cell))
        return self.folder / part / curve.replace(" ", "-") / f"{words}-{number}.json"

    def rounds(self, part: str, curve: str, cell: Cell) -> list[CellResult]:
        """The results of a cell, of all rounds; KeyError without one."""
        some = self.path(part, curve, cell, 0)
        paths = sorted(some.parent.glob(f"{some.stem.removesuffix('0')}[0-9]*.json"))
        if not paths:
            raise KeyError(f"no result: {part}, {curve}, {cell}")
        return [json.loads(path.read_text()) for path in paths]

    def value(self, part: str, curve: str, cell: Cell, of: Callable[[CellResult], float]) -> float:
        """The median of a value over the rounds."""
        return statistics.median(map(of, self.rounds(part, curve, cell)))


# --- values of a result ---


def instructions(result: CellResult, side: str) -> float:
    """Thousands of instructions of a block at a side, without the card model's work.

    Work of neither side (thread switches, interrupts) counts for both, in proportion.
    """
    sides = result["sides"]
    both = sides["client"] + sides["server"]
    whole = both + sides["neither"] + sides.get("card", 0)
    own = (both + sides["neither"]) * sides[side] / both
    return float(result["block"]["busy"] / 1e3 * own / whole)


def layer(result: CellResult, name: str) -> float:
    """Thousands of instructions of a block in a layer of a side: ``client application``."""
    sides = result["sides"]
    whole = sum(sides[each] for each in ("client", "server", "neither")) + sides.get("card", 0)
    return float(result["block"]["busy"] / 1e3 * result["layers"].get(name, 0) / whole)


def others(result: CellResult, kind: str) -> float:
    """RPCs of a block besides those that move its data."""
    counts = result["block"]
    return float(counts["nfsd rpcs"] - counts[f"nfsd {kind}"])


# --- measuring ---


@dataclass(frozen=True)
class Job:
    """The ways without a result, of a cell in a round: one call in the node measures them."""

    part: Part
    number: int
    cell: Cell
    curves: Sequence[str]

    def __str__(self) -> str:
        return f"{self.part.name}, {self.cell}, {len(self.curves)} ways, round {self.number}"

    def results(self, lab: Lab) -> list[CellResult]:
        """Measure them, as the store has them."""
        part, cell = self.part, self.cell
        lab.set_link(part.link)
        if part.name == MODEL:
            loaders = [LOADERS[name] for name in self.curves]
            return list(map(stored, loaded(lab, loaders, cell.size)))
        ways = [WAYS[name] for name in self.curves]
        return list(map(stored, measured(lab, ways, cell, part.counted, part.samples)))


def stored(result: Measured) -> CellResult:
    """The result of a cell as the store has it."""
    division = result.division._asdict() if result.division else {}
    return {"first": result.first, "block": result.block, **division}


def jobs(store: Store, rounds: int, only: Sequence[str] = ()) -> list[Job]:
    """The cells without a result."""
    candidates = [
        Job(part, number, cell, [
            name for name in part.curves if not store.path(part.name, name, cell, number).exists()
        ])
        for number in range(rounds)
        for part in parts() if not only or part.name in only
        for cell in part.cells
    ]  # fmt: skip
    return [job for job in candidates if job.curves]


def measure(store: Store, todo: Sequence[Job], kernel: str) -> None:
    """Measure in a lab; store each result as soon as it is there."""
    # the blocks are in the server's memory and in that of the client
    config = LabConfig("bench-blocks", clock="instructions", link="none", kernel=kernel,
                       memory=6144, nic="card", extras=True)  # fmt: skip
    with Lab(config) as lab:
        store.describe(markdown.conditions(lab, "card", "make bench NAME=blocks", link=False))
        for job in with_progress(todo):
            for name, result in zip(job.curves, job.results(lab), strict=True):
                store.put(job.part.name, name, job.cell, result, job.number)
        lab.check()
