# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace``: count NFS/RDMA events in the kernel; a table or line of JSON per interval."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from nfsrdma_tools.probes.columns import Column, Record
from nfsrdma_tools.probes.probe_sets import NAMES, ProbeSet, probe_set

if TYPE_CHECKING:
    from nfsrdma_tools.probes.intervals import Interval
    from nfsrdma_tools.probes.program import Missing

__all__ = ["JsonIntervals", "Tables", "table", "trace"]

NFSIOSTAT = "nfsiostat"
_NAMES = (*NAMES, NFSIOSTAT)


def _complete(incomplete: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(incomplete)]


def _having(part: str) -> str:
    """The probe sets that have a filter or a function."""
    sets = map(probe_set, NAMES)
    return ", ".join(
        each.name for each in sets if part in each.filters or getattr(each, part, None)
    )


def trace(
    name: Annotated[
        str,
        argument(
            "NAME",
            f"Probe set: {', '.join(NAMES[:-1])} or {NAMES[-1]}; or nfsiostat, which needs neither "
            "root nor bcc.",
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
            f"({_having('pid')}; default: all processes).",
            least=1,
        ),
    ] = None,
    procedure: Annotated[
        list[str] | None,
        option(
            "NAME,...",
            f"Restrict to NFS procedures such as READ ({_having('procedures')}, nfsiostat); "
            "repeatable (default: all).",
        ),
    ] = None,
    client: Annotated[
        str,
        option(
            "ADDRESS",
            f"Restrict to the client or network ADDRESS ({_having('client')}; default: all).",
        ),
    ] = "",
    as_json: Annotated[bool, flag("Print a line of JSON per report.", "--json", "-j")] = False,
    cost: Annotated[
        bool,
        flag("Also print the CPU time of the probes; turns on kernel.bpf_stats_enabled.", "--cost"),
    ] = False,
    cpu: Annotated[
        bool, flag(f"Also measure the CPU time of the counted work ({_having('time')}).", "--cpu")
    ] = False,
    folded: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the stacks of all reports for flame graph programs "
            f"({_having('stack_writer')}; default: none).",
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
    probes = probe_set(name, _NAMES)
    if folded and not probes.stack_writer:
        sets = _having("stack_writer")
        raise UsageError(f"trace {name} has no option --folded", f"use trace {sets} --folded")
    ended = probes.stack_writer(folded) if folded and probes.stack_writer else None
    output = JsonIntervals() if as_json else Tables(probes)
    options = WatchOptions(wanted, interval or 1.0, count or 0, cost, cpu)
    try:
        for report in watch(probes, options, output.missing, ended):
            output.show(report)
    except KeyboardInterrupt:
        # without --count, Ctrl-C is how a trace ends
        if count:
            raise


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

    def __init__(self, probes: ProbeSet) -> None:
        self.columns = probes.columns

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
    cells = ((column, [column.show(record) for record in records]) for column in columns)
    shown = [(column.head, texts) for column, texts in cells if any(texts) or not column.rare]
    numbers = {at for at, (_, texts) in enumerate(shown) if all(map(_NUMBER.fullmatch, texts))}
    return aligned([*zip(*((head, *texts) for head, texts in shown), strict=True)], numbers)
