# SPDX-License-Identifier: Apache-2.0
"""The NFS mounts of a mount namespace, from a table of any length in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = ["MOST_MOUNTS", "MountTable", "read", "server_address"]

MOST_MOUNTS = 10_000
_LONGEST_LINE = 64 << 10
_NFS = (b" - nfs ", b" - nfs4 ")
# what may wait for a server or another program
_CLOSED = (*_NFS, b" - autofs ", b" - fuse")


class MountTable(NamedTuple):
    """NFS mounts in the kernel's order, and what else the table has."""

    mounts: list[Entry]
    closed: set[str]
    """Mount points of NFS, autofs and FUSE: accessing one may wait."""
    invalid: int
    """Lines about NFS that cannot be read, and NFS mounts above the limit."""
    is_empty: bool
    """Whether no line is that of a mount; the kernel lists at least the root of the namespace."""

    @property
    def devices(self) -> dict[str, list[Entry]]:
        """The mounts of each superblock, by "MAJOR:MINOR"."""
        found: dict[str, list[Entry]] = {}
        for entry in self.mounts:
            found.setdefault(entry.device, []).append(entry)
        return found


def read(path: Path | str) -> MountTable:
    """The NFS mounts that a mountinfo lists.  OSError if it cannot be read."""
    table = MountTable([], set(), 0, is_empty=True)
    invalid, is_empty = 0, True
    with open(path, "rb") as file:  # noqa: PTH123 -- a name per mount namespace
        for line in _lines(file):
            may_wait = any(kind in line for kind in _CLOSED)
            # one other line that can be read is enough
            if not may_wait and not is_empty:
                continue
            try:
                entry = mountinfo.parse_line(line.decode("utf-8", "surrogateescape"))
            except UserError:
                invalid += may_wait
                continue
            is_empty = False
            if len(table.closed) < MOST_MOUNTS and _may_wait(entry):
                table.closed.add(str(entry.directory))
            if entry.is_nfs and len(table.mounts) < MOST_MOUNTS:
                table.mounts.append(entry)
            else:
                invalid += entry.is_nfs
    return table._replace(invalid=invalid, is_empty=is_empty)


def _may_wait(entry: Entry) -> bool:
    return entry.is_nfs or entry.fstype == "autofs" or entry.fstype.startswith("fuse")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines without newline; one that is too long is left out, and never in memory."""
    whole = True
    for part in iter(lambda: file.readline(_LONGEST_LINE), b""):
        ended = part.endswith(b"\n")
        if whole and (ended or len(part) < _LONGEST_LINE):
            yield part.rstrip(b"\n")
        whole = ended


def server_address(entry: Entry) -> str:
    """The address of the server, without the zone of IPv6; "" if the kernel does not list it."""
    return entry.options.get("addr", "").partition("%")[0]
