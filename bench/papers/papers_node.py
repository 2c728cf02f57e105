# SPDX-License-Identifier: Apache-2.0
"""Part of bench/papers that runs in the node: the cells of a transport, and its CPU time by layer.

Runs as ``python3 papers_node.py REQUEST`` with JSON.  For each cell it mounts, verified, reads with
papers_reader and unmounts.  Prints JSON: the results of the cells, in order.

* Speed and CPU time are the difference of a long and a short run: the start of the reader is in
  both.
* The probe set cpu divides the CPU time of a further long run between client and server.
* Counts of the device must agree with those of the reader: bytes on the wire.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats, readahead
from nfsrdma_tools.host.nfs.mounting import MountRequest, mount, unmount
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.probes import cpu_layers
from nfsrdma_tools.probes.probe_sets import attached, probe_set
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.undo import journal

HERE = Path("/mnt/bench")
FILE = "papers-data-{}"
READER = "/run/bench/papers_reader"
LIBRARY_READER = "/run/bench/library_reader"
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
Cell = dict[str, Any]
CellResult = dict[str, Any]
ASKED: dict[str, Any] = json.loads(sys.argv[1])
# read by libnfsrdma, which needs no mount
LIBRARY = ASKED["curve"]["transport"] == "library"


def mounted(curve: Cell, cells: list[Cell]) -> Iterator[Cell]:
    """The cells, each with its mount and read-ahead, verified, personality included.

    Cells of one rsize that follow each other share a mount.
    """
    if LIBRARY:
        yield from cells
        return
    with journal() as changes:
        made = None
        for cell in cells:
            if made and made.rsize != cell["rsize"]:
                unmount(made.directory, changes)
                made = None
            made = made or mount(request(curve, cell), changes).mount
            if cell["ahead"] is not None:
                readahead.set_kb(made.device, readahead.kb_for(cell["ahead"], made.rsize))
            yield cell
        if made:
            unmount(made.directory, changes)


def request(curve: Cell, cell: Cell) -> MountRequest:
    return MountRequest(
        Target.parse("server:/export"), HERE, vers="3", transport=curve["transport"],
        personality=curve["personality"], rsize=cell["rsize"],
    )  # fmt: skip


def read(cell: Cell, total: int) -> CellResult:
    """The reader's nanoseconds and bytes. Buffered, it reads a file to its end."""
    size = total if cell["way"] == "buffered" else ASKED["file"]
    path = HERE / FILE.format(size)
    words = (cell["record"], total, cell["depth"], cell["copy"])
    if cell["way"] == "buffered":
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    reader = (LIBRARY_READER, "server:/export", path.name)
    if not LIBRARY:
        reader = (READER, str(path), cell["way"])
    argv = (*reader, *map(str, words))
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    result: CellResult = json.loads(done.stdout)
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
    """The mount's counters when each Call has its Reply.  TimeoutError if one has none."""
    end = time.monotonic() + LIMIT
    while True:
        stats = mountstats.read(HERE)
        if all(xprt.counters["sends"] == xprt.counters["recvs"] for xprt in stats.xprts):
            return stats
        if time.monotonic() > end:
            raise TimeoutError(f"Calls without a Reply: {stats.xprts}")


def run(cell: Cell, total: int) -> Counter[str]:
    """Time and counts of a run of the reader, its last read-ahead included."""
    stats = None if LIBRARY else idle()
    device, before = cards(), cpu_time.snapshot()
    counters = Counter(read(cell, total))
    after = None if LIBRARY else idle()
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    counters["busy"] = spent.busy_ns
    if stats and after:
        counted = mountstats.difference(after, stats)
        counters["rpcs"] = sum(op.operations for op in counted.operations.values())
        counters["server"] = counted.bytes.server_read
    now = cards()
    counters.update({f"card {name}": now[name] - device[name] for name in now})
    return counters


