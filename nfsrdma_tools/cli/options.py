# SPDX-License-Identifier: Apache-2.0
"""Options of several commands, each with one spelling, one help text and one completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

__all__ = [
    "Json",
    "ReadAhead",
    "ReadAheadKb",
    "Rsize",
    "Timeout",
    "Verbose",
    "Wsize",
    "complete_mount",
    "complete_transport",
    "complete_vers",
    "log_programs",
]


def log_programs(enabled: bool) -> None:
    """Log each program that nfsrdma runs, and its exit status, to standard error."""
    if enabled:
        import logging

        logging.basicConfig(format="nfsrdma: %(message)s")
        logging.getLogger("nfsrdma_tools").setLevel(logging.DEBUG)


def complete_transport(incomplete: str) -> list[str]:
    """Transports that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mount_request import TRANSPORTS

    return _beginning(TRANSPORTS, incomplete)


def complete_vers(incomplete: str) -> list[str]:
    """NFS versions that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mount_request import VERSIONS

    return _beginning(VERSIONS, incomplete)


def complete_mount(incomplete: str) -> list[str]:
    """Mount points of NFS that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mounts import mounts

    return _beginning((str(mount.directory) for mount in mounts()), incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", "-j", help="Print JSON.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=log_programs,
        help="Print each program that is run, and its exit status, on standard error.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Stop waiting after SECONDS.")
]
Rsize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Size of a READ in bytes: 65536, 64k, 1M.")
]
Wsize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Size of a WRITE in bytes: 65536, 64k, 1M.")
]
ReadAhead = Annotated[
    int | None, typer.Option(metavar="N", help="Read-ahead in blocks of rsize; 0 turns it off.")
]
ReadAheadKb = Annotated[
    int | None,
    typer.Option(metavar="KIB", help="Read-ahead in KiB, as in read_ahead_kb; 0 turns it off."),
]
