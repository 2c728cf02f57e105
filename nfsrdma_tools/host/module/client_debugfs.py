# SPDX-License-Identifier: Apache-2.0
"""The client transports of our module, from its debugfs (kmod/client/transport.c); root only.

A directory per transport has its number in /sys/kernel/sunrpc.  A transport may end while its files
are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.host.module.server_debugfs import values

__all__ = ["DEBUG", "ClientTransport", "in_effect", "transports"]

DEBUG = Path("/sys/kernel/debug/nfsrdma")
_PEER = re.compile(r"(?P<server>\S+) port (?P<port>\d+)")


@dataclass(frozen=True)
class ClientTransport:
    """A client transport, with the personality that it requests and the one in effect."""

    number: int
    server: str
    """The server's address."""
    port: int
    requested: str
    personality: str
    """What both sides agreed on; "" while it is not connected."""


def transports(debug: Path = DEBUG) -> list[ClientTransport]:
    """The client transports by number; none for users other than root."""
    try:
        folders = [path for path in debug.iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    found = map(_transport, sorted(folders, key=lambda path: int(path.name)))
    return [transport for transport in found if transport]


def in_effect(found: Iterable[ClientTransport]) -> tuple[str, ...]:
    """The personalities in effect, each once; () if no transport is connected."""
    return tuple(sorted({each.personality for each in found if each.personality}))


def _transport(folder: Path) -> ClientTransport | None:
    has = values(folder / "connection")
    peer = _PEER.fullmatch(has.get("peer", ""))
    # a module of an earlier version has no personalities
    if not peer or "personality_wanted" not in has:
        return None
    return ClientTransport(
        number=int(folder.name),
        server=peer["server"],
        port=int(peer["port"]),
        requested=has["personality_wanted"],
        personality=has.get("personality", ""),
    )
