# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace``: count NFS/RDMA events in the kernel; a table or line of JSON per interval."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nfsrdma_tools.cli.options import (
    From,
    OneMount,
    argument,
    flag,
    machine_of,
    option,
)
from nfsrdma_tools.cli.output import aligned, print_line
from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.probes.sets import server
from nfsrdma_tools.probes.sets.latency import PHASES
from nfsrdma_tools.sizes import format_size

if TYPE_CHECKING:
    from nfsrdma_tools.probes.intervals import Interval
    from nfsrdma_tools.probes.program import Missing

__all__ = ["COLUMNS", "JsonIntervals", "Tables", "table", "trace"]

NFSIOSTAT = "nfsiostat"
Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]


def _complete(incomplete: str) -> list[str]:
    return [name for name in _names() if name.startswith(incomplete)]


def _names() -> tuple[str, ...]:
    from nfsrdma_tools.probes.probe_sets import NAMES

    return (*NAMES, NFSIOSTAT)


def trace(
    name: Annotated[
        str,
        argument(
            "NAME",
            "Probe set: chunks, registrations, latency, connections, server, readahead or "
            "cpu; or nfsiostat, which needs neither root nor bcc.",
            complete=_complete,
        ),
    ],
    interval: Annotated[
        float | None,
        option(
            "SECONDS",
            "Time per report (default: 1 s; nfsiostat without --count: one report).",
            "--interval",
            "-i",
            least=0.1,
        ),
    ] = None,
    count: Annotated[
        int | None,
        option("N", "Stop after N reports (default: run until Ctrl-C).", "--count", "-c", least=1),
    ] = None,
    mount: OneMount = None,
    pid: Annotated[
        int | None,
        option(
            "PID",
            "Restrict to RPCs that process PID issues, without writeback by kernel threads "
            "(chunks, latency; default: all processes).",
            least=1,
        ),
    ] = None,
    procedure: Annotated[
        list[str] | None,
        option(
            "NAME,...",
            "Restrict to NFS procedures such as READ (chunks, latency, server, nfsiostat); "
            "repeatable (default: all).",
        ),
    ] = None,
    client: Annotated[
        str,
        option(
            "ADDRESS",
            "Restrict to the client or network ADDRESS (server, connections; default: all).",
        ),
    ] = "",
    as_json: Annotated[bool, flag("Print a line of JSON per report.", "--json", "-j")] = False,
    cost: Annotated[
        bool,
        flag("Also print the CPU time of the probes; turns on kernel.bpf_stats_enabled.", "--cost"),
    ] = False,
    cpu: Annotated[
        bool, flag("Also measure the CPU time of registrations (registrations).", "--cpu")
    ] = False,
    folded: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the stacks of all reports for flame graph programs (cpu; default: none).",
        ),
    ] = None,
    source: From = None,
) -> None:
    """Count NFS/RDMA events in the kernel, per interval.

    Example: nfsrdma trace latency --interval 5 --count 12 --mount /mnt/data

    Needs root and bcc.  Changes nothing permanently: the kernel detaches the probes when this
    process ends.  The first interval starts when all probes are attached.  Ctrl-C before
    --count reports exits with status 130.

    nfsiostat prints mountstats in the columns of nfsiostat(8), summed over all connections of a
    mount; its first report covers the time since the mount.
    """
    from nfsrdma_tools.probes.intervals import WatchOptions, watch
    from nfsrdma_tools.probes.probe_sets import probe_set
    from nfsrdma_tools.probes.row_filter import Filter

    procedures = ",".join(procedure or ()).split(",")
    wanted = Filter(mount, pid or 0, tuple(filter(None, procedures)), client)
    if name == NFSIOSTAT:
        if cost or cpu or folded:
            raise UsageError("trace nfsiostat has no options --cost, --cpu and --folded")
        from nfsrdma_tools.cli import nfsiostat

        if source and (interval or count):
            raise UsageError("trace nfsiostat --from has no options --interval and --count")
        with machine_of(source) as machine:
            every = interval or (1.0 if count else None)
            nfsiostat.run(wanted, every, count or 0, as_json, machine)
        return
    if source:
        raise UsageError(f"trace {name} has no option --from: it counts events of this host")
    probes = probe_set(name, _names())
    ended = probes.stack_writer(folded) if folded else None
    output = JsonIntervals() if as_json else Tables(name)
    options = WatchOptions(wanted, interval or 1.0, count or 0, cost, cpu)
    try:
        for report in watch(probes, options, output.missing, ended):
            output.show(report)
    except KeyboardInterrupt:
        # without --count, Ctrl-C is how a trace ends
        if count:
            raise


