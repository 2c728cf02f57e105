# SPDX-License-Identifier: Apache-2.0
"""Personalities, the protocol variants of our module: names, requests, and those in effect.

A client transport reads its personality when sunrpc creates it: from the module's table if that has
its server, else from the parameter personality (kmod/personality.c).  In debugfs, a directory per
client transport (kmod/client/transport.c) has its number in /sys/kernel/sunrpc, and the personality
that both sides agreed on; only root may read it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nfsrdma_tools import files
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.personalities import DEFAULT, OPTIMISTIC

if TYPE_CHECKING:
    from nfsrdma_tools.undo import Journal, Write

__all__ = [
    "COUNTERS",
    "GAUGES",
    "TABLE",
    "ClientTransport",
    "client_transports",
    "default_vers",
    "in_effect",
    "named_values",
    "requested",
    "requested_for",
    "require_module",
    "table_entries",
]

_TABLE = "sys/module/nfsrdma/parameters/personality_for"
TABLE = LIVE.path(_TABLE)
"""In the kernel: writing ``ADDRESS,NAME`` sets an entry, ``ADDRESS`` removes it."""
_DEBUG = "sys/kernel/debug/nfsrdma"
GAUGES = ("lanes", "lanes_busy", "cache_bytes", "references", "optimistic_paused")
"""Lanes that are connected, lanes with a Call; bytes that stay registered without a Call; extents
of files with a reference, or read by RPC before; 1 if optimistic reads pause, else 0."""
COUNTERS = (
    *("fetches", "dones", "padded_calls", "padded_replies"),
    *("lane_calls", "lane_fallbacks", "lanes_connected", "lanes_ended"),
    *("cache_hits", "cache_misses", "cache_copies"),
    *("optimistic_reads", "optimistic_bytes", "optimistic_refused", "optimistic_misses"),
    *("optimistic_pauses", "optimistic_connects"),
)
"""Replies that the client read, RDMA_DONEs that it sent; messages with padding; READs on lanes,
and READs that found no lane; registrations that the cache had or lacked, Replies in slots; READs
from the server's page cache, their bytes, READs that the server's device refused, READs without a
reference, pauses after too many refused ones, second connections."""
_VERS = "4.2"
_YES = {"yes": 1, "no": 0}
_PAGE = os.sysconf("SC_PAGESIZE")
_PEER = re.compile(r"(?P<server>\S+) port (?P<port>\d+)")


def default_vers(names: Container[str] = ()) -> str:
    """The NFS version of mounts and sweeps with these personalities, unless the user gives one."""
    return "3" if OPTIMISTIC in names else _VERS


@dataclass(frozen=True)
class ClientTransport:
    """A client transport of our module, with the requested personality and the one in effect."""

    number: int
    server: str
    """The server's address."""
    port: int
    requested: str
    personality: str
    """The personality that both sides agreed on; "" while the transport is not connected."""
    gauges: dict[str, int] = field(default_factory=dict)
    """Of GAUGES those that the personality in effect has; none for read-write."""
    counters: dict[str, int] = field(default_factory=dict)
    """The same of COUNTERS, without zeros.  Those of the cache restart at 0 with a connection."""


@contextlib.contextmanager
def requested(
    name: str | None, addresses: Sequence[str], journal: Journal, machine: Machine = LIVE
) -> Iterator[frozenset[int]]:
    """Within the block, new client transports to these addresses request personality ``name``.

    Yields the numbers of the transports that exist before.  Does nothing if ``name`` is None.
    Raises UserError if our module is not loaded, or if debugfs, which has the personality in
    effect, is missing.
    """
    if name is None:
        yield frozenset()
        return
    require_module(machine)
    if not machine.path(_DEBUG).is_dir():
        message = f"/{_DEBUG}, which has the personality in effect, does not exist"
        raise UserError(message, "mount debugfs: mount -t debugfs none /sys/kernel/debug")
    with requested_for(addresses, name, journal, machine):
        yield frozenset(transport.number for transport in client_transports(machine))


def require_module(machine: Machine = LIVE) -> None:
    """UserError unless the module is loaded."""
    if not machine.path(_TABLE).exists():
        message = "a personality needs module nfsrdma: found no module"
        raise UserError(message, "load this version: nfsrdma module load")


