# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma health``: which mounts hang, without accessing them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nfsrdma_tools.cli.options import (
    Json,
    Procfs,
    Rootfs,
    Sysfs,
    argument,
    complete_mount,
    option,
)
from nfsrdma_tools.cli.output import print_json

__all__ = ["health"]


def health(
    mounts: Annotated[
        list[str] | None,
        argument("[MOUNT]...", "Mount points (default: all NFS mounts).", complete_mount),
    ] = None,
    critical: Annotated[
        str, option("AGE", "Age of an RPC that is CRITICAL, such as 30s or 2m.", "--max-rpc-age")
    ] = "30s",
    warning: Annotated[
        str | None,
        option(
            "AGE",
            "Age of an RPC that is a WARNING (default: half of --max-rpc-age).",
            "--warn-rpc-age",
        ),
    ] = None,
    # no Path: typer looks at one, and the folder may be on a mount that hangs
    state: Annotated[
        str | None,
        option(
            "DIR",
            "Folder of what earlier runs saw (default: $NFSRDMA_STATE, or /run/nfsrdma).",
            "--state",
        ),
    ] = None,
    textfile: Annotated[
        str | None,
        option(
            "FILE",
            "Also write metrics to FILE, for the textfile collector of node_exporter "
            "(default: none).",
        ),
    ] = None,
    timeout: Annotated[
        float,
        option(
            "SECONDS", "Report UNKNOWN if the check takes longer.", "--timeout", least=1, most=600
        ),
    ] = 10.0,
    procfs: Procfs = None,
    sysfs: Sysfs = None,
    rootfs: Rootfs = None,
    as_json: Json = False,
) -> None:
    """Check for mounts that hang, without accessing them.

    Print a summary, and a line for each bad mount, as monitoring plugins do.  The age of an RPC
    counts from the first run that saw it: run this regularly, as root.  The kernel lists RPCs for
    root only; for other users, compare the counters of two runs.

    Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN or wrong usage.
    """
    from nfsrdma_tools.errors import UserError, printable
    from nfsrdma_tools.host.machine import host_of_container
    from nfsrdma_tools.live.health.check import Request, limits, mount_points, run

    try:
        request = Request(
            limits(critical, warning), mount_points(mounts or ()),
            host_of_container(procfs, sysfs, rootfs),
            Path(state) if state else None, Path(textfile) if textfile else None,
        )  # fmt: skip
    except UserError as error:
        print(f"NFS UNKNOWN: {printable(str(error))}", file=sys.stdout)
        raise typer.Exit(3) from error
    outcome = run(request, timeout)
    if as_json:
        print_json(outcome.plain)
    else:
        print(*outcome.lines, sep="\n")
    raise typer.Exit(outcome.status)
