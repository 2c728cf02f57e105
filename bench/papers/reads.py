# SPDX-License-Identifier: Apache-2.0
"""Reads of a transport in a node: speed, counts, and CPU time by side and layer.

Each cell is read over a mount whose options are verified, or through libnfsrdma.  Speed and CPU
time are the difference of a long and a short run: the start of the reader is in both.  The probe
set cpu divides the CPU time of a further long run between client and server.  Counts of the device
must agree with those of the reader: bytes on the wire.
"""

from __future__ import annotations

import fcntl
import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from bench.cells import MIB
from bench.solo import FOLDER, write_stamped
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats, readahead
from nfsrdma_tools.host.nfs.mounting import MountRequest, mount, unmount
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.probes import cpu_layers
from nfsrdma_tools.undo import journal
from testbed.node.files import drop_from_cache
from testbed.node.mounts import parameters
from testbed.node.programs import until
from testbed.remote import on

__all__ = ["FILE_SIZE", "LIBRARY_READER", "Cell", "Client", "Division", "Event", "Measured",
           "measured", "traced", "write_files"]  # fmt: skip

HERE, SERVED = Path("/mnt/bench"), Path("/export")
FILE = "papers-data-{}"
# for direct reads of any total; buffered reads have files of their totals, because read-ahead
# beyond what the reader reads would delay its last blocks
FILE_SIZE = 64 * MIB
READER, LIBRARY_READER = f"{FOLDER}/papers_reader", f"{FOLDER}/library_reader"
TRACING = Path("/sys/kernel/tracing")
EVENTS = ("mr_fastreg", "mr_localinv", "mr_remoteinv", "svc_expose", "svc_done", "done")
LINE = re.compile(r" (\d+\.\d+): nfsrdma_(\w+): (.*)")
# bytes of a wire per byte of a file: headers, and read-ahead beyond what the reader reads
LEAST, MOST = 1.0, 1.15
# the start of a long run may take less time than that of a short one, by this share of the rest
START = 0.01
# of perf_event_open(2); for a software clock in ns
PERF_EVENT_IOC_PERIOD = 0x40082404
# multiples of it spread evenly between 0 and 1
GOLDEN = 0.618034
LIMIT = 60.0  # seconds until Calls have their Replies


class Cell(NamedTuple):
    """Reads of a way: direct, or buffered with read-ahead of a number of READs."""

    way: str
    rsize: int
    record: int
    ahead: int | None
    depth: int
    copy: int
    """Bytes of each record that the reader copies."""
    total: int
    """Bytes; a long run reads three times as many."""


@dataclass(frozen=True)
class Client:
    """A transport, or libnfsrdma, which needs no mount; and parameters of our module meanwhile."""

    transport: str
    personality: str | None
    sets: dict[str, str]
    wire: int
    """Bits per second."""

    @property
    def is_library(self) -> bool:
        return self.transport == "library"


class Division(NamedTuple):
    """Nanoseconds of sampled time by side, and the client's by layer, the card's work apart."""

    sides: dict[str, int]
    layers: dict[str, int]


class Measured(NamedTuple):
    """Speed, CPU time of both ends, and counts of a cell."""

    rate: float
    """MB/s"""
    cpu: float
    """Share of the CPU, that of the application alone in ``process``: of libnfsrdma's only."""
    process: float | None
    ms: float
    """CPU time of both ends for a MiB"""
    us: float
    """Time of a record"""
    wire: float
    """Bytes for each byte of the reader"""
    counts: dict[str, float]
    """RPCs, and counts of the cards, for a MiB"""
    division: Division | None = None


# seconds, name, fields
Event = tuple[str, str, str]


@on("solo", timeout=1200)
def write_files(sizes: list[int]) -> None:
    """Write the files to read."""
    for size in sizes:
        write_stamped(SERVED / FILE.format(size), size)


@on("solo", timeout=7200)
def measured(client: Client, cells: list[Cell], rate: int, samples: int) -> list[Measured]:
    """Measure cells; divide the CPU time by samples at this rate, unless it is 0."""
    with parameters(**client.sets):
        results = [measure(client, cell) for cell in mounted(client, cells)]
        if rate:
            divisions = divide(client, cells, rate, samples)
            both = zip(results, divisions, strict=True)
            results = [result._replace(division=each) for result, each in both]
    return results


@on("solo", timeout=7200)
def traced(client: Client, cells: list[Cell]) -> list[list[Event]]:
    """The trace events of exposed memory during a run of each cell."""
    with parameters(**client.sets):
        return [trace(client, cell) for cell in mounted(client, cells)]


def mounted(client: Client, cells: list[Cell]) -> Iterator[Cell]:
    """The cells, each with its mount and read-ahead, verified, personality included.

    Cells of one rsize that follow each other share a mount.
    """
    if client.is_library:
        yield from cells
        return
    HERE.mkdir(parents=True, exist_ok=True)
    request = MountRequest(
        Target.parse("server:/export"), HERE, vers="3", transport=client.transport,
        personality=client.personality,
    )  # fmt: skip
    with journal() as changes:
        made = None
        for cell in cells:
            if made and made.rsize != cell.rsize:
                unmount(made.directory, changes)
                made = None
            made = made or mount(replace(request, rsize=cell.rsize), changes).mount
            if cell.ahead is not None:
                readahead.set_kb(made.device, readahead.kb_for(cell.ahead, made.rsize))
            yield cell
        if made:
            unmount(made.directory, changes)


def read(client: Client, cell: Cell, total: int) -> dict[str, int]:
    """The reader's nanoseconds and bytes. Buffered, it reads a file to its end."""
    path = HERE / FILE.format(total if cell.way == "buffered" else FILE_SIZE)
    if cell.way == "buffered":
        drop_from_cache(path)
    reader = (READER, str(path), cell.way)
    if client.is_library:
        reader = (LIBRARY_READER, "server:/export", path.name)
    argv = (*reader, *map(str, (cell.record, total, cell.depth, cell.copy)))
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    result: dict[str, int] = json.loads(done.stdout)
    return result


