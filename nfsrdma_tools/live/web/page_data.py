# SPDX-License-Identifier: Apache-2.0
"""What the page shows of a snapshot, as JSON: only what it reads, made anew only when it changed.

Browsers are told of each mount: all of it, or its connections alone, or by its name that it is as
it was (live/web/page/app.js puts that together again).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Any

from nfsrdma_tools.live.dataclass_json import to_plain
from nfsrdma_tools.live.memo import Kept, shared
from nfsrdma_tools.live.snapshot import Server, Snapshot, Xprt

__all__ = ["Shown", "text"]

_MOUNT = ("directory", "target", "transport", "vers", "rsize", "read_ahead_kb", "read", "written",
          "ops", "chunks", "waiting", "limit")  # fmt: skip
_PARTS = itemgetter("device", *_MOUNT)
_XPRT = ("number", "kind", "address", "states", "connected", "credits", "requests", "pending")
_NOW = ("seconds", "host", "kernel", "ports", "events", "missing")
_SERVER = ("threads", "listeners", "read", "written", "calls")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_CLIENT = ("peer", "procedure", "counts", "ns")


# of a mount without its connections, and of those; what the first was made of
_Said = tuple[str, str, tuple[Any, ...]]


class Shown:
    """``take`` a snapshot; ``whole`` tells all of it, ``changes`` what the one before had not."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}
        self._connections = Kept(_connections)
        self._changes: list[str] = []
        self._now = "{}"

    def take(self, snapshot: Snapshot) -> None:
        """What is to be told next."""
        self._connections.turn()
        all_ = enumerate(shared(snapshot.mounts).items())
        xprts = {key: self._connections.of(place, each) for place, (key, each) in all_}
        before, self._said = self._said, {}
        for mount in snapshot.mounts:
            parts, was = _PARTS(vars(mount)), before.get(mount.device)
            own = was[0] if was and was[2] == parts else _mount(*parts)
            self._said[mount.device] = own, xprts[id(mount.xprts)], parts
        self._changes = [
            _change(device, said, before.get(device)) for device, said in self._said.items()
        ]
        now = _some(snapshot, _NOW)
        if snapshot.server:
            now["server"] = _server(snapshot.server)
        self._now = text(now)

    def whole(self) -> str:
        """For those who know nothing yet."""
        return self._with(map(_all, self._said.values()))

    def changes(self) -> str:
        """For those who were told all before."""
        return self._with(self._changes)

    def _with(self, mounts: Iterable[str]) -> str:
        return f'{self._now[:-1]},"mounts":[{",".join(mounts)}]}}'


def text(value: object) -> str:
    """JSON in ASCII, without a newline."""
    return _encode(value)


@lru_cache(maxsize=4096)
def _name(device: str) -> str:
    return text(device)


def _mount(device: str, *parts: Any) -> str:
    return text({"device": device, **_plain(zip(_MOUNT, parts, strict=True))})[1:-1]


def _connections(xprts: tuple[Xprt, ...]) -> str:
    return text([_some(each, _XPRT) for each in xprts])


def _all(said: _Said) -> str:
    return f'{{{said[0]},"xprts":{said[1]}}}'


def _change(device: str, said: _Said, was: _Said | None) -> str:
    if not was or was[0] != said[0]:
        return _all(said)
    if was[1] == said[1]:
        return _name(device)
    return f'{{"device":{_name(device)},"xprts":{said[1]}}}'


def _server(server: Server) -> dict[str, Any]:
    return _some(server, _SERVER) | {"clients": [_some(c, _CLIENT) for c in server.clients]}


def _some(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return _plain((name, getattr(value, name)) for name in names)


def _plain(parts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by their names, those that say something."""
    return {name: to_plain(part) for name, part in parts if part or part is False}
