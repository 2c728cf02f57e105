# SPDX-License-Identifier: Apache-2.0
"""The figures of the papers of 2003, with the personalities of our module.

Cells run in one lab with the modelled card on the instruction clock, over the wire of each paper.
A file in out/papers/ has the result of each cell, so an interrupted run continues; a second call
only draws.  The papers' own values are in published.toml.  Figures and tables go to the page
*What RDMA saves*.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import markdown
from bench.cells import (
    KIB,
    MIB,
    OUT,
    RATE,
    BasePart,
    BaseStore,
    CellResult,
    both_ends,
    own_work,
    with_progress,
)
from bench.papers import reads
from bench.papers.reads import Cell
from bench.sequential_reads.measure import OLD, TODAY
from bench.solo import READERS, offloads, place_reader, sh
from nfsrdma_tools.lab.config import LabConfig, Link
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES
from testbed.client_library import place_program
from testbed.labs import OURS, THEIRS, serve
from testbed.mounts import set_to

RESULTS = OUT / "papers"
KERNELS = "the kernel's module"
# the ways of small data that padded competes with, and the largest data of each
LARGEST = 60 * KIB
COPIED, PADDED = "inline, copied", "padded, up to 60 KiB"
INLINE = {"inline_send": "65536", "inline_recv": "65536"}
Steps = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A transport, and the module that the kernel has loaded."""

    name: str
    transport: str
    module: str = THEIRS
    offloads: str = "on"
    personality: str | None = None
    # parameters of our module, at both ends
    sets: dict[str, str] = field(default_factory=dict)


# the user-space client, and the server of DAFS's authors: an answer needs no thread
NFSD, DAFS = "libnfsrdma, nfsd", "libnfsrdma, threadless"
# the largest READ that our server answers so
THREADLESS = 128 * KIB

CURVES = {
    curve.name: curve
    for curve in (
        Curve(OLD, "tcp", offloads="off"),
        Curve(TODAY, "tcp"),
        Curve(KERNELS, "rdma"),
        # a further personality only needs its name there
        *(Curve(name, "nfsrdma", OURS, personality=name) for name in PERSONALITIES),
        Curve(COPIED, "nfsrdma", OURS, personality=DEFAULT, sets=INLINE),
        Curve(PADDED, "nfsrdma", OURS, personality="padded", sets={"padded_max": str(LARGEST)}),
        Curve(NFSD, "library"),
        Curve(DAFS, "library", OURS, sets={"server_threadless": str(THREADLESS)}),
    )
}
TCPS, DESIGNS = (OLD, TODAY), ("read-read", "read-write")
NEAR, FAR, OF_2003, OF_2002 = "2gbit/20us", "2gbit/220us", "1gbit/100us", "1250mbit/20us"


def cell(**given: Any) -> Cell:
    """A cell: direct reads of 64 KiB, unless given otherwise; ``total`` bytes, and three times."""
    record = given.get("record", 64 * KIB)
    usual = Cell("direct", 512 * KIB, record, None, 1, 0, min(512 * record, 32 * MIB))
    return usual._replace(**given)


@dataclass(frozen=True)
class Part(BasePart[Cell]):
    """Cells over one wire."""

    link: str = NEAR
    what: str = "measure"
    # samples per second; 0: the CPU time is not divided between the ends
    rate: int = 0
    # of the busy CPU, for each cell: with 5,000, a share of a half is known to 0.007
    samples: int = 5000


SIZES = tuple(size * KIB for size in (8, 32, 64, 128, 256, 512))
BLOCKS = tuple(size * KIB for size in (4, 8, 16, 32, 64, 128, 256, 512))
AHEAD = (1, 4, 8)
RECORD = 60 * KIB
COPIES = (0, *(size * KIB for size in (8, 16, 32, 48, 60)))
EVERY = (*TCPS, *PERSONALITIES)
SMALL = ("read-write", COPIED, PADDED)
SMALLS = tuple(size * KIB for size in (4, 8, 12, 16, 24, 32, 48, 60))
# what cached is compared with, for reads into the same memory
KEEPERS = ("read-write", "pre-posted", "cached")
# what the user-space client is compared with
USERS = ("read-write", NFSD, DAFS)
ALONE, TOGETHER = 1, 64
ONE, DEEP = cell(), cell(depth=8, total=2 * MIB)


def parts() -> tuple[Part, ...]:
    early = (*TCPS, KERNELS, *DESIGNS)
    buffered = [cell(way="buffered", record=8 * KIB, rsize=size, ahead=ahead, total=8 * MIB)
                for size in SIZES for ahead in AHEAD]  # fmt: skip
    direct = [cell(record=size) for size in SIZES]
    blocks = [cell(record=size, depth=8) for size in BLOCKS]
    records = [cell(record=RECORD, depth=8, copy=size) for size in COPIES]
    of_2002 = [cell(record=size, depth=n) for n in (ALONE, TOGETHER) for size in BLOCKS]
    return (
        Part("blocks", EVERY, blocks, rate=RATE),
        Part("records", EVERY, records),
        Part("user", USERS, blocks),
        Part("user-records", USERS, records),
        Part("2002", USERS, of_2002, OF_2002),
        Part("padded", SMALL, [cell(record=size) for size in SMALLS], rate=RATE),
        Part("near", DESIGNS, [ONE], rate=RATE),
        Part("far", DESIGNS, [ONE], FAR),
        Part("exposed", DESIGNS, [DEEP], what="trace"),
        Part("same", KEEPERS, [cell(depth=8), ONE], rate=RATE, samples=20000),
        Part("direct", early, direct, OF_2003, rate=RATE),
        Part("ahead", early, buffered, OF_2003),
    )


