# SPDX-License-Identifier: Apache-2.0
"""Optimistic reads beside reads by RPC, after section 5.2 of the FAST paper.

Table 3 (response time and CPU time of a 4 KiB read), figure 6 (small files), figure 7 (two mounts
that stream), the first pass over a file, and refused reads.  One lab with the modelled card on the
instruction clock; with ``--nic rxe`` only table 3.  A file in out/optimistic/ has the result of
each cell, so an interrupted run continues; a second call only draws.  Tables and figures go to
docs/explanation/optimistic-reads.md.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import markdown
from bench.cells import KIB, MIB, OUT, BasePart, BaseStore, Cell, CellResult, with_progress
from bench.optimistic.operations import Command, Measured, Request, measured
from bench.solo import FOLDER, place_reader, sh, write_stamped
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, serve
from testbed.remote import on

RESULTS = OUT / "optimistic"
RECORD = 4 * KIB
NEAR, NONE = "2gbit/20us", "none"
# the rate of NEAR, in MB/s
WIRE = 250.0
# two servers: two clients of NFS, each with a connection
SERVERS = ("10.9.1.1", "10.9.1.2")
SERVED = Path("/export")
MOUNTS = tuple(Path(f"/mnt/bench{number}") for number in range(len(SERVERS)))
OPTIONS = "vers=3,nocto,actimeo=600"
READER = f"{FOLDER}/optimistic_reader"
FILE, FILE_SIZE = "optimistic-data", 64 * MIB
# small files: of one page each, and of 2 to 6 KiB
SETS = {"one": (4 * KIB, 4 * KIB), "mixed": (2 * KIB, 6 * KIB)}
NUMBER = 256
# the second address of the server, with the routes of lab-node
SECOND = """
ip addr replace 10.9.1.2/32 dev v1
ip rule show | grep -q 'to 10.9.1.2 ' || ip rule add pref 20 to 10.9.1.2 lookup 100
ip route replace 10.9.1.2 dev v0 src 10.9.1.11 table 100
ip neigh replace 10.9.1.2 lladdr $(cat /sys/class/net/v1/address) dev v0
"""
# idle time takes no instructions, but ends references
PARAMETERS = {"optimistic_lifetime": "3600", "optimistic_memory": "1024"}


@dataclass(frozen=True)
class Curve:
    """A way of a READ, and parameters of the module for it."""

    name: str
    personality: str
    sets: dict[str, str] = field(default_factory=dict)


INLINE, DIRECT = "RPC, inline", "RPC, direct"
OURS_NAME, PATIENT = "optimistic", "optimistic, polled"
CURVES = {
    curve.name: curve
    for curve in (
        Curve(INLINE, "read-write"),
        Curve(DIRECT, "read-write", {"min_chunk": "1"}),
        Curve(OURS_NAME, "optimistic"),
        # the sender waits longer than a round trip of the paper's wire
        Curve(PATIENT, "optimistic", {"optimistic_spin_us": "100"}),
    )
}


@dataclass(frozen=True)
class Part(BasePart[Cell]):
    """Cells that take the same mounts and samples."""

    # number of samples that divide the CPU time between the ends; 0: it is not divided
    samples: int = 0
    nics: Sequence[str] = ("card",)
    mounts: int = 1


WAYS = ("direct", "buffered")
HITS = (25, 50, 75)
BLOCKS = tuple(size * KIB for size in (4, 8, 16, 32, 64))
# N: each Nth RDMA Read is refused; 0: none
REFUSED = (0, 100, 50, 20, 10)
BURSTS = (0, 10, 5, 3, 2, 1)
THREE = (INLINE, DIRECT, OURS_NAME)


def parts() -> tuple[Part, ...]:
    """All parts, in the order of the measurement."""
    here = [{"link": NONE, "way": way} for way in WAYS]
    wire = [{"link": NEAR, "way": way} for way in WAYS]
    files = [{"link": link, "files": name, "hits": hits}
             for link in (NONE, NEAR) for name in SETS for hits in HITS]  # fmt: skip
    streams = [{"link": NEAR, "block": block} for block in BLOCKS]
    refused = [{"link": NONE, "recoverable": kind, "refuse": number}
               for kind in ("N", "Y") for number in REFUSED]  # fmt: skip
    bursts = [{"link": NONE, "recoverable": "Y", "refuse": number, "burst": 8 * (number or 1)}
              for number in BURSTS]  # fmt: skip
    return (
        Part("response", THREE, here, samples=1000, nics=("card", "rxe")),
        Part("wire", (*THREE, PATIENT), wire, samples=1000),
        Part("first", (OURS_NAME,), [{"link": NONE}]),
        Part("refused", (OURS_NAME,), refused),
        Part("bursts", (OURS_NAME,), bursts),
        Part("files", THREE, files),
        Part("patient", (PATIENT,), [c for c in files if c["link"] == NEAR]),
        Part("streams", (INLINE, OURS_NAME), streams, samples=600, mounts=2),
    )


class Store(BaseStore[Cell]):
    """The results of the cells."""

    def path(self, part: str, curve: str, cell: Cell, number: int = 0) -> Path:
        # the first round has no number
        words = [*cell.values(), *([number] if number else [])]
        name = "-".join(str(word).replace("/", "-") for word in words)
        return self.folder / part / curve.replace(", ", "-") / f"{name}.json"

    def get(self, part: str, curve: str, cell: Cell) -> CellResult:
        """The result of a cell; KeyError without one."""
        path = self.path(part, curve, cell)
        if not path.exists():
            raise KeyError(f"no result: {part}, {curve}, {cell}")
        result: CellResult = json.loads(path.read_text())
        return result


# --- the commands of a cell ---


def random_reads(count: int, first: int, way: str = "direct", burst: int = 0) -> Command:
    """The reader's random reads of 4 KiB; each record has its turn once in 16,384 reads."""
    words = (way, RECORD, count, first, burst)
    return [READER, "random", f"{MOUNTS[0]}/{FILE}", *map(str, words)]


