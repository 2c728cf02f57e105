# SPDX-License-Identifier: Apache-2.0
"""The changes of ``server enable`` and the state of the host before: one JSON file.

It is in /var/lib/nfsrdma ($NFSRDMA_LIB), because exports persist across reboots, and it is
written before the first change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nfsrdma_tools import state_files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lock import host_lock

__all__ = ["ServerState", "load", "locked", "save", "state_file"]


@dataclass(frozen=True)
class ServerState:
    """The state of the service before the first export, and the requests since."""

    was_active: bool
    """nfs-server ran."""
    was_enabled: bool
    """systemd started nfs-server at boot."""
    port: int
    """The RDMA port."""
    writes_conf: bool = False
    """nfs.conf did not enable all of it itself."""
    needs_restart: bool = False
    """A running nfsd was changed in a way that only a restart reverts."""
    made: tuple[str, ...] = ()
    """Directories that did not exist."""
    versions: tuple[str, ...] = ()
    """Requested NFS versions, like ``4.2``."""
    exports: dict[str, str] = field(default_factory=dict)
    """Exported path -> file below /etc/exports.d."""


def state_file() -> Path:
    """The path of the state file."""
    return state_files.lib_dir() / "server.json"


def load() -> ServerState | None:
    """The state, None if nothing is enabled.  UserError if the file is damaged."""
    return state_files.load(state_file(), _state)


def _state(row: dict[str, Any]) -> ServerState:
    lists = {key: tuple(row[key]) for key in ("made", "versions")}
    return ServerState(**{**row, **lists})


def save(state: ServerState | None) -> None:
    """Write the state, or remove the file for None."""
    state_files.save(state_file(), state and asdict(state))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock for changes of the server; UserError if another process holds it."""
    busy = UserError("another nfsrdma server command is running", "wait until it has finished")
    with host_lock("server", busy=busy):
        yield
