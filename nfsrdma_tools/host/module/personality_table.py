# SPDX-License-Identifier: Apache-2.0
"""The table of servers with a personality of their own: the parameter personality_for.

A client transport reads its personality when sunrpc creates it: from this table if that has its
server, else from the parameter personality (kmod/variants.c).
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.undo import Journal, Write

__all__ = ["TABLE", "entries", "requested_for", "require"]

TABLE = Path("/sys/module", OURS, "parameters", "personality_for")
"""In the kernel: writing ``ADDRESS,NAME`` sets an entry, ``ADDRESS`` removes it."""


def require(table: Path = TABLE) -> None:
    """UserError unless the module is loaded and has personalities."""
    if table.exists():
        return
    found = f"{OURS} without personalities" if table.parents[1].exists() else "no module"
    hint = "load this version: nfsrdma module load"
    raise UserError(f"a personality needs module {OURS}: found {found}", hint)


def entries(table: Path = TABLE) -> dict[str, str]:
    """The table's personalities by address; the kernel prints addresses without their zone."""
    try:
        words = table.read_text().split()
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror}") from error
    pairs = (word.rpartition(",") for word in words)
    return {_plain(address): name for address, _, name in pairs}


@contextlib.contextmanager
def requested_for(
    addresses: Sequence[str], name: str, journal: Journal, table: Path = TABLE
) -> Iterator[None]:
    """Within the block, new client transports to these addresses request personality ``name``.

    ``journal`` has the undo until the end of the block, which restores the earlier entries.
    Another process that requests a personality waits.  Raises UserError if the module refuses the
    name or has no room, MismatchError if the table does not have the entry afterwards.
    """
    with host_lock("personality"), contextlib.ExitStack() as undos:
        for address in addresses:
            undo = Write(str(table), _entry(address, entries(table).get(_plain(address))))
            journal.add(undo)
            undos.callback(_restore, undo, journal)
            _write(_entry(address, name), table)
            found = entries(table).get(_plain(address), "none")
            if found != name:
                raise MismatchError(f"personality for {address}", name, found)
        yield


def _restore(undo: Write, journal: Journal) -> None:
    # if it fails, it stays in the journal, which tries again
    _write(undo.text, Path(undo.path))
    journal.drop(undo)


def _write(entry: str, table: Path) -> None:
    try:
        table.write_text(entry)
    except OSError as error:
        what = f"cannot write {entry} to {table}: {error.strerror}"
        raise UserError(what, "see: dmesg | tail") from error


def _entry(address: str, name: str | None) -> str:
    return f"{address},{name}" if name else address


def _plain(address: str) -> str:
    return str(ipaddress.ip_address(address.partition("%")[0]))
