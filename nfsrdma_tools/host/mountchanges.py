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
from nfsrdma_tools.host.mountstats import (
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

__all__ = ["Added", "Changes"]

# the kernel prints mounts into a page, and again those that did not fit, so it is not to begin one
# that may not (seq_read_iter in fs/seq_file.c)
_HALF_A_PAGE = os.sysconf("SC_PAGE_SIZE") // 2
_NO_BYTES = ByteCounts()
_NO_OPERATIONS: Mapping[str, Operation] = MappingProxyType({})
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
    """A mount's lines that matter: of itself, of bytes, of connections, of operations."""

    head: str
    bytes: str
    xprts: tuple[str, ...]
    operations: str


class Changes:
    """``read`` again and again; of a mount that is new, or was made anew, nothing was added yet."""

    def __init__(self, path: Path = PROC) -> None:
        self._path = path
        self._blocks: dict[str, _Block] = {}

    def read(self) -> dict[str, Added]:
        """By mount point, what was added since the last time; UserError for an unknown form."""
        text = os.fsdecode(files.raw(self._path, _HALF_A_PAGE))
        before, self._blocks = self._blocks, _blocks(text)
        try:
            return {
                where: _added(block, before.get(where, block))
                for where, block in self._blocks.items()
            }
        except (ValueError, TypeError) as error:
            raise UserError(f"mountstats cannot be read: {error}", "report this kernel") from error


def _blocks(text: str) -> dict[str, _Block]:
    # newlines in names are escaped, so this is where lines begin
    parts = (part.partition("\n") for part in text.removeprefix("device ").split("\ndevice "))
    return {where: _block(head, rest) for head, _, rest in parts if (where := _place(head))}


@lru_cache(maxsize=4096)
def _place(head: str) -> str:
    """The mount point of an NFS mount; "" for another."""
    found = place(f"device {head}")
    return found[1] if found else ""


def _block(head: str, text: str) -> _Block:
    above, _, below = text.partition("\tper-op statistics\n")
    done, *rest = above.partition("\tbytes:\t")[2].split("\n")
    xprts = [line[7:] for line in rest if line.startswith("\txprt:\t")]
    return _Block(head, done, tuple(xprts), below)


def _added(now: _Block, before: _Block) -> Added:
    if now.head != before.head or len(now.xprts) != len(before.xprts):
        return _added(now, now)
    xprts = _xprts(now.xprts, before.xprts)
    if now.bytes == before.bytes and now.operations == before.operations:
        return Added(_NO_BYTES, _NO_OPERATIONS, xprts)
    counted = minus(byte_counts(now.bytes), byte_counts(before.bytes))
    done = _operations(now.operations.split("\n"), before.operations.split("\n"))
    if done is None or min(vars(counted).values()) < 0:
        # mounted anew: it begins with the next interval
        return _added(now, now)
    return Added(counted, done, xprts)


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
    proto, *counts = now.split()
    names, old = COLUMNS.get(proto, ()), before.split()[1:]
    # a later kernel may add columns at the end, an earlier one may have fewer
    changed = [(n, a, b) for n, a, b in zip(names, counts, old, strict=False) if a != b]
    grown = {name: int(a) - int(b) for name, a, b in changed if name not in _NOT_COUNTED}
    return Xprt(proto, grown)