def cards() -> Counter[str]:
    """The counters of both cards together, and the bytes that both network devices received."""
    counters: Counter[str] = Counter()
    for file in Path("/sys/class/infiniband").glob("*/ports/1/hw_counters/*"):
        if file.name != "lifespan":
            counters[file.name] += int(file.read_text())
    for file in Path("/sys/class/net").glob("v[01]/statistics/rx_bytes"):
        counters["network"] += int(file.read_text())
    return counters


def idle() -> mountstats.MountStats:
    """The mount's counters when each Call has its Reply."""

    def stats() -> mountstats.MountStats | None:
        now = mountstats.read(HERE)
        counters = [xprt.counters for xprt in now.xprts]
        return now if all(each["sends"] == each["recvs"] for each in counters) else None

    return until("a Reply to each Call", stats, LIMIT, pause=0)


def run(client: Client, cell: Cell, total: int) -> Counter[str]:
    """Time and counts of a run of the reader, its last read-ahead included."""
    stats = None if client.is_library else idle()
    device, before = cards(), cpu_time.snapshot()
    counters = Counter(read(client, cell, total))
    after = None if client.is_library else idle()
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    counters["busy"] = spent.busy_ns
    if stats and after:
        counted = mountstats.difference(after, stats)
        counters["rpcs"] = sum(op.operations for op in counted.operations.values())
        counters["server"] = counted.bytes.server_read
    now = cards()
    counters.update({f"card {name}": now[name] - device[name] for name in now})
    return counters


def measure(client: Client, cell: Cell) -> Measured:
    """Speed, CPU time of both ends and counts for each MiB of a cell."""
    read(client, cell, cell.total)
    short, long = run(client, cell, cell.total), run(client, cell, 3 * cell.total)
    for counts in (short, long):
        if 8e9 * counts["bytes"] > client.wire * counts["ns"]:
            raise SystemExit(f"{client}, {cell}: faster than the wire: {counts}")
    long.subtract(short)
    over = long["card network" if client.transport == "tcp" else "card bytes"] / long["bytes"]
    got = 1.0 if client.is_library else long["server"] / long["bytes"]
    if not LEAST <= over <= MOST or got < 1:
        raise SystemExit(
            f"{client}, {cell}: for each byte of the reader, the device counted {over:.3f},"
            f" mountstats {got:.3f}: {long}"
        )
    rate = long["bytes"] / long["ns"] * 1e9
    if 8 * rate > client.wire * (1 + START):
        raise SystemExit(f"{client}, {cell}: {8 * rate:.0f} bits per second, more than the wire's")
    mib = long["bytes"] / MIB
    counted = {name: n / mib for name, n in long.items() if name.startswith(("card", "rpcs"))}
    return Measured(
        rate=rate / 1e6,
        cpu=long["busy"] / long["ns"],
        process=long["process_ns"] / long["ns"] if client.is_library else None,
        ms=long["busy"] / 1e6 / mib,
        us=long["ns"] / 1e3 / (long["bytes"] / cell.record),
        wire=over,
        counts=counted,
    )


def divide(client: Client, cells: list[Cell], rate: int, samples: int) -> list[Division]:
    """Divide the CPU time of each cell.

    The clock is exact, so samples at one rate might hit reads at few of their moments.  Each run
    has another rate.
    """
    # loading bcc takes longer than a cell without samples
    from nfsrdma_tools.probes.probe_sets import attached, probe_set

    cpu, numbers, results = probe_set("cpu"), count(), []
    with attached(["cpu"], rate=rate) as session:
        for cell in mounted(client, cells):
            read(client, cell, cell.total)
            before, division = cpu.read(session), divided([])
            while division.sides.get("samples", 0) < samples:
                sample_every(session, 1e9 / rate * (0.7 + GOLDEN * next(numbers) % 1 * 0.6))
                read(client, cell, 3 * cell.total)
                division = divided(cpu.records(cpu.difference(cpu.read(session), before), {}))
            results.append(division)
    return results


def sample_every(session: Any, ns: float) -> None:
    """Change the period of the samples."""
    for files in session.bpf.open_perf_events.values():
        for file in files.values():
            fcntl.ioctl(file, PERF_EVENT_IOC_PERIOD, struct.pack("=Q", round(ns)))


def divided(rows: list[dict[str, Any]]) -> Division:
    """The sums of the rows of the probe set cpu."""
    sides: Counter[str] = Counter()
    layers = {}
    for row in rows:
        if row["layer"] == cpu_layers.CARD:
            sides["card"] += row["ns"]
        elif row["layer"] not in (cpu_layers.TRACING, cpu_layers.IDLE):
            if row.get("client_ns"):
                layers[row["layer"]] = row["client_ns"]
            if row["layer"] == "busy":
                sides.update({"nfsd": row["threads"]["nfsd"], "samples": row["samples"]})
                sides["lost"] += row["lost"]
            else:
                sides.update({side: row[f"{side}_ns"] for side in ("client", "server", "neither")})
    return Division(dict(sides), layers)


def trace(client: Client, cell: Cell) -> list[Event]:
    events = [TRACING / "events/nfsrdma" / f"nfsrdma_{name}/enable" for name in EVENTS]
    read(client, cell, cell.total)
    (TRACING / "trace_clock").write_text("mono")
    (TRACING / "trace").write_text("")
    for event in events:
        event.write_text("1")
    read(client, cell, cell.total)
    for event in events:
        event.write_text("0")
    return LINE.findall((TRACING / "trace").read_text())