# columns that only some personalities of our module have: left out if they are blank
_RARE = (
    *("reused", "| exposed", "done", "not done", "late"),
    *("optimistic", "refused", "by optimistic", "| granted", "bytes granted", "revoked"),
    *("| threadless", "by threadless", "missed", "in all"),
)
_NUMBER = re.compile(r"[0-9.]*(e[+-][0-9]+)?[kMG]?")


class JsonIntervals:
    """Prints the missing events, then each interval, as a line of JSON."""

    def missing(self, missing: tuple[Missing, ...]) -> None:
        """Print the events that this kernel lacks."""
        print_line({"missing": {m.event: m.reason for m in missing}})

    def show(self, interval: Interval) -> None:
        """Print the rows of an interval."""
        cost = {"cost": asdict(interval.cost)} if interval.cost else {}
        lost = interval.lost._asdict()
        print_line({"time": time.time(), "rows": interval.records, "lost": lost, **cost})


class Tables:
    """Prints a table per interval, and the missing events on standard error."""

    def __init__(self, probe_set: str) -> None:
        self.columns = COLUMNS.get(probe_set, ())

    def missing(self, missing: tuple[Missing, ...]) -> None:
        """Print the events that this kernel lacks, a line per reason."""
        reasons: dict[str, list[str]] = {}
        for event in missing:
            reasons.setdefault(event.reason, []).append(event.event)
        for reason, names in reasons.items():
            print(f"not counted ({reason}): {', '.join(names)}", file=sys.stderr)

    def show(self, interval: Interval) -> None:
        """Print the rows of an interval, with a heading."""
        print(time.strftime("%H:%M:%S"), "" if interval.records else "no events")
        if interval.records:
            for line in table(self.columns, interval.records):
                print(line)
        if any(interval.lost):
            print(f"lost: {interval.lost}")
        if cost := interval.cost:
            print(f"probes: {cost.runs} runs, {cost.ns / 1000:.1f} us of CPU time")
        print(flush=True)


def table(columns: Sequence[Column], records: Sequence[Record]) -> list[str]:
    """A heading and a line per record; text is aligned left, numbers right."""
    cells = ((head, [show(record) for record in records]) for head, show in columns)
    shown = [(head, column) for head, column in cells if head not in _RARE or any(column)]
    numbers = {at for at, (_, column) in enumerate(shown) if all(map(_NUMBER.fullmatch, column))}
    return aligned([*zip(*((head, *column) for head, column in shown), strict=True)], numbers)


def number(key: str) -> Callable[[Record], str]:
    """A count; blank for 0, so that other counts stand out."""
    return lambda record: str(record[key] or "")


def words(key: str) -> Callable[[Record], str]:
    """A name."""
    return lambda record: str(record[key])


def sum_of(*keys: str) -> Callable[[Record], str]:
    """The sum of counts."""
    return lambda record: str(sum(record[key] for key in keys) or "")


def size(key: str) -> Callable[[Record], str]:
    """Bytes, rounded to a unit."""
    return lambda record: _short(record[key]) if record[key] else ""


def _short(value: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if value >= unit:
            return f"{value / unit:.4g}{name}"
    return str(value)


def sizes(key: str) -> Callable[[Record], str]:
    """Histograms per kind of chunk: ``w64k:23`` is 23 Write chunks from 64 KiB to below 128."""
    return lambda record: " ".join(
        f"{kind[0]}{format_size(1 << (slot - 1)) if slot else 0}:{times}"
        for kind, slots in record[key].items()
        for slot, times in enumerate(slots)
        if times
    )


def microseconds(key: str, within: str = "") -> Callable[[Record], str]:
    """A time in microseconds."""

    def show(record: Record) -> str:
        value = (record.get(within, {}) if within else record).get(key)
        return "" if value is None else f"{value:.4g}"

    return show


def mean(total: str, count: str, scale: float) -> Callable[[Record], str]:
    """A sum divided by a count, and by ``scale``."""
    return lambda record: f"{record[total] / record[count] / scale:.4g}" if record[count] else ""


def timed(total: str, count: str) -> Callable[[Record], str]:
    """Microseconds each; blank when they were not timed."""
    return lambda record: mean(total, count, 1000)(record) if record[total] else ""


def revocations(record: Record) -> str:
    """Revoked grants by reason: ``modified 3, expired 1``."""
    return _by_reason(record, "revoked_", server.REVOKED)


def misses(record: Record) -> str:
    """READs that nfsd got although a threadless read was possible, by reason."""
    return _by_reason(record, "threadless_missed_", server.MISSED)


def _by_reason(record: Record, prefix: str, reasons: Sequence[str]) -> str:
    counts = {reason: record[prefix + reason] for reason in reasons}
    return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count)


def in_all(record: Record) -> str:
    """READs that nfsd and the module answered; blank if the module answered none."""
    return str(record["answered"]) if record["threadless_hits"] else ""


