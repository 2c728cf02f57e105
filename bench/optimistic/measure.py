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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import markdown, node
from bench.cells import KIB, MIB, OUT, BasePart, BaseStore, Cell, CellResult, with_progress
from bench.solo import RDMA, personalities, sh
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, serve

RESULTS = OUT / "optimistic"
RECORD = 4 * KIB
NEAR, NONE = "2gbit/20us", "none"
# the rate of NEAR, in MB/s
WIRE = 250.0
# two servers: two clients of NFS, each with a connection
SERVERS = ("10.9.1.1", "10.9.1.2")
MOUNTS = tuple(f"/mnt/bench{number}" for number in range(len(SERVERS)))
OPTIONS = f"vers=3,{RDMA},nocto,actimeo=600"
FILE, FILE_SIZE = "optimistic-data", 64 * MIB
# small files: of one page each, and of 2 to 6 KiB
SETS = {"one": (4 * KIB, 4 * KIB), "mixed": (2 * KIB, 6 * KIB)}
NUMBER = 256
# each page begins with its offset, in small files plus 4096 for each earlier file
DATA = """
import pathlib, random, struct, sys
def write(path, size, start):
    with open(path, "wb") as file:
        for at in range(0, size, 4096):
            file.write(struct.pack("<Q", start + at).ljust(min(4096, size - at), b"x"))
dice = random.Random(1)
write(sys.argv[1], int(sys.argv[2]), 0)
for number in range(int(sys.argv[3])):
    for word in sys.argv[4:]:
        folder, least, most = word.split(":")
        pathlib.Path(folder).mkdir(exist_ok=True)
        write(f"{folder}/{number}", dice.randrange(int(least), int(most) + 1), number * 4096)
"""
# the second address of the server, with the routes of lab-node
SECOND = """
ip addr replace 10.9.1.2/32 dev v1
ip rule show | grep -q 'to 10.9.1.2 ' || ip rule add pref 20 to 10.9.1.2 lookup 100
ip route replace 10.9.1.2 dev v0 src 10.9.1.11 table 100
ip neigh replace 10.9.1.2 lladdr $(cat /sys/class/net/v1/address) dev v0
"""
# idle time takes no instructions, but ends references
PARAMETERS = ("optimistic_lifetime=3600", "optimistic_memory=1024")


@dataclass(frozen=True)
class Curve:
    """A way of a READ, and parameters of the module for it."""

    name: str
    personality: str
    sets: Sequence[str] = ()


INLINE, DIRECT = "RPC, inline", "RPC, direct"
OURS_NAME, PATIENT = "optimistic", "optimistic, polled"
CURVES = {
    curve.name: curve
    for curve in (
        Curve(INLINE, "read-write"),
        Curve(DIRECT, "read-write", ("min_chunk=1",)),
        Curve(OURS_NAME, "optimistic"),
        # the sender waits longer than a round trip of the paper's wire
        Curve(PATIENT, "optimistic", ("optimistic_spin_us=100",)),
    )
}


@dataclass(frozen=True)
class Part(BasePart):
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


class Store(BaseStore):
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


def random_reads(count: int, first: int, way: str = "direct", burst: int = 0) -> list[str]:
    """The reader's random reads of 4 KiB; each record has its turn once in 16,384 reads."""
    words = (way, RECORD, count, first, burst)
    return [f"{node.FOLDER}/optimistic_reader", "random", f"{MOUNTS[0]}/{FILE}", *map(str, words)]


def transactions(cell: Cell, count: int) -> list[str]:
    folder = f"{MOUNTS[0]}/{cell['files']}"
    words = (NUMBER, count, cell["hits"], 0)
    return [f"{node.FOLDER}/optimistic_reader", "files", folder, *map(str, words)]


def streams(block: int, total: int) -> list[list[str]]:
    words = ("direct", block, total, 8, 0)
    return [
        [f"{node.FOLDER}/papers_reader", f"{folder}/{FILE}", *map(str, words)] for folder in MOUNTS
    ]


