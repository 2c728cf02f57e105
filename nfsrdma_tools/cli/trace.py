# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace``: accounts of chunks and more, counted in the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["trace"]


def trace(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ACCOUNT",
            help="chunks, registrations, latency, connections, server, readahead, cpu.",
        ),
    ],
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of this mount only; of all, if not given.")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two tables, each of what was added.")
    ] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="So many tables; 0: until ctrl-C.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON each.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="And what the probes cost.")] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Of registrations: and the CPU time that they take.")
    ] = False,
    flame: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Of cpu: a flame graph of all intervals, at the end."
        ),
    ] = None,
) -> None:
    """Count what NFS/RDMA does, in the kernel, and show it once an interval.

    Nothing of the machine is changed: what is attached goes with this process. Needs root and bcc.
    With --cost the kernel times all BPF programs meanwhile (kernel.bpf_stats_enabled).
    """
    from nfsrdma_tools.cli import trace_view
    from nfsrdma_tools.probes.flame_file import drawing
    from nfsrdma_tools.probes.intervals import WatchOptions, watch
    from nfsrdma_tools.probes.probe_sets import account

    shown = trace_view.Lines() if as_json else trace_view.Tables(name)
    wanted = account(name)
    ended = drawing(wanted, flame) if flame else None
    asked = WatchOptions(mount, interval, count, cost, cpu)
    try:
        for each in watch(wanted, asked, shown.missing, ended):
            shown.show(each)
    except KeyboardInterrupt:
        return
