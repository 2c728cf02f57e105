# SPDX-License-Identifier: Apache-2.0
"""The figures of the papers of 2003, with the personalities of our module: ``make papers``.

Cells run in one lab with the modelled card on the instruction clock, over the wire of each paper.
A file in out/papers/ has the result of each cell, so an interrupted run continues; a second call
only draws.  The papers' own values are in papers.toml.  Figures and tables go to docs/papers.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from carriers import OURS, THEIRS, serve

from bench import page
from bench.paper import OLD, TODAY
from bench.solo import offloads, sh
from nfsrdma_tools.host.module.personality import DEFAULT, PERSONALITIES
from nfsrdma_tools.lab.config import LabConfig, Link
from nfsrdma_tools.lab.lab import Lab

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUT = ROOT / "out" / "papers"
NODE = "/run/bench"
KERNELS = "the kernel's module"
KIB, MIB = 1 << 10, 1 << 20
# the ways of small data that padded competes with, and the largest data of each
LARGEST = 60 * KIB
COPIED, PADDED = "inline, copied", "padded, up to 60 KiB"
INLINE = ("inline_send=65536", "inline_recv=65536")
# for direct reads of any total; buffered reads have files of their totals, because read-ahead
# beyond what the reader reads would delay its last blocks
FILE_SIZE = 64 * MIB
# each page begins with its offset, which the reader checks
DATA = """
import struct, sys
for size in map(int, sys.argv[1:]):
    with open(f"/export/papers-data-{size}", "wb") as file:
        for at in range(0, size, 4096):
            file.write(struct.pack("<Q", at).ljust(4096, b"x"))
