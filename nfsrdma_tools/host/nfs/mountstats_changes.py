# SPDX-License-Identifier: Apache-2.0
"""What NFS mounts counted between two readings of /proc/self/mountstats.

Only lines that changed are parsed, so that an interval costs what was done in it, and not what
there is: of 64 mounts most do nothing most of the time.  mountstats.py says what the text means.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.mountstats import (
    COLUMNS,
    PROC,
    STATES,
    ByteCounts,
    Operation,
    Xprt,
    byte_counts,
    minus,
    operations,
    place,
)

__all__ = ["NO_BYTES", "Added", "Changes"]

# the kernel prints mounts into a page, and again those that did not fit, so it is not to begin one
# that may not (seq_read_iter in fs/seq_file.c)
_HALF_A_PAGE = os.sysconf("SC_PAGE_SIZE") // 2
NO_BYTES = ByteCounts()
"""Of a mount on which no bytes were moved, this very object."""
_NO_OPERATIONS: Mapping[str, Operation] = MappingProxyType({})
_COUNTS, _XPRT, _BELOW = "\tbytes:\t", "\txprt:\t", "\tper-op statistics\n"
# of a connection, but no count of what happened on it
_NOT_COUNTED = {*STATES, "bind_count", "connect_time"}


class Added(NamedTuple):
    """What was added: bytes, RPCs by operation, and what each connection counted.

    What is 0 is left out, and so are states of connections.  Mounts that share a connection have
    the very same ``xprts``.
    """

    bytes: ByteCounts
    operations: Mapping[str, Operation]
    xprts: tuple[Xprt, ...]


class _Block(NamedTuple):
    """A mount's lines that matter: of bytes and connections, and of operations."""

    where: str
    counts: str
    operations: str
    places: tuple[int, int]
    """Where both begin."""


class Changes:
    """``read`` again and again; of a mount that is new, or was made anew, nothing was added yet."""

    def __init__(self, path: Path = PROC) -> None:
        self._path = path
        self._blocks: dict[str, _Block] = {}

    def read(self) -> dict[str, Added]:
        """By mount point, what was added since the last time; UserError for an unknown form."""
        text = os.fsdecode(files.raw(self._path, _HALF_A_PAGE))
        before, self._blocks = self._blocks, _blocks(text, self._blocks)
        try:
            return {
                block.where: _added(block, before.get(head, block))
                for head, block in self._blocks.items()
            }
        except (ValueError, TypeError) as error:
            raise UserError(f"mountstats cannot be read: {error}", "report this kernel") from error


def _blocks(text: str, before: Mapping[str, _Block]) -> dict[str, _Block]:
    """By their first lines, those of NFS."""
    found: dict[str, _Block] = {}
    # newlines in names are escaped, so this is where lines begin
    for part in text.removeprefix("device ").split("\ndevice "):
        end = part.find("\n")
        head = part[:end]
        if end > 0 and (where := _place(head)):
            was = before.get(head)
            counts, below = was.places if was else (end, end)
            # mostly they are where they were
            if not part.startswith(_COUNTS, counts):
                counts = part.find(_COUNTS, end)
            if not part.startswith(_BELOW, below):
                below = part.find(_BELOW, end)
            found[head] = _Block(where, part[counts:below], part[below:], (counts, below))
    return found


@lru_cache(maxsize=4096)
def _place(head: str) -> str:
    """The mount point of an NFS mount; "" for another."""
    found = place(f"device {head}")
    return found[1] if found else ""


def _added(now: _Block, before: _Block) -> Added:
    added = _counted(now.counts, before.counts)
    if added and now.operations != before.operations:
        done = _operations(now.operations.split("\n"), before.operations.split("\n"))
        added = None if done is None else added._replace(operations=done)
    # mounted anew: it begins with the next interval
    return added or _added(now, now)


# mounts that did nothing say the same, if they share connections
@lru_cache(maxsize=1024)
def _counted(now: str, before: str) -> Added | None:
    """Without operations; None when they are those of another mount."""
    (done, *lines), (did, *old) = now.split("\n"), before.split("\n")
    xprts, had = (tuple(x for x in each if x.startswith(_XPRT)) for each in (lines, old))
    if len(xprts) != len(had):
        return None
    if done == did:
        return Added(NO_BYTES, _NO_OPERATIONS, _xprts(xprts, had))
    counted = minus(_bytes(done), _bytes(did))
    if min(vars(counted).values()) < 0:
        return None
    return Added(counted, _NO_OPERATIONS, _xprts(xprts, had))


def _bytes(line: str) -> ByteCounts:
    return byte_counts(line.removeprefix(_COUNTS))


def _operations(now: list[str], before: list[str]) -> dict[str, Operation] | None:
    """Those that were done, or sent again; None when they are those of another mount."""
    if len(now) != len(before):
        return None
    changed = [n for n, line in enumerate(now) if line != before[n]]
    new, old = (operations([lines[n] for n in changed]) for lines in (now, before))
    added = {name: minus(each, old.get(name, each)) for name, each in new.items()}
    if any(each.operations < 0 for each in added.values()):
        return None
    return {name: each for name, each in added.items() if each.operations or each.transmissions}


@lru_cache(maxsize=256)
def _xprts(now: tuple[str, ...], before: tuple[str, ...]) -> tuple[Xprt, ...]:
    return tuple(map(_xprt, now, before))


def _xprt(now: str, before: str) -> Xprt:
    _, proto, *counts = now.split()
    names, old = COLUMNS.get(proto, ()), before.split()[2:]
    # a later kernel may add columns at the end, an earlier one may have fewer
    changed = [(n, a, b) for n, a, b in zip(names, counts, old, strict=False) if a != b]
    grown = {name: int(a) - int(b) for name, a, b in changed if name not in _NOT_COUNTED}
    return Xprt(proto, grown)
