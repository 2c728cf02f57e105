# SPDX-License-Identifier: Apache-2.0
"""The server of our module, from its debugfs (kmod/server/connection.c); root only.

Each line has a name and a value.  A connection may end while its files are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.host import transports
from nfsrdma_tools.host.module.source import OURS

__all__ = ["Client", "Server", "clients", "server"]

_DEBUG = Path("/sys/kernel/debug/nfsrdma-server")
_PAGE = os.sysconf("SC_PAGESIZE")


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


def server(debug: Path = _DEBUG) -> Server | None:
    """The server; None if our module is not loaded or has no server."""
    name = transports.serves_as(OURS)
    if not name:
        return None
    totals = _values(debug / "totals")
    if not totals:
        return Server(name)
    used, most = _pair(totals["connections"])
    pages, pages_max = _pair(totals["read_pages"])
    replies = _bytes(totals.get("reply_pages", "").partition(" ")[0])
    return Server(
        name, used, most, pages * _PAGE, replies, pages_max * _PAGE, tuple(clients(debug))
    )


def clients(debug: Path = _DEBUG) -> list[Client]:
    """The open connections, oldest first."""
    folders = (path for path in debug.glob("[0-9]*") if path.name.isdecimal())
    found = map(_client, sorted(folders, key=lambda path: int(path.name)))
    return [client for client in found if client]


def _client(folder: Path) -> Client | None:
    state, counters = _values(folder / "connection"), _values(folder / "counters")
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
    )


def _bytes(pages: str) -> int | None:
    return int(pages) * _PAGE if pages else None


def _pair(text: str) -> tuple[int, int]:
    used, _, most = text.partition(" of ")
    return int(used), int(most)


def _values(file: Path) -> dict[str, str]:
    try:
        text = file.read_text()
    except OSError:
        return {}
    return dict(line.partition(" ")[::2] for line in text.splitlines())
