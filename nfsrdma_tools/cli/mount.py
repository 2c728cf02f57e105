# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma mount``, ``umount`` and ``mounts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.nfs.mounts import MountState

__all__ = ["mount", "mounts", "umount"]

_JSON = typer.Option("--json", help="Print JSON.")
_TIMEOUT = typer.Option("--timeout", min=1, help="Give up after so many seconds.")


def mount(
    target: Annotated[str, typer.Argument(metavar="SERVER:/PATH", help="What to mount.")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where, an empty folder.")],
    transport: Annotated[
        str, typer.Option(help="rdma (the kernel's), nfsrdma (ours) or tcp.")
    ] = "rdma",
    vers: Annotated[str, typer.Option(help="3, 4.0, 4.1 or 4.2.")] = "4.2",
    rsize: Annotated[str | None, typer.Option(help="Bytes per READ: 65536, 64k, 1M.")] = None,
    wsize: Annotated[str | None, typer.Option(help="Bytes per WRITE.")] = None,
    nconnect: Annotated[int | None, typer.Option(help="Connections, 1 to 16.")] = None,
    read_ahead: Annotated[
        int | None, typer.Option(help="Reads ahead in blocks of rsize; 0 is none.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The server's port; 20049 for rdma.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="One more mount option; may be repeated.")
    ] = None,
    timeout: Annotated[float, _TIMEOUT] = 60,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Mount, and prove by the kernel's words that it is as asked."""
    import json
    from pathlib import Path

    from nfsrdma_tools.host.nfs.mount_request import MountRequest
    from nfsrdma_tools.host.nfs.mounting import Target
    from nfsrdma_tools.host.nfs.mounting import mount as make
    from nfsrdma_tools.host.nfs.mounts import mounts, state
    from nfsrdma_tools.sizes import parse_size
    from nfsrdma_tools.undo import journal

    request = MountRequest(
        target=Target.parse(target),
        directory=Path(directory),
        transport=transport,
        vers=vers,
        rsize=parse_size(rsize) if rsize else None,
        wsize=parse_size(wsize) if wsize else None,
        nconnect=nconnect,
        read_ahead=read_ahead,
        port=port,
        options=tuple(option or ()),
    )
    with journal() as book:
        made = state(make(request, book, timeout), mounts())
        book.keep()
    print(json.dumps(made.facts(), indent=2)) if as_json else _table([made])


def umount(
    # not a Path: typer looks at those, and hangs when the server is gone
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The mount point.")],
    timeout: Annotated[float, _TIMEOUT] = 60,
) -> None:
    """Unmount and prove it; a busy mount names who uses it."""
    from pathlib import Path

    from nfsrdma_tools.host.nfs.mounting import unmount

    unmount(Path(directory), timeout=timeout)


def mounts(as_json: Annotated[bool, _JSON] = False) -> None:
    """List the NFS mounts with what is in effect."""
    import json

    from nfsrdma_tools.host.nfs.mounts import states

    found = states()
    print(json.dumps([one.facts() for one in found], indent=2)) if as_json else _table(found)


def _table(states: Sequence[MountState]) -> None:
    rows = [_HEAD, *map(_row, states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


_HEAD = (
    "DIRECTORY", "TARGET", "TRANSPORT", "VERS", "RSIZE", "WSIZE", "CONNECTIONS",
    "READ-AHEAD", "SHARES WITH",
)  # fmt: skip


def _row(state: MountState) -> tuple[str, ...]:
    made = state.mount
    ahead = f"{state.read_ahead_kb} KiB = {state.read_ahead_blocks:g} blocks"
    cells = (
        made.directory, made.target, made.transport, made.vers, made.rsize, made.wsize,
        state.connections, ahead, ", ".join(map(str, state.shares_with)) or "-",
    )  # fmt: skip
    # a path may hold anything, a terminal must not see all of it
    return tuple(printable(str(cell)) for cell in cells)
