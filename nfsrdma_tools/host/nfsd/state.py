# SPDX-License-Identifier: Apache-2.0
"""What ``server enable`` changed and how the machine was before: one JSON file.

It lives in /var/lib/nfsrdma ($NFSRDMA_LIB), because exports outlive reboots, and it is written
before the first change.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.lock import folder_lock
from nfsrdma_tools.undo import state_dir

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
    return Path(os.environ.get("NFSRDMA_LIB", "/var/lib/nfsrdma")) / "server.json"


def load() -> ServerState | None:
    """The state, None when nothing is enabled; UserError when the file makes no sense."""
    path = state_file()
    try:
        row = json.loads(path.read_text())
        lists = {key: tuple(row[key]) for key in ("made", "versions")}
        return ServerState(**{**row, **lists})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error!r}", "mend it or move it away") from error


def save(state: ServerState | None) -> None:
    """Write the state; no file when nothing is enabled."""
    path = state_file()
    if state is None:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(state), indent=1) + "\n")


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One change of the server at a time; UserError when another one is under way."""
    busy = UserError("another nfsrdma server command is running", "wait for it")
    with folder_lock(state_dir(), busy):
        yield