def transactions(cell: Cell, count: int) -> Command:
    words = (NUMBER, count, cell["hits"], 0)
    return [READER, "files", f"{MOUNTS[0]}/{cell['files']}", *map(str, words)]


def streams(block: int, total: int) -> list[Command]:
    words = ("direct", block, total, 8, 0)
    return [[f"{FOLDER}/papers_reader", f"{folder}/{FILE}", *map(str, words)] for folder in MOUNTS]


def request(part: Part, cell: Cell) -> Request:
    """The commands that the node runs for a cell."""
    if part.name in ("response", "wire"):
        short, long = (random_reads(n, 0, cell["way"]) for n in (300, 1800))
        # a read of the client's page cache is no read
        drop = [MOUNTS[0] / FILE] if cell["way"] == "buffered" else []
        return Request([long], [short], warm=[long], drop=drop)
    if part.name == "first":
        return Request([random_reads(FILE_SIZE // RECORD, 0)])
    if part.name in ("refused", "bursts"):
        card = {name: cell[name] for name in ("recoverable", "refuse")}
        reads, then = random_reads(6000, 0), [random_reads(1000, 6000)]
        if part.name == "bursts":
            reads, then = random_reads(20 * cell["burst"], 0, burst=cell["burst"]), []
        return Request([reads], warm=[random_reads(500, 0)], then=then, card=card)
    if part.name in ("files", "patient"):
        few, many = (transactions(cell, count) for count in (NUMBER, 6 * NUMBER))
        return Request([many], [few], warm=[few])
    # blocks of each mount
    block = cell["block"]
    few_blocks, blocks = (streams(block, count * block) for count in (128, 640))
    return Request(blocks, few_blocks, warm=streams(64 * KIB, FILE_SIZE), record=block)


# --- measuring ---


@on("solo", timeout=1200)
def write_files() -> None:
    """Write the files to read; the stamps of each small file go on from those of the one before."""
    write_stamped(SERVED / FILE, FILE_SIZE)
    dice = random.Random(1)  # noqa: S311 - no secret
    for name in SETS:
        (SERVED / name).mkdir(exist_ok=True)
    for number in range(NUMBER):
        for name, (least, most) in SETS.items():
            size = dice.randrange(least, most + 1)
            write_stamped(SERVED / name / str(number), size, 4096 * number)


def prepare(lab: Lab) -> None:
    """Put the files to read and the readers into the node."""
    sh(lab, SECOND)
    write_files(lab)
    for name in ("optimistic_reader", "papers_reader"):
        place_reader(lab, name)
    # writeback would take time of the CPU
    sh(lab, "sync")
    serve(lab, "solo", OURS)


@dataclass(frozen=True)
class Job:
    """Cells that are measured over the same mounts."""

    part: Part
    curve: Curve
    cells: Sequence[Cell]

    def __str__(self) -> str:
        return f"{self.part.name}, {self.curve.name}, {', '.join(map(str, self.cells))}"


def measure(lab: Lab, job: Job) -> list[CellResult]:
    """Measure the cells over mounts of their own."""
    lab.set_link(job.cells[0]["link"])
    name = job.curve.personality
    sets = {"personality": name, "server_personalities": name, **PARAMETERS, **job.curve.sets}
    mounts = list(zip(SERVERS, MOUNTS, strict=True))[: job.part.mounts]
    requests = [request(job.part, cell) for cell in job.cells]
    return list(map(stored, measured(lab, mounts, OPTIONS, sets, requests, job.part.samples)))


def stored(result: Measured) -> CellResult:
    """The result of a cell as the store has it."""
    operation, then, division = result
    return {
        "operations": operation.operations, **operation.counts,
        **({"then": {"operations": then.operations, **then.counts}} if then else {}),
        **(division._asdict() if division else {}),
    }  # fmt: skip


def jobs(store: Store, nic: str, only: Sequence[str]) -> list[Job]:
    """The cells without a result: those of one link together, those that break a mount alone."""
    todo = []
    for part in parts():
        for name in part.curves if nic in part.nics and (not only or part.name in only) else ():
            missing = store.missing(part, name)
            kinds = {(c["link"], c.get("refuse"), c.get("recoverable")) for c in missing}
            for kind in sorted(kinds, key=str):
                cells = [c for c in missing
                         if (c["link"], c.get("refuse"), c.get("recoverable")) == kind]  # fmt: skip
                todo.append(Job(part, CURVES[name], cells))
    return todo


def work(store: Store, nic: str, kernel: str, todo: Sequence[Job]) -> None:
    """Measure in a lab; store each result as soon as its call in the node ends."""
    # calls with other parts may run meanwhile
    name = f"optimistic-{nic}-{todo[0].part.name}"
    config = LabConfig(name, clock="instructions", link=NONE, kernel=kernel, memory=4608, nic=nic)
    with Lab(config) as lab:
        prepare(lab)
        command = "make bench NAME=optimistic" + ("" if nic == "card" else f' ARGS="--nic {nic}"')
        store.describe(markdown.conditions(lab, nic, command, link=False))
        for job in with_progress(todo):
            for cell, result in zip(job.cells, measure(lab, job), strict=True):
                store.put(job.part.name, job.curve.name, cell, result)
        lab.check()
