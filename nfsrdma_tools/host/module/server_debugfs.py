# SPDX-License-Identifier: Apache-2.0
"""The server of our module, from its debugfs (kmod/server/connection.c); root only.

Each line has a name and a value.  A connection may end while its files are read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.personality import named_values
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import DEFAULT

__all__ = [
    "Client",
    "PersonalityTotals",
    "ServerTransport",
    "clients",
    "personality_totals",
    "server",
]

_DEBUG = "sys/kernel/debug/nfsrdma-server"
_PAGE = os.sysconf("SC_PAGESIZE")
_GRANTS = re.compile(r"grants$|revoked_|refused_")


@dataclass(frozen=True)
class Client:
    """An accepted connection."""

    peer: str
    credits: int
    """Granted credits."""
    in_use: int
    """Received Calls without a reply."""
    calls: int
    memory: int
    """Bytes of RDMA Reads in progress."""
    connected: bool
    reason: str
    """Why the connection ended; "none" while it is open."""
    reply_memory: int
    """Bytes of Replies that the client has not acknowledged."""
    personality: str
    """The protocol variant in effect."""
    exposed_memory: int = 0
    """Bytes of Replies that the client may read (read-read)."""
    dones_outstanding: int = 0
    """Replies that the client may read until it sends an RDMA_DONE."""
    lanes: int = 0
    """Lanes of the client that belong to this connection (pre-posted)."""
    granted_memory: int = 0
    """Bytes of the page cache that the client may read (optimistic)."""
    grants: dict[str, int] = field(default_factory=dict)
    """Extents of files that the client might read: ``grants``, ``revoked_REASON``, and
    ``refused_REASON`` for READs without a grant; without zeros (optimistic)."""
    floor: int | None = None
    """Bytes, of RDMA Reads and of Replies each, that no other client address can take; 0 if the
    address shares one floor with others in turn."""


@dataclass(frozen=True)
class ServerTransport:
    """Our module as a server.

    For users other than root, ``clients`` is empty, and the counts and their limits are None.
    """

    name: str
    """The transport name by which nfsd listens on it."""
    personalities: tuple[str, ...]
    """The personalities that it accepts."""
    connections: int | None = None
    connections_max: int | None = None
    """Parameter server_connections."""
    memory: int | None = None
    """Bytes of RDMA Reads from clients in progress."""
    reply_memory: int | None = None
    """Bytes of Replies that clients have not acknowledged."""
    memory_max: int | None = None
    """The limit of each: what clients may borrow (parameter server_memory), and their floors."""
    clients: tuple[Client, ...] = ()
    exposed_memory: int | None = None
    """Bytes of Replies that clients may read."""
    dones_outstanding: int | None = None
    """Replies that clients may read until they send an RDMA_DONE."""
    lanes: int | None = None
    """Lanes of all clients."""
    granted_memory: int | None = None
    """Bytes of the page cache that clients may read."""
    granted_max: int | None = None
    """Its limit (parameter optimistic_memory)."""
    floor_memory: int | None = None
    """Bytes that single client addresses have for themselves."""
    floor_max: int | None = None
    """Their limit (parameter server_floors)."""
    floor_sharers: int | None = None
    """Client addresses without a floor of their own: they share one in turn."""


def server(machine: Machine = LIVE) -> ServerTransport | None:
    """The server; None if our module is not loaded or has no server."""
    name = transports.serves_as(OURS, machine)
    if not name:
        return None
    totals = named_values(machine.path(f"{_DEBUG}/totals"))
    if not totals:
        return ServerTransport(name, _accepted(machine))
    used, most = _pair(totals["connections"])
    read_memory, memory_max = _memory(totals["read_pages"])
    reply_memory, _ = _memory(totals["reply_pages"])
    return ServerTransport(
        name,
        _accepted(machine),
        used,
        most,
        read_memory,
        reply_memory,
        memory_max,
        tuple(clients(machine)),
        *_personality_totals(totals),
        *_memory(totals["floor_pages"]),
        int(totals["clients_sharing"]),
    )


class PersonalityTotals(NamedTuple):
    """Resources of clients beyond their Calls; None if our module is not loaded, or unless root."""

    exposed: int | None = None
    """Bytes of Replies that they may read."""
    dones_outstanding: int | None = None
    lanes: int | None = None
    granted: int | None = None
    """Bytes of the page cache that they may read."""
    granted_max: int | None = None


def personality_totals(machine: Machine = LIVE) -> PersonalityTotals:
    """Read the totals of the personalities."""
    return _personality_totals(named_values(machine.path(f"{_DEBUG}/totals")))


def _personality_totals(totals: dict[str, str]) -> PersonalityTotals:
    if not totals:
        return PersonalityTotals()
    return PersonalityTotals(
        int(totals["exposed_pages"]) * _PAGE,
        int(totals["dones_outstanding"]),
        int(totals["lanes"]),
        *_memory(totals["granted_pages"]),
    )


def clients(machine: Machine = LIVE) -> list[Client]:
    """The open connections, oldest first."""
    folders = (path for path in machine.path(_DEBUG).glob("[0-9]*") if path.name.isdecimal())
    connections = map(_client, sorted(folders, key=lambda path: int(path.name)))
    return [client for client in connections if client]


def _client(folder: Path) -> Client | None:
    state, counters = named_values(folder / "connection"), named_values(folder / "counters")
    if not state or not counters:
        return None
    return Client(
        peer=state["peer"],
        credits=int(state["credits_granted"]),
        in_use=int(state["credits_used"]),
        calls=int(counters["calls"]),
        memory=int(state["read_pages"]) * _PAGE,
        connected=state["connected"] == "yes",
        reason=state["disconnect"],
        reply_memory=int(state["reply_pages"]) * _PAGE,
        personality=state["personality"],
        lanes=int(state["lanes"]),
        # only connections of some personalities have these
        exposed_memory=int(state.get("exposed_pages", 0)) * _PAGE,
        dones_outstanding=int(state.get("dones_outstanding", 0)),
        granted_memory=int(state.get("granted_pages", 0)) * _PAGE,
        floor=int(state["floor_pages"]) * _PAGE,
        grants={name: n for name in counters if _GRANTS.match(name) and (n := int(counters[name]))},
    )


def _accepted(machine: Machine) -> tuple[str, ...]:
    """The default, which needs no permission, and what server_personalities adds."""
    text = kernel_modules.parameters(OURS, machine).get("server_personalities", "")
    return tuple(dict.fromkeys((DEFAULT, *filter(None, text.split(",")))))


def _memory(text: str) -> tuple[int, int]:
    """A number of pages and its limit, in bytes."""
    pages, most = _pair(text)
    return pages * _PAGE, most * _PAGE


def _pair(text: str) -> tuple[int, int]:
    used, _, most = text.partition(" of ")
    return int(used), int(most)
