# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace``: count NFS/RDMA events in the kernel, per interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from nfsrdma_tools.cli.options import argument, complete_mount, flag, option
from nfsrdma_tools.errors import UsageError

if TYPE_CHECKING:
    from nfsrdma_tools.probes.row_filter import Filter

__all__ = ["trace"]

NFSIOSTAT = "nfsiostat"
_N = TypeVar("_N", int, float)


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
        argument("INTERVAL", "Seconds per report (default: 1; nfsiostat: one report).", min=0.1),
    ] = None,
    count: Annotated[
        int | None,
        argument("COUNT", "Stop after COUNT reports (default: run until Ctrl-C).", min=1),
    ] = None,
    interval_option: Annotated[
        float | None,
        option(
            "SECONDS",
            "The same as INTERVAL (default: that of INTERVAL).",
            "--interval",
            "-i",
            min=0.1,
        ),
    ] = None,
    count_option: Annotated[
        int | None,
        option("N", "The same as COUNT (default: that of COUNT).", "--count", "-c", min=0),
    ] = None,
    mount: Annotated[
        Path | None,
        option(
            "DIR", "Restrict to the mount at DIR (default: all mounts).", complete=complete_mount
        ),
    ] = None,
    pid: Annotated[
        int | None,
        option(
            "PID",
            "Restrict to RPCs that process PID issues, without writeback by kernel threads "
            "(chunks, latency) (default: all processes).",
            min=1,
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
            "Restrict to the client or network ADDRESS (server, connections) (default: all).",
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
            "Write the stacks of all reports for flame graph programs (cpu) (default: none).",
        ),
    ] = None,
) -> None:
    """Count NFS/RDMA events in the kernel, per interval.

    Example: nfsrdma trace latency 5 12 --mount /mnt/data --procedure READ,WRITE

    Needs root and bcc.  Changes nothing permanently: the kernel detaches the probes when this
    process ends.  The first interval starts when all probes are attached.  Ctrl-C before COUNT
    reports exits with status 130.

    nfsiostat prints mountstats in the columns of nfsiostat(8), summed over all connections of a
    mount; its first report covers the time since the mount.
    """
    every = _one("INTERVAL", interval, interval_option)
    reports = _one("COUNT", count, count_option) or 0
    wanted = _filter(mount, pid, procedure, client)
    if name == NFSIOSTAT:
        if cost or cpu or folded:
            raise UsageError("trace nfsiostat has no options --cost, --cpu and --folded")
        from nfsrdma_tools.cli import nfsiostat

        nfsiostat.run(wanted, every or (1.0 if reports else None), reports, as_json)
        return
    from nfsrdma_tools.cli import trace_view
    from nfsrdma_tools.probes.intervals import WatchOptions, watch
    from nfsrdma_tools.probes.probe_sets import probe_set

    probes = probe_set(name, _names())
    ended = probes.stack_writer(folded) if folded else None
    shown = trace_view.JsonIntervals() if as_json else trace_view.Tables(name)
    asked = WatchOptions(wanted, every or 1.0, reports, cost, cpu)
    try:
        for each in watch(probes, asked, shown.missing, ended):
            shown.show(each)
    except KeyboardInterrupt:
        # without COUNT, Ctrl-C is how a trace ends
        if reports:
            raise


def _filter(
    mount: Path | None, pid: int | None, procedure: list[str] | None, client: str
) -> Filter:
    from nfsrdma_tools.probes.row_filter import Filter

    names = ",".join(procedure or ()).split(",")
    return Filter(mount, pid or 0, tuple(each for each in names if each), client)


def _one(name: str, positional: _N | None, option: _N | None) -> _N | None:
    if positional is not None and option is not None:
        raise UsageError(f"{name} is given twice", f"omit --{name.lower()}")
    return option if positional is None else positional