def request(part: Part, cell: Cell) -> CellResult:
    """The commands that the node runs for a cell."""
    card = {name: cell[name] for name in ("recoverable", "refuse") if name in cell}
    asked: CellResult = {"drop": [], "warm": [], "card": card}
    if part.name in ("response", "wire"):
        short, long = (random_reads(n, 0, cell["way"]) for n in (300, 1800))
        asked |= {"short": [short], "long": [long], "warm": [random_reads(1800, 0, cell["way"])]}
        # a read of the client's page cache is no read
        asked["drop"] = [f"{MOUNTS[0]}/{FILE}"] if cell["way"] == "buffered" else []
    elif part.name == "first":
        asked |= {"short": [], "long": [random_reads(FILE_SIZE // RECORD, 0)]}
    elif part.name == "refused":
        asked |= {"short": [], "long": [random_reads(6000, 0)], "warm": [random_reads(500, 0)]}
        asked["then"] = [random_reads(1000, 6000)]
    elif part.name == "bursts":
        bursts = random_reads(20 * cell["burst"], 0, burst=cell["burst"])
        asked |= {"short": [], "long": [bursts], "warm": [random_reads(500, 0)]}
    elif part.name in ("files", "patient"):
        few, many = (transactions(cell, count) for count in (NUMBER, 6 * NUMBER))
        asked |= {"short": [few], "long": [many], "warm": [few]}
    else:
        # blocks of each mount
        asked |= {
            "short": streams(cell["block"], 128 * cell["block"]),
            "long": streams(cell["block"], 640 * cell["block"]),
            "warm": streams(64 * KIB, FILE_SIZE),
            "record": cell["block"],
        }
    return asked


# --- measuring ---


def prepare(lab: Lab) -> None:
    """Put the files to read, the readers and optimistic_node.py into the node."""
    sh(lab, f"mkdir -p {' '.join(MOUNTS)}\n{SECOND}")
    sets = [f"/export/{name}:{least}:{most}" for name, (least, most) in SETS.items()]
    argv = ("python3", "-", f"/export/{FILE}", str(FILE_SIZE), str(NUMBER), *sets)
    lab.run("solo", *argv, stdin=DATA.encode(), timeout=1200)
    node.install(
        lab, Path(__file__).with_name("optimistic_node.py"), "optimistic_reader", "papers_reader"
    )
    # writeback would take time of the CPU
    sh(lab, "sync")
    serve(lab, "solo", OURS)


def prove(lab: Lab, curve: Curve) -> None:
    """SystemExit unless all connections have the personality of the curve."""
    in_effect = personalities(lab)
    if set(in_effect) != {curve.personality}:
        raise SystemExit(f"{curve.name}: found {in_effect}, expected {curve.personality}")


@dataclass(frozen=True)
class Job:
    """Cells that are measured over the same mounts."""

    part: Part
    curve: Curve
    cells: Sequence[Cell]

    def __str__(self) -> str:
        return f"{self.part.name}, {self.curve.name}, {', '.join(map(str, self.cells))}"

    @property
    def request(self) -> str:
        cells = [request(self.part, cell) for cell in self.cells]
        return json.dumps({"samples": self.part.samples, "cells": cells})


def measure(lab: Lab, job: Job) -> list[CellResult]:
    """Measure the cells over mounts of their own."""
    lab.set_link(job.cells[0]["link"])
    name = job.curve.personality
    sets = (f"personality={name}", f"server_personalities={name}", *PARAMETERS, *job.curve.sets)
    before = node.set_parameters(lab, sets)
    made = list(zip(SERVERS, MOUNTS, strict=True))[: job.part.mounts]
    for server, folder in made:
        sh(lab, f"mount -t nfs -o {OPTIONS} {server}:/export {folder}")
    try:
        prove(lab, job.curve)
        return node.run(lab, "optimistic_node.py", job.request)
    finally:
        node.set_parameters(lab, before)
        for _, folder in made:
            sh(lab, f"umount {folder}")


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