class Store(BaseStore[Cell]):
    """The results of the cells, in rounds."""

    def path(self, part: str, curve: str, cell: Cell, number: int = 0) -> Path:
        words = "-".join(str(value) for value in cell if value is not None)
        return self.folder / part / curve.replace(" ", "-") / f"{words}-{number}.json"

    def rounds(self, part: str, curve: str, cell: Cell) -> list[CellResult]:
        """The results of a cell, of all rounds."""
        some = self.path(part, curve, cell, 0)
        paths = sorted(some.parent.glob(f"{some.stem.removesuffix('0')}[0-9]*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def value(self, part: str, curve: str, cell: Cell, of: Callable[[CellResult], float]) -> float:
        """The median of a value over the rounds; KeyError without a result."""
        results = self.rounds(part, curve, cell)
        if not results:
            raise KeyError(f"no result: {part}, {curve}, {cell}")
        return statistics.median(map(of, results))


def time_of_both(result: CellResult) -> float:
    """Milliseconds of CPU time of client and server for a MiB, without the card model's work."""
    return float(result["ms"]) * both_ends(result)


def time_of_client(result: CellResult) -> float:
    """Milliseconds of CPU time of the client for a MiB, without the card model's work."""
    return float(result["ms"]) * own_work(result, "client")


# --- measuring ---


def prepare(lab: Lab) -> None:
    """Put the files to read and the readers into the node."""
    cells = [each for part in parts() for each in part.cells if each.way == "buffered"]
    sizes = {reads.FILE_SIZE, *(n * each.total for each in cells for n in (1, 3))}
    reads.write_files(lab, sorted(sizes))
    place_reader(lab, "papers_reader")
    place_program(lab, "solo", READERS / "library_reader.c", reads.LIBRARY_READER)


def switch(lab: Lab, module: str) -> None:
    """Have nfsd and the client use a module, and have the server accept all personalities."""
    serve(lab, "solo", module)
    if module == OURS:
        names = ",".join(name for name in PERSONALITIES if name != DEFAULT)
        set_to(lab, "solo", "server_personalities", names)


@dataclass(frozen=True)
class Job:
    """The cells that one call in the node measures."""

    part: Part
    curve: Curve
    number: int
    cells: Sequence[Cell]

    def __str__(self) -> str:
        return f"{self.part.name}, {self.curve.name}, {len(self.cells)} cells, round {self.number}"

    @property
    def client(self) -> reads.Client:
        rate = Link.parse(self.part.link).rate
        wire = int(rate[:-4]) * {"g": 10**9, "m": 10**6}[rate[-4]]
        return reads.Client(self.curve.transport, self.curve.personality, self.curve.sets, wire)

    def results(self, lab: Lab) -> list[CellResult]:
        """Measure the cells, as the store has them."""
        cells, part = list(self.cells), self.part
        if part.what == "trace":
            return [{"events": events} for events in reads.traced(lab, self.client, cells)]
        return list(map(stored, reads.measured(lab, self.client, cells, part.rate, part.samples)))


def stored(result: reads.Measured) -> CellResult:
    """The result of a cell as the store has it."""
    fields = {name: value for name, value in result._asdict().items() if value is not None}
    counts, division = fields.pop("counts"), fields.pop("division", None)
    sides = {"sides": {**division.sides, "layers": division.layers}} if division else {}
    return {**fields, **counts, **sides}


def jobs(store: Store, rounds: int, only: Sequence[str] = ()) -> list[Job]:
    """The cells without a result; those of one module together, because a change takes long."""
    candidates = [
        Job(part, CURVES[name], number, store.missing(part, name, number))
        for number in range(rounds)
        for module in (OURS, THEIRS)
        for part in parts()
        for name in part.curves
        if CURVES[name].module == module and (not only or part.name in only)
    ]
    return [job for job in candidates if job.cells]


def measure(store: Store, todo: Sequence[Job], kernel: str) -> None:
    """Measure in a lab."""
    config = LabConfig("papers", clock="instructions", kernel=kernel, memory=4608, nic="card",
                       extras=True)  # fmt: skip
    with Lab(config) as lab:
        prepare(lab)
        store.describe(markdown.conditions(lab, "card", "make bench NAME=papers", link=False))
        work(lab, store, todo)
        lab.check()


def work(lab: Lab, store: Store, todo: Sequence[Job]) -> None:
    """Store each result as soon as its call in the node ends."""
    module = ""
    for job in with_progress(todo):
        if job.curve.module != module:
            module = job.curve.module
            switch(lab, module)
        lab.set_link(job.part.link)
        sh(lab, offloads(job.curve.offloads))
        for cell, result in zip(job.cells, job.results(lab), strict=True):
            store.put(job.part.name, job.curve.name, cell, result, job.number)


# --- exposed memory ---


def exposed(events: Sequence[Sequence[str]]) -> Steps:
    """Bytes that the peer may access, over microseconds: (time, bytes) after each change.

    That of an MR, the client's (read-write) or the server's (read-read), from its registration to
    its invalidation.
    """
    now: dict[str, int] = {}
    steps: Steps = []
    begin = float(events[0][0]) if events else 0.0
    for at, name, rest in events:
        fields = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        if name == "mr_fastreg":
            now[fields["handle"]] = int(fields["length"])
        elif name in ("mr_localinv", "mr_remoteinv"):
            now.pop(fields["handle"], None)
        else:
            continue
        steps.append(((float(at) - begin) * 1e6, sum(now.values())))
    return steps


def mean_exposed(steps: Steps) -> float:
    """The mean of the exposed bytes over the time of the steps."""
    spans = [(after[0] - before[0], before[1]) for before, after in pairwise(steps)]
    return sum(time * size for time, size in spans) / (sum(time for time, _ in spans) or 1.0)
