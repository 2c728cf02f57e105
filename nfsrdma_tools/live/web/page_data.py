# SPDX-License-Identifier: Apache-2.0
"""The state that the page shows, as JSON: the fields of a snapshot that its scripts read."""

from __future__ import annotations

import json
from typing import Any

from nfsrdma_tools.live.dataclass_json import to_plain
from nfsrdma_tools.live.snapshot import Mount, Server, Snapshot

__all__ = ["page_data", "text"]

_MOUNT = ("device", "directory", "target", "transport", "vers", "rsize", "read_ahead_kb", "read",
          "written", "ops", "chunks", "waiting", "limit")  # fmt: skip
_XPRT = ("number", "kind", "address", "states", "connected", "credits", "requests", "pending",
         "personality")  # fmt: skip
_NOW = ("seconds", "host", "kernel", "ports", "events", "missing")
_SERVER = (
    "threads",
    "listeners",
    "read",
    "written",
    "calls",
    "exposed",
    "dones_outstanding",
    "lanes",
    "granted",
)
_CLIENT = ("peer", "procedure", "counts", "ns")


def page_data(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as dicts and lists, without fields that are empty or 0."""
    found = {**_some(snapshot, _NOW), "mounts": [_mount(each) for each in snapshot.mounts]}
    return found | {"server": _server(snapshot.server)} if snapshot.server else found


def text(value: object) -> str:
    """JSON in ASCII, without a newline."""
    return json.dumps(value, separators=(",", ":"))


def _mount(mount: Mount) -> dict[str, Any]:
    return _some(mount, _MOUNT) | {"xprts": [_some(each, _XPRT) for each in mount.xprts]}


def _server(server: Server) -> dict[str, Any]:
    return _some(server, _SERVER) | {"clients": [_some(c, _CLIENT) for c in server.clients]}


def _some(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    parts = ((name, getattr(value, name)) for name in names)
    return {name: to_plain(part) for name, part in parts if part or part is False}