def measure(curve: Cell, cell: Cell) -> CellResult:
    """Speed, CPU time of both ends and counts for each MiB of a cell."""
    read(cell, cell["total"])
    short, long = run(cell, cell["total"]), run(cell, 3 * cell["total"])
    for counts in (short, long):
        if 8e9 * counts["bytes"] > ASKED["wire"] * counts["ns"]:
            raise SystemExit(f"{curve}, {cell}: faster than the wire: {counts}")
    long.subtract(short)
    over = long["card network" if curve["transport"] == "tcp" else "card bytes"] / long["bytes"]
    got = 1.0 if LIBRARY else long["server"] / long["bytes"]
    if not LEAST <= over <= MOST or got < 1:
        raise SystemExit(
            f"{curve}, {cell}: for each byte of the reader, the device counted {over:.3f},"
            f" mountstats {got:.3f}: {long}"
        )
    rate = long["bytes"] / long["ns"] * 1e9
    if 8 * rate > ASKED["wire"] * (1 + START):
        raise SystemExit(f"{curve}, {cell}: {8 * rate:.0f} bits per second, more than the wire's")
    mib = long["bytes"] / (1 << 20)
    return {
        "rate": rate / 1e6,
        "cpu": long["busy"] / long["ns"],
        **({"process": long["process_ns"] / long["ns"]} if LIBRARY else {}),
        "ms": long["busy"] / 1e6 / mib,
        "us": long["ns"] / 1e3 / (long["bytes"] / cell["record"]),
        "wire": over,
        **{name: count / mib for name, count in long.items() if name.startswith(("card", "rpcs"))},
    }


def divide(curve: Cell, cells: list[Cell], rate: int) -> list[CellResult]:
    """Nanoseconds of each cell by side, the modelled card's work apart.

    The clock is exact, so samples at one rate might hit reads at few of their moments.  Each run
    has another rate.
    """
    results: list[CellResult] = []
    cpu, numbers = probe_set("cpu"), count()
    with attached(["cpu"], rate=rate) as session:
        for cell in mounted(curve, cells):
            read(cell, cell["total"])
            results.append({})
            before = cpu.read(session)
            while results[-1].get("samples", 0) < ASKED["samples"]:
                sample_every(session, 1e9 / rate * (0.7 + GOLDEN * next(numbers) % 1 * 0.6))
                read(cell, 3 * cell["total"])
                rows = cpu.records(cpu.difference(cpu.read(session), before), {})
                results[-1] = {**sides(rows), "layers": layers(rows)}
    return results


def sample_every(session: Session, ns: float) -> None:
    """Change the period of the samples."""
    for files in session.bpf.open_perf_events.values():
        for file in files.values():
            fcntl.ioctl(file, PERF_EVENT_IOC_PERIOD, struct.pack("=Q", round(ns)))


def sides(rows: list[dict[str, Any]]) -> Counter[str]:
    """Sum the rows of the probe set."""
    sums: Counter[str] = Counter()
    for row in rows:
        if row["layer"] == "busy":
            sums.update({"nfsd": row["threads"]["nfsd"], "samples": row["samples"]})
            sums["lost"] += row["lost"]
        elif row["layer"] == cpu_layers.CARD:
            sums["card"] += row["ns"]
        elif row["layer"] not in (cpu_layers.TRACING, cpu_layers.IDLE):
            sums.update({side: row[f"{side}_ns"] for side in ("client", "server", "neither")})
    return sums


def layers(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Nanoseconds of the client by layer, the modelled card's work apart."""
    apart = (cpu_layers.CARD, cpu_layers.TRACING, cpu_layers.IDLE)
    return {row["layer"]: row["client_ns"] for row in rows
            if row.get("client_ns") and row["layer"] not in apart}  # fmt: skip


def trace(cell: Cell) -> CellResult:
    """The events of a run: seconds, name, fields."""
    events = [TRACING / "events/nfsrdma" / f"nfsrdma_{name}/enable" for name in EVENTS]
    read(cell, cell["total"])
    (TRACING / "trace_clock").write_text("mono")
    (TRACING / "trace").write_text("")
    for event in events:
        event.write_text("1")
    read(cell, cell["total"])
    for event in events:
        event.write_text("0")
    return {"events": LINE.findall((TRACING / "trace").read_text())}


def main() -> None:
    curve, cells = ASKED["curve"], ASKED["cells"]
    HERE.mkdir(parents=True, exist_ok=True)
    if ASKED["what"] == "trace":
        results = [trace(cell) for cell in mounted(curve, cells)]
    else:
        results = [measure(curve, cell) for cell in mounted(curve, cells)]
    if ASKED["rate"]:
        divided = divide(curve, cells, ASKED["rate"])
        results = [result | {"sides": each} for result, each in zip(results, divided, strict=True)]
    print(json.dumps(results))


main()
