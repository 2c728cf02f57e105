# SPDX-License-Identifier: Apache-2.0
"""The client transports of our module, from its debugfs (kmod/client/transport.c); root only.

A directory per transport has its number in /sys/kernel/sunrpc.  A transport may end while its files
are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.host.module.personality import DEFAULT
from nfsrdma_tools.host.module.server_debugfs import values

__all__ = ["COUNTERS", "DEBUG", "GAUGES", "ClientTransport", "in_effect", "transports"]

DEBUG = Path("/sys/kernel/debug/nfsrdma")
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
_YES = {"yes": 1, "no": 0}
_PAGE = os.sysconf("SC_PAGESIZE")
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
    """The personality that both sides agreed on; "" while the transport is not connected."""
    gauges: dict[str, int] = field(default_factory=dict)
    """Of GAUGES those that the personality in effect has; none for read-write."""
    counters: dict[str, int] = field(default_factory=dict)
    """The same of COUNTERS, without zeros.  Those of the cache restart at 0 with a connection."""


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
    personality = has.get("personality", "")
    varies = personality not in ("", DEFAULT)
    figures = has | values(folder / "counters") if varies else {}
    return ClientTransport(
        number=int(folder.name),
        server=peer["server"],
        port=int(peer["port"]),
        requested=has["personality_wanted"],
        personality=personality,
        gauges=_gauges(figures),
        counters={name: count for name in COUNTERS if (count := int(figures.get(name, 0)))},
    )


def _gauges(figures: dict[str, str]) -> dict[str, int]:
    found = {name: _number(figures[name]) for name in GAUGES if name in figures}
    if "cache_idle_pages" in figures:
        found["cache_bytes"] = int(figures["cache_idle_pages"]) * _PAGE
    return found


def _number(text: str) -> int:
    # lanes has its limit behind it: "3 of 8"
    word = text.split(maxsplit=1)[0]
    return _YES[word] if word in _YES else int(word)
