# SPDX-License-Identifier: Apache-2.0
"""What ``server enable`` changed and how the machine was before: one JSON file.

It lives in /var/lib/nfsrdma ($NFSRDMA_LIB), because exports outlive reboots, and it is written
before the first change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nfsrdma_tools import state_files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lock import folder_lock

__all__ = ["ServerState", "load", "locked", "save", "state_file"]


@dataclass(frozen=True)
class ServerState:
    """How the service was before the first export, and what was asked for since."""

    was_active: bool
    """nfs-server ran."""
    was_enabled: bool
    """nfs-server was started at boot."""
    port: int
    """The RDMA port."""
    writes_conf: bool = False
    """nfs.conf did not ask for all of it by itself."""
    needs_restart: bool = False
    """A running nfsd got something that only a restart takes away again."""
    made: tuple[str, ...] = ()
    """Directories that were not there."""
    versions: tuple[str, ...] = ()
    """NFS versions asked for, like ``4.2``."""
    exports: dict[str, str] = field(default_factory=dict)
    """Path served -> file below /etc/exports.d."""


def state_file() -> Path:
    """Where the state is kept."""
    return state_files.lib_dir() / "server.json"


def load() -> ServerState | None:
    """The state, None when nothing is enabled; UserError when the file makes no sense."""
    return state_files.load(state_file(), _state)


def _state(row: dict[str, Any]) -> ServerState:
    lists = {key: tuple(row[key]) for key in ("made", "versions")}
    return ServerState(**{**row, **lists})


def save(state: ServerState | None) -> None:
    """Write the state; no file when nothing is enabled."""
    state_files.save(state_file(), state and asdict(state))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One change of the server at a time; UserError when another one is under way."""
    busy = UserError("another nfsrdma server command is running", "wait for it")
    with folder_lock(state_files.state_dir(), busy):
        yield
