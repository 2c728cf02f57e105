# SPDX-License-Identifier: Apache-2.0
"""Optimistic DAFS: bench/optimistic's cells by libnfsrdma.

Repeats section 5.2 of the FAST paper, whose clients had no mount: reads of 4 KiB (table 3), small
files with hits in the client's cache (figure 6), two clients that stream (figure 7).  One lab with
the modelled card on the instruction clock, where a microsecond is a thousand instructions.  A file
in out/optimistic-user/ has the result of each cell, so an interrupted run continues; a second call
only draws.  Tables and figures go to docs/explanation/optimistic-reads.md.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from bench import markdown
from bench.cells import OUT, BasePart, Cell, CellResult, with_progress
from bench.optimistic.measure import (
    BLOCKS,
    FILE,
    HITS,
    NEAR,
    NONE,
    NUMBER,
    PARAMETERS,
    RECORD,
    SECOND,
    SERVERS,
    SETS,
    WIRE,
    Store,
    write_files,
)
from bench.solo import FOLDER, READERS, sh
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import place_program
from testbed.labs import OURS, serve
from testbed.mounts import set_to

INLINE, DIRECT, OPTIMISTIC = WAYS = ("inline", "direct", "optimistic")
MEMORIES = ("direct", "buffered")
RESULTS = OUT / "optimistic-user"
READER, STREAMER = (f"{FOLDER}/{name}" for name in ("optimistic_user", "library_reader"))
DEPTH = 8
# bytes that each of two clients reads
STREAM = 32 << 20
# reads of a difference: the start of the programs does not count
SHORT, LONG = 300, 1800


def parts() -> tuple[BasePart[Cell], ...]:
    """All parts, in the order of the measurement; a curve is a way of a read."""
    links = (NONE, NEAR)
    reads = [{"link": link, "memory": memory} for link in links for memory in MEMORIES]
    files = [{"link": link, "files": name, "hits": hits}
             for link in links for name in SETS for hits in HITS]  # fmt: skip
    blocks = [{"link": NEAR, "block": block} for block in BLOCKS]
    return (
        BasePart("response", WAYS, reads),
        BasePart("files", WAYS, files),
        BasePart("streams", (INLINE, OPTIMISTIC), blocks),
    )


def prepare(lab: Lab) -> None:
    """Put the files to read and the readers into the node; the server accepts optimistic reads."""
    sh(lab, SECOND)
    write_files(lab)
    for source, path in (("optimistic_user_reader", READER), ("library_reader", STREAMER)):
        place_program(lab, "solo", READERS / f"{source}.c", path)
    # writeback would take time of the CPU
    sh(lab, "sync")
    serve(lab, "solo", OURS)
    for name, value in {"server_personalities": "optimistic", **PARAMETERS}.items():
        set_to(lab, "solo", name, value)


def run(lab: Lab, *argv: object) -> CellResult:
    result: CellResult = json.loads(lab.run("solo", *map(str, argv), timeout=3600).stdout)
    return result


def difference(few: CellResult, many: CellResult) -> CellResult:
    """Microseconds, bytes and counts of an operation."""
    operations = many["operations"] - few["operations"]
    per_operation = {name: (many[name] - few[name]) / operations for name in many if name != "ns"}
    return per_operation | {"us": (many["ns"] - few["ns"]) / operations / 1e3}


def response(lab: Lab, way: str, memory: str) -> CellResult:
    """A read of 4 KiB, after all of the file was read."""

    def reads(count: int) -> CellResult:
        words = ("random", f"{SERVERS[0]}:/export", FILE, memory, RECORD, count, 0, way)
        return run(lab, READER, *words)

    return difference(reads(SHORT), reads(LONG))


def files(lab: Lab, way: str, name: str, hits: int) -> CellResult:
    """A transaction with a small file."""

    def transactions(count: int) -> CellResult:
        words = ("files", f"{SERVERS[0]}:/export", name, NUMBER, count, hits, 0, way)
        return run(lab, READER, *words)

    return difference(transactions(NUMBER), transactions(6 * NUMBER))


# the readers begin when all of them wait for the lock
STREAMS = """
cd /run/bench
exec 3>gate
flock 3
for server in $1; do
	$2 $server:/export $3 $4 $5 $6 0 $7 gate > stream.$server 3>&- &
