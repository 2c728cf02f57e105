# SPDX-License-Identifier: Apache-2.0
"""The NFS mounts of a mount namespace, from a table of any length in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import open_file
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = ["MOST_MOUNTS", "MountTable", "read", "server_address"]

MOST_MOUNTS = 10_000
_MOST_PARSED = 2 * MOST_MOUNTS
"""Lines about NFS that are parsed, and as many of autofs and FUSE; the others are counted."""
_LONGEST_LINE = 64 << 10
_BLOCK = 1 << 20
# what may wait for a server or another program
_CLOSED = re.compile(b" - (?:nfs4? |autofs |fuse)")


class MountTable(NamedTuple):
    """NFS mounts in the kernel's order, and what else the table has."""

    mounts: list[Entry]
    closed: set[str]
    """Mount points of NFS, autofs and FUSE: accessing one may wait."""
    invalid: int
    """Lines about NFS that cannot be read, and NFS mounts above the limits."""
    is_empty: bool
    """Whether no line is that of a mount; the kernel lists at least the root of the namespace."""

    @property
    def devices(self) -> dict[str, list[Entry]]:
        """The mounts of each superblock, by "MAJOR:MINOR"."""
        by_device: dict[str, list[Entry]] = {}
        for entry in self.mounts:
            by_device.setdefault(entry.device, []).append(entry)
        return by_device


def read(path: Path | str) -> MountTable:
    """The NFS mounts that a mountinfo lists.  OSError if it cannot be read."""
    table = MountTable([], set(), 0, is_empty=True)
    invalid, is_empty = 0, True
    # of lines about NFS, and of others that may wait
    parsed = {True: 0, False: 0}
    with os.fdopen(open_file(path), "rb") as file:
        for block in _blocks(file):
            # one line that can be read is enough
            for line in block.split(b"\n") if is_empty else _closed_lines(block):
                may_wait = _CLOSED.search(line)
                if len(line) >= _LONGEST_LINE or not (may_wait or is_empty):
                    continue
                about_nfs = may_wait is not None and may_wait[0].startswith(b" - nfs")
                if parsed[about_nfs] >= _MOST_PARSED and not is_empty:
                    invalid += about_nfs
                    continue
                parsed[about_nfs] += may_wait is not None
                try:
                    entry = mountinfo.parse_line(line.decode("utf-8", "surrogateescape"))
                except UserError:
                    invalid += may_wait is not None
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


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The text in blocks of whole lines; one that is too long for a block is left out."""
    rest, is_whole = b"", True
    while part := file.read(_BLOCK):
        end = part.rfind(b"\n") + 1
        if end:
            yield rest + part[0 if is_whole else part.index(b"\n") + 1 : end]
            rest, is_whole = part[end:], True
        elif is_whole:
            rest += part
        if len(rest) >= _LONGEST_LINE:
            rest, is_whole = b"", False
    if rest:
        yield rest + b"\n"


def _closed_lines(block: bytes) -> Iterator[bytes]:
    """The lines about mounts that may wait, without a look at each of the others."""
    end = 0
    for match in _CLOSED.finditer(block):
        if match.start() >= end:
            end = block.index(b"\n", match.start())
            yield block[block.rfind(b"\n", 0, match.start()) + 1 : end]


def server_address(entry: Entry) -> str:
    """The address of the server, without the zone of IPv6; "" if the kernel does not list it."""
    return entry.options.get("addr", "").partition("%")[0]