@contextlib.contextmanager
def requested_for(
    addresses: Sequence[str], name: str, journal: Journal, machine: Machine = LIVE
) -> Iterator[None]:
    """Have an entry for each address in the table within the block.

    ``journal`` has the undo until the end of the block, which restores the earlier entries.
    Another process that requests a personality waits.  Raises UserError if the module refuses the
    name or has no room, MismatchError if the table does not have the entry afterwards.
    """
    # the command line imports this file for its help, which these two would slow down
    from nfsrdma_tools.lock import host_lock
    from nfsrdma_tools.undo import Write

    table = machine.path(_TABLE)
    with host_lock("personality"), contextlib.ExitStack() as undos:
        for address in addresses:
            earlier = table_entries(machine).get(_without_zone(address))
            undo = Write(str(table), f"{address},{earlier}" if earlier else address)
            journal.add(undo)
            undos.callback(_restore_entry, undo, journal)
            _write_entry(f"{address},{name}", table)
            entry = table_entries(machine).get(_without_zone(address), "none")
            if entry != name:
                raise MismatchError(f"personality for {address}", name, entry)
        yield


def table_entries(machine: Machine = LIVE) -> dict[str, str]:
    """The table's personalities by address; the kernel prints addresses without their zone."""
    table = machine.path(_TABLE)
    try:
        words = files.text(table).split()
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror}") from error
    pairs = (word.rpartition(",") for word in words)
    return {_without_zone(address): name for address, _, name in pairs}


def _restore_entry(undo: Write, journal: Journal) -> None:
    # if it fails, it stays in the journal, which tries again
    _write_entry(undo.text, Path(undo.path))
    journal.drop(undo)


def _write_entry(entry: str, table: Path) -> None:
    try:
        table.write_text(entry)
    except OSError as error:
        message = f"cannot write {entry} to {table}: {error.strerror}"
        raise UserError(message, "see: dmesg | tail") from error


def _without_zone(address: str) -> str:
    return str(ipaddress.ip_address(address.partition("%")[0]))


def client_transports(machine: Machine = LIVE) -> list[ClientTransport]:
    """The client transports of our module by number; none for users other than root."""
    try:
        folders = [path for path in machine.path(_DEBUG).iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    transports = map(_client_transport, sorted(folders, key=lambda path: int(path.name)))
    return [transport for transport in transports if transport]


def _client_transport(folder: Path) -> ClientTransport | None:
    """A transport; None if it ended while its files were read."""
    state = named_values(folder / "connection")
    peer = _PEER.fullmatch(state.get("peer", ""))
    if not peer:
        return None
    personality = state.get("personality", "")
    varies = personality not in ("", DEFAULT)
    figures = state | named_values(folder / "counters") if varies else {}
    return ClientTransport(
        number=int(folder.name),
        server=peer["server"],
        port=int(peer["port"]),
        requested=state["personality_wanted"],
        personality=personality,
        gauges=_gauges(figures),
        counters={name: count for name in COUNTERS if (count := int(figures.get(name, 0)))},
    )


def _gauges(figures: dict[str, str]) -> dict[str, int]:
    gauges = {name: _number(figures[name]) for name in GAUGES if name in figures}
    if "cache_idle_pages" in figures:
        gauges["cache_bytes"] = int(figures["cache_idle_pages"]) * _PAGE
    return gauges


def _number(text: str) -> int:
    # the limit of lanes follows the number: "3 of 8"
    word = text.split(maxsplit=1)[0]
    return _YES[word] if word in _YES else int(word)


def named_values(file: Path) -> dict[str, str]:
    """The lines ``NAME VALUE`` of a debugfs file by name; {} if it cannot be read."""
    try:
        text = files.text(file)
    except OSError:
        return {}
    return dict(line.partition(" ")[::2] for line in text.splitlines())


def in_effect(transports: Iterable[ClientTransport]) -> tuple[str, ...]:
    """The personalities in effect, each once; () if no transport is connected."""
    return tuple(sorted({t.personality for t in transports if t.personality}))