done
until [ $(grep -c -- '->' /proc/locks) = $(echo $1 | wc -w) ]; do
	pgrep -f $2 > /dev/null
	sleep 0.1
done
flock -u 3
wait
cat stream.*
rm stream.* gate
"""


def streams(lab: Lab, way: str, block: int) -> CellResult:
    """Two processes that read the file from its begin, ``DEPTH`` blocks in flight each."""

    def total(blocks: int) -> CellResult:
        numbers = (block, blocks * block, DEPTH, int(way == OPTIMISTIC))
        words = (" ".join(SERVERS), STREAMER, FILE, *map(str, numbers))
        text = lab.run("solo", "sh", "-ec", STREAMS, "sh", *words, timeout=3600).stdout
        rows = [json.loads(line) for line in text.splitlines()]
        if len(rows) != len(SERVERS):
            raise SystemExit(f"found results of {len(rows)} readers, expected {len(SERVERS)}")
        begin, end = (min(row["begin"] for row in rows),
                      max(row["begin"] + row["ns"] for row in rows))  # fmt: skip
        return {"ns": end - begin, "bytes": sum(row["bytes"] for row in rows),
                "by_reference": sum(row["by_reference"] for row in rows)}  # fmt: skip

    few, many = total(STREAM // 4 // block), total(STREAM // block)
    size = many["bytes"] - few["bytes"]
    by_reference = (many["by_reference"] - few["by_reference"]) * block / size
    speed = size / (many["ns"] - few["ns"]) * 1e3
    if speed > 1.01 * WIRE:
        raise SystemExit(f"{way}, {block}: faster than the wire: {few}, {many}")
    return {"mb_s": speed, "by_reference": by_reference}


@dataclass(frozen=True)
class Job:
    """A cell of a curve."""

    part: BasePart[Cell]
    way: str
    cell: Cell

    def __str__(self) -> str:
        return f"{self.part.name}, {self.way}, {self.cell}"


def measure(lab: Lab, job: Job) -> CellResult:
    """Measure a cell; SystemExit if optimistic reads went by RPC."""
    cell = job.cell
    if job.part.name == "response":
        result = response(lab, job.way, cell["memory"])
    elif job.part.name == "files":
        result = files(lab, job.way, cell["files"], cell["hits"])
    else:
        result = streams(lab, job.way, cell["block"])
    if job.way == OPTIMISTIC and not result["by_reference"]:
        raise SystemExit(f"{job}: found no read by reference")
    return result


def jobs(store: Store, only: Sequence[str]) -> list[Job]:
    """The cells without a result, those of one link together."""
    todo = [Job(part, way, cell) for part in parts() if not only or part.name in only
            for way in part.curves for cell in store.missing(part, way)]  # fmt: skip
    return sorted(todo, key=lambda job: str(job.cell["link"]))


def work(store: Store, kernel: str, todo: Sequence[Job]) -> None:
    """Measure in a lab; store each result as soon as it is there."""
    subprocess.run(("make", "-s", "-C", READERS.parents[1] / "lib"), check=True)
    config = LabConfig(
        "optimistic-user", clock="instructions", link=NONE, kernel=kernel, memory=4608, nic="card",
        extras=True,
    )  # fmt: skip
    with Lab(config) as lab:
        prepare(lab)
        store.describe(
            markdown.conditions(lab, "card", "make bench NAME=optimistic-user", link=False)
        )
        for link, group in itertools.groupby(with_progress(todo), lambda job: job.cell["link"]):
            lab.set_link(link)
            for job in group:
                store.put(job.part.name, job.way, job.cell, measure(lab, job))
        lab.check()