"""
# samples per second of the CPU: a prime, so that operations do not run in step with them
RATE = 3989
Cell = dict[str, Any]
Found = dict[str, Any]
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
    sets: Sequence[str] = ()


CURVES = {
    one.name: one
    for one in (
        Curve(OLD, "tcp", offloads="off"),
        Curve(TODAY, "tcp"),
        Curve(KERNELS, "rdma"),
        # a further personality only needs its name there
        *(Curve(name, "nfsrdma", OURS, personality=name) for name in PERSONALITIES),
        Curve(COPIED, "nfsrdma", OURS, personality=DEFAULT, sets=INLINE),
        Curve(PADDED, "nfsrdma", OURS, personality="padded", sets=(f"padded_max={LARGEST}",)),
    )
}
TCPS, DESIGNS = (OLD, TODAY), ("read-read", "read-write")


def cell(**given: Any) -> Cell:
    """A cell: direct reads of 64 KiB, unless given otherwise; ``total`` bytes, and three times."""
    usual = {"way": "direct", "rsize": 512 * KIB, "record": 64 * KIB, "ahead": None, "depth": 1}
    record = given.get("record", usual["record"])
    return {**usual, "copy": 0, "total": min(512 * record, 32 * MIB), **given}


@dataclass(frozen=True)
class Part:
    """The cells of a figure: the same for all its curves."""

    name: str
    link: str
    curves: Sequence[str]
    cells: Sequence[Cell]
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
NEAR, FAR = "2gbit/20us", "2gbit/220us"
ONE, DEEP = cell(), cell(depth=8, total=2 * MIB)


def parts() -> tuple[Part, ...]:
    early = (*TCPS, KERNELS, *DESIGNS)
    buffered = [cell(way="buffered", record=8 * KIB, rsize=size, ahead=ahead, total=8 * MIB)
                for size in SIZES for ahead in AHEAD]  # fmt: skip
    direct = [cell(record=size) for size in SIZES]
    blocks = [cell(record=size, depth=8) for size in BLOCKS]
    records = [cell(record=RECORD, depth=8, copy=size) for size in COPIES]
    return (
        Part("blocks", NEAR, EVERY, blocks, rate=RATE),
        Part("records", NEAR, EVERY, records),
        Part("padded", NEAR, SMALL, [cell(record=size) for size in SMALLS], rate=RATE),
        Part("near", NEAR, DESIGNS, [ONE], rate=RATE),
        Part("far", FAR, DESIGNS, [ONE]),
        Part("exposed", NEAR, DESIGNS, [DEEP], what="trace"),
        Part("same", NEAR, KEEPERS, [cell(depth=8), ONE], rate=RATE, samples=20000),
        Part("direct", "1gbit/100us", early, direct, rate=RATE),
        Part("ahead", "1gbit/100us", early, buffered),
    )


class Store:
    """A JSON file for each result of a cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, part: str, curve: str, one: Cell, number: int) -> Path:
        words = "-".join(str(value) for value in one.values() if value is not None)
        return self.folder / part / curve.replace(" ", "-") / f"{words}-{number}.json"

    def missing(self, part: Part, curve: str, number: int) -> list[Cell]:
        return [c for c in part.cells if not self.path(part.name, curve, c, number).exists()]

    def put(self, part: Part, curve: str, one: Cell, number: int, found: Found) -> None:
        path = self.path(part.name, curve, one, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        # a file is whole or absent
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").rename(path)

    def rounds(self, part: str, curve: str, one: Cell) -> list[Found]:
        """The results of a cell, of all rounds."""
        some = self.path(part, curve, one, 0)
        paths = sorted(some.parent.glob(f"{some.stem.removesuffix('0')}[0-9]*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def value(self, part: str, curve: str, one: Cell, of: Callable[[Found], float]) -> float:
        """The median of a value over the rounds; KeyError without a result."""
        found = self.rounds(part, curve, one)
        if not found:
            raise KeyError(f"no result: {part}, {curve}, {one}")
        return statistics.median(map(of, found))

    def describe(self, about: str) -> None:
        """Keep the conditions of the measurement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.json").write_text(json.dumps(about))

    @property
    def about(self) -> str:
        return str(json.loads((self.folder / "about.json").read_text()))


def own_work(found: Found, side: str) -> float:
    """The share of a side in the busy time, without the modelled card's work.

    Time that belongs to neither side (thread switches, interrupts) counts for both, in proportion.
    """
    sides = found["sides"]
    ends = sides["client"] + sides["server"]
    whole = ends + sides["neither"] + sides.get("card", 0)
    return float((1 - sides.get("card", 0) / whole) * sides[side] / ends)


def of_client(found: Found) -> float:
    """The busy share of a CPU that the client alone would need."""
    return float(found["cpu"]) * own_work(found, "client")


def time_of(side: str) -> Callable[[Found], float]:
    """Milliseconds of CPU time of a side for a MiB."""
    return lambda found: float(found["ms"]) * own_work(found, side)


def points() -> list[Found]:
    """The papers' values, each with its paper."""
    papers = tomllib.loads((HERE / "papers.toml").read_text())["paper"]
    return [point | {"paper": one["title"]} for one in papers for point in one["point"]]


def point(figure: str, curve: str) -> Found:
    """A value of a paper."""
    (found,) = (each for each in points() if (each["figure"], each["curve"]) == (figure, curve))
    return found


# --- measuring ---


def prepare(lab: Lab) -> None:
    """The reader, its file, and what runs in the node."""
    sh(lab, f"mkdir -p {NODE}")
    cells = [each for part in parts() for each in part.cells if each["way"] == "buffered"]
    files = {FILE_SIZE, *(count * each["total"] for each in cells for count in (1, 3))}
    lab.run("solo", "python3", "-", *map(str, sorted(files)), stdin=DATA.encode())
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "papers_reader"
        source = HERE / "papers_reader.c"
        subprocess.run(("gcc", "-O2", "-Wall", "-o", program, source), check=True)
        for file in (program, HERE / "papers_node.py"):
            lab.run("solo", "tee", f"{NODE}/{file.name}", stdin=file.read_bytes())
    sh(lab, f"chmod +x {NODE}/papers_reader")


def switch(lab: Lab, module: str) -> None:
    """Have nfsd and the client use a module, and have the server accept all personalities."""
    serve(lab, "solo", module)
    if module == OURS:
        names = ",".join(name for name in PERSONALITIES if name != DEFAULT)
        set_parameters(lab, (f"server_personalities={names}",))


def set_parameters(lab: Lab, sets: Sequence[str]) -> list[str]:
    """Set parameters of our module; new connections use them. Returns those in effect before."""
    script = """
for one; do
	file=/sys/module/nfsrdma/parameters/${one%%=*}
	echo "${one%%=*}=$(cat $file)"
	echo "${one#*=}" > $file
done
"""
    return lab.run("solo", "sh", "-ec", script, "sh", *sets).stdout.split()


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
    def request(self) -> str:
        curve = {"transport": self.curve.transport, "personality": self.curve.personality}
        wire = int(Link.parse(self.part.link).rate.removesuffix("gbit")) * 10**9
        return json.dumps({"what": self.part.what, "curve": curve, "cells": self.cells,
                           "wire": wire, "file": FILE_SIZE, "rate": self.part.rate,
                           "samples": self.part.samples})  # fmt: skip


def jobs(store: Store, rounds: int, only: Sequence[str] = ()) -> list[Job]:
    """The cells without a result; those of one module together, because a change takes long."""
    found = [
        Job(part, CURVES[name], number, store.missing(part, name, number))
        for number in range(rounds)
        for module in (OURS, THEIRS)
        for part in parts()
        for name in part.curves
        if CURVES[name].module == module and (not only or part.name in only)
    ]
    return [job for job in found if job.cells]


def measure(store: Store, todo: Sequence[Job], kernel: str) -> None:
    """Measure in a lab."""
    config = LabConfig("papers", clock="instructions", kernel=kernel, memory=4608, nic="card")
    with Lab(config) as lab:
        prepare(lab)
        about = page.conditions(lab, "card", "make papers")
        # each part has a link of its own
        store.describe(about.replace(f"link {lab.facts['link']}, ", ""))
        work(lab, store, todo)
        lab.check()


def work(lab: Lab, store: Store, todo: Sequence[Job]) -> None:
    """Store each result as soon as its call in the node ends."""
    module = ""
    for done, job in enumerate(todo):
        print(f"{time.strftime('%H:%M:%S')} {done} of {len(todo)}: {job}", flush=True)
        if job.curve.module != module:
            module = job.curve.module
            switch(lab, module)
        lab.set_link(job.part.link)
        sh(lab, offloads(job.curve.offloads))
        before = set_parameters(lab, job.curve.sets)
        argv = ("python3", f"{NODE}/papers_node.py", job.request)
        results = json.loads(lab.run("solo", *argv, timeout=7200).stdout)
        set_parameters(lab, before)
        for one, found in zip(job.cells, results, strict=True):
            store.put(job.part, job.curve.name, one, job.number, found)


# --- exposed memory ---


def exposed(events: Sequence[Sequence[str]]) -> Steps:
    """Bytes that the peer may access, over microseconds: (time, bytes) after each change.

    That of an MR, the client's (read-write) or the server's (read-read), from its registration to
    its invalidation.
    """
    now: dict[str, int] = {}
    found: Steps = []
    begin = float(events[0][0]) if events else 0.0
    for at, name, rest in events:
        fields = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        if name == "mr_fastreg":
            now[fields["handle"]] = int(fields["length"])
        elif name in ("mr_localinv", "mr_remoteinv"):
            now.pop(fields["handle"], None)
        else:
            continue
        found.append(((float(at) - begin) * 1e6, sum(now.values())))
    return found


def mean_exposed(steps: Steps) -> float:
    """The mean of the exposed bytes over the time of the steps."""
    spans = [(after[0] - before[0], before[1]) for before, after in pairwise(steps)]
    return sum(time * size for time, size in spans) / (sum(time for time, _ in spans) or 1.0)


def main() -> None:
    rounds, kernel, only = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    store = Store(OUT / kernel)
    todo = jobs(store, rounds, only)
    if todo:
        measure(store, todo, kernel)
    from bench import papers_page

    papers_page.write(store)


if __name__ == "__main__":
    main()
