# SPDX-License-Identifier: Apache-2.0
"""The server half of our module as its debugfs shows it (kmod/debugfs_server.c); root only.

Each file has a name and a value on a line.  A connection may end while it is read.
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
    """A connection that was accepted."""

    peer: str
    credits: int
    """Granted."""
    in_use: int
    """Of them: Calls that came and are not answered."""
    calls: int
    memory: int
    """Bytes of data that is being read from it."""
    connected: bool
    reason: str
    """Why it ended; "none" before."""


@dataclass(frozen=True)
class Server:
    """Our module as a server.  What only root may see is None, and there are no clients."""

    name: str
    """What nfsd listens on it by."""
    connections: int | None = None
    connections_max: int | None = None
    memory: int | None = None
    """Bytes of data that is being read from clients."""
    memory_max: int | None = None
    clients: tuple[Client, ...] = ()


def server(debug: Path = _DEBUG) -> Server | None:
    """The server; None when our module is not loaded, or is none."""
    name = transports.serves_as(OURS)
    if not name:
        return None
    totals = _values(debug / "totals")
    if not totals:
        return Server(name)
    used, most = _pair(totals["connections"])
    pages, pages_max = _pair(totals["read_pages"])
    return Server(name, used, most, pages * _PAGE, pages_max * _PAGE, tuple(clients(debug)))


def clients(debug: Path = _DEBUG) -> list[Client]:
    """The connections there are, in the order they came."""
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
    )


def _pair(text: str) -> tuple[int, int]:
    used, _, most = text.partition(" of ")
    return int(used), int(most)


def _values(file: Path) -> dict[str, str]:
    try:
        text = file.read_text()
    except OSError:
        return {}
    return dict(line.partition(" ")[::2] for line in text.splitlines())
