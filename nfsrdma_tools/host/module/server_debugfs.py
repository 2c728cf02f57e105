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
from nfsrdma_tools.host.nfs.personality import DEFAULT, named_values
from nfsrdma_tools.module_source import OURS

__all__ = [
    "Client",
    "PersonalityTotals",
    "Server",
    "clients",
    "personality_totals",
    "server",
]

_DEBUG = Path("/sys/kernel/debug/nfsrdma-server")
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
    reply_memory: int | None = None
    """Bytes of Replies that the client has not acknowledged; None if the module does not count."""
    personality: str = ""
    """The protocol variant in effect; "" if the module has no personalities."""
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


@dataclass(frozen=True)
class Server:
    """Our module as a server.  Values that only root may read are None, ``clients`` is empty."""

    name: str
    """The transport name by which nfsd listens on it."""
    connections: int | None = None
    connections_max: int | None = None
    """Parameter server_connections."""
    memory: int | None = None
    """Bytes of RDMA Reads from clients in progress."""
    reply_memory: int | None = None
    """Bytes of Replies that clients have not acknowledged; None if the module does not count."""
    memory_max: int | None = None
    """The limit of each (parameter server_memory)."""
    clients: tuple[Client, ...] = ()
    personalities: tuple[str, ...] = ()
    """The personalities that it accepts; () if the module has none."""
    exposed_memory: int | None = None
    """Bytes of Replies that clients may read; None if the module does not count."""
    dones_outstanding: int | None = None
    """Replies that clients may read until they send an RDMA_DONE; None likewise."""
    lanes: int | None = None
    """Lanes of all clients; None likewise."""
    granted_memory: int | None = None
    """Bytes of the page cache that clients may read; None likewise."""
    granted_max: int | None = None
    """Its limit (parameter optimistic_memory)."""


def server(debug: Path = _DEBUG) -> Server | None:
    """The server; None if our module is not loaded or has no server."""
    name = transports.serves_as(OURS)
    if not name:
        return None
    totals, accepts = named_values(debug / "totals"), _accepted()
    if not totals:
        return Server(name, personalities=accepts)
    used, most = _pair(totals["connections"])
    pages, pages_max = _pair(totals["read_pages"])
    replies = _bytes(totals.get("reply_pages", "").partition(" ")[0])
    memory = (pages * _PAGE, replies, pages_max * _PAGE)
    return Server(
        name, used, most, *memory, tuple(clients(debug)), accepts, *personality_totals(debug)
    )


class PersonalityTotals(NamedTuple):
    """Resources of clients beyond their Calls; None for one that the module does not count."""

    exposed: int | None
    """Bytes of Replies that they may read."""
    dones_outstanding: int | None
    lanes: int | None
    granted: int | None
    """Bytes of the page cache that they may read."""
    granted_max: int | None


def personality_totals(debug: Path = _DEBUG) -> PersonalityTotals:
    """Read the totals of the personalities."""
    totals = named_values(debug / "totals")
    dones, lanes = totals.get("dones_outstanding"), totals.get("lanes")
    exposed = _bytes(totals.get("exposed_pages", ""))
    granted, _, most = totals.get("granted_pages", "").partition(" of ")
    return PersonalityTotals(
        exposed,
        int(dones) if dones else None,
        int(lanes) if lanes else None,
        _bytes(granted),
        _bytes(most),
    )


def clients(debug: Path = _DEBUG) -> list[Client]:
    """The open connections, oldest first."""
    folders = (path for path in debug.glob("[0-9]*") if path.name.isdecimal())
    found = map(_client, sorted(folders, key=lambda path: int(path.name)))
    return [client for client in found if client]


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
        reply_memory=_bytes(state.get("reply_pages", "")),
        personality=state.get("personality", ""),
        exposed_memory=_bytes(state.get("exposed_pages", "")) or 0,
        dones_outstanding=int(state.get("dones_outstanding", 0)),
        lanes=int(state.get("lanes", 0)),
        granted_memory=_bytes(state.get("granted_pages", "")) or 0,
        grants={name: n for name in counters if _GRANTS.match(name) and (n := int(counters[name]))},
    )


def _accepted() -> tuple[str, ...]:
    """The default, which needs no permission, and what server_personalities adds."""
    text = kernel_modules.parameters(OURS).get("server_personalities")
    return () if text is None else tuple(dict.fromkeys((DEFAULT, *filter(None, text.split(",")))))


def _bytes(pages: str) -> int | None:
    return int(pages) * _PAGE if pages else None


def _pair(text: str) -> tuple[int, int]:
    used, _, most = text.partition(" of ")
    return int(used), int(most)