def share(record: Record) -> str:
    """A bar as long as the share: ten characters for 50 %."""
    return "#" * round(float(record["share"]) * 20)


def milliseconds(key: str) -> Callable[[Record], str]:
    """Nanoseconds as milliseconds; blank for 0."""
    return lambda record: f"{record[key] / 1e6:.1f}" if record.get(key) else ""


def sampling(record: Record) -> str:
    """The source of the sum of all layers."""
    if "stat_ns" not in record:
        return ""
    lost = f", {record['lost']} lost" if record["lost"] else ""
    how = (
        f"{record['samples']} samples at {record['rate']} Hz{lost}"
        if record["rate"]
        else "no samples"
    )
    return f"/proc/stat: {record['stat_ns'] / 1e6:.0f}; {how}"


COLUMNS: dict[str, Sequence[Column]] = {
    "registrations": (
        ("mount", words("mount")),
        ("transport", words("transport")),
        ("mapped", number("mapped")),
        ("registered", number("registered")),
        ("invalidated by peer", number("remote_invalidations")),
        ("by client", number("local_invalidations")),
        ("unmapped", number("unmapped")),
        ("reused", number("reused")),
        ("pages each", mean("pages", "mapped", 1)),
        ("us each", mean("lifetime_ns", "unmapped", 1000)),
        ("CPU us: map", timed("mapping_ns", "mapped")),
        ("invalidate", timed("invalidating_ns", "unmapped")),
        ("outstanding", number("outstanding")),
        ("peak", number("high_water")),
        ("bytes", size("mapped_bytes")),
        ("allocated", number("mrs_allocated")),
        ("recycled", number("mrs_recycled")),
        ("orphaned", number("mrs_orphaned")),
    ),
    "latency": (
        ("mount", words("mount")),
        ("procedure", words("procedure")),
        ("RPCs", number("count")),
        ("mean us", microseconds("mean_us")),
        ("p50", microseconds("p50_us")),
        ("p95", microseconds("p95_us")),
        ("p99", microseconds("p99_us")),
        *((f"| {p}" if p == "slot" else p, microseconds(p, "phases_us")) for p in PHASES),
    ),
    "server": (
        ("client", words("peer")),
        ("procedure", words("procedure")),
        ("Calls", number("calls")),
        ("read", number("read_calls")),
        ("write", number("write_calls")),
        ("reply", number("reply_calls")),
        ("| fetched", size("read_bytes")),
        ("offered", size("room")),
        ("written", size("written")),
        ("invalidated", number("invalidates")),
        ("| exposed", size("exposed_bytes")),
        ("done", number("dones")),
        ("not done", number("dones_outstanding")),
        ("late", number("done_timeouts")),
        ("| granted", number("grants")),
        ("bytes granted", size("granted_bytes")),
        ("revoked", revocations),
        ("| threadless", number("threadless_hits")),
        ("by threadless", size("threadless_bytes")),
        ("missed", misses),
        ("in all", in_all),
        ("| mean us", microseconds("mean_us")),
        *((phase, microseconds(phase, "phases_us")) for phase in server.PHASES),
    ),
    "readahead": (
        ("mount", words("mount")),
        ("KiB", number("read_ahead_kb")),
        ("windows", number("windows")),
        ("demanded", number("demanded")),
        ("ahead", number("ahead")),
        ("used", number("used")),
        ("late", number("late")),
        ("dropped", number("dropped")),
        ("waiting", number("waiting")),
    ),
    "connections": (
        ("mount", words("mount")),
        ("peer", words("peer")),
        ("times", number("times")),
        ("what", words("what")),
        ("", words("words")),
    ),
    "chunks": (
        ("mount", words("mount")),
        ("procedure", words("procedure")),
        ("RPCs", number("rpcs")),
        ("inline", sum_of("calls_inline", "calls_pulled_up", "calls_gathered")),
        ("read", number("calls_read")),
        ("long", number("calls_position_zero")),
        ("| inline", number("replies_inline")),
        ("write", number("replies_write")),
        ("reply", number("replies_reply")),
        ("unused", number("reply_unused")),
        ("optimistic", number("replies_optimistic")),
        ("refused", number("optimistic_refused")),
        ("| sent inline", size("inline_bytes")),
        ("copied", size("pulled_up_bytes")),
        ("by read", size("read_bytes")),
        ("by write", size("write_used")),
        ("by reply", size("reply_used")),
        ("by optimistic", size("optimistic_bytes")),
        ("sizes", sizes("sizes")),
    ),
    "cpu": (
        ("layer", words("layer")),
        ("share", share),
        ("%", lambda record: f"{record['share']:.1%}"),
        ("ms", milliseconds("ns")),
        ("client", milliseconds("client_ns")),
        ("server", milliseconds("server_ns")),
        ("neither", milliseconds("neither_ns")),
        ("", sampling),
    ),
}
