# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma health``: which mounts hang, without accessing them."""

from __future__ import annotations

from typing import Annotated

import typer

from nfsrdma_tools.cli import shared_commands
from nfsrdma_tools.cli.options import Json, Procfs, Rootfs, Sysfs, complete_mount, declared
from nfsrdma_tools.cli.shared_options import (
    MAX_RPC_AGE,
    MOUNTS,
    STATE,
    TEXTFILE,
    TIMEOUT,
    WARN_RPC_AGE,
)

__all__ = ["health"]


def health(
    mounts: Annotated[list[str] | None, declared(MOUNTS, complete_mount)] = None,
    critical: Annotated[str, declared(MAX_RPC_AGE)] = str(MAX_RPC_AGE.default),
    warning: Annotated[str | None, declared(WARN_RPC_AGE)] = None,
    # no Path: typer looks at one, and the folder may be on a mount that hangs
    state: Annotated[str | None, declared(STATE)] = None,
    textfile: Annotated[str | None, declared(TEXTFILE)] = None,
    timeout: Annotated[float, declared(TIMEOUT)] = float(TIMEOUT.default or 0),
    procfs: Procfs = None,
    sysfs: Sysfs = None,
    rootfs: Rootfs = None,
    as_json: Json = False,
) -> None:
    """Check for mounts that hang; the help is that of the shared command."""
    options = shared_commands.HealthOptions(
        critical, warning, state, textfile, timeout, procfs, sysfs, rootfs, as_json
    )
    raise typer.Exit(shared_commands.health(mounts or (), options))


health.__doc__ = shared_commands.health.__doc__
