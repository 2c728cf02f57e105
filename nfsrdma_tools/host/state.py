# SPDX-License-Identifier: Apache-2.0
"""State files: the changes of a command and the state before them, a JSON file per command.

Each file is written before the change.  `module load` lasts until a reboot, and so does its file,
in /run/nfsrdma ($NFSRDMA_STATE).  The other changes survive a reboot, and so do their files, in
/var/lib/nfsrdma ($NFSRDMA_LIB).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.json_records import INVALID, fault, record
from nfsrdma_tools.lock import host_lock

__all__ = [
    "Installed",
    "ModuleState",
    "ServerState",
    "StateFile",
    "Tuned",
    "installed_state",
    "module_state",
    "server_state",
    "tune_state",
]

_T = TypeVar("_T")


class StateFile(Generic[_T]):
    """The state of one command: ``parse`` makes it from JSON, ``dump`` makes JSON from it.

    ``busy`` is the error of ``locked`` if another process holds the lock; "": wait for it.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[Any], _T],
        dump: Callable[[_T], object],
        *,
        until_reboot: bool = False,
        busy: str = "",
    ) -> None:
        self._name, self._parse, self._dump = name, parse, dump
        self._until_reboot, self._busy = until_reboot, busy

    def path(self, machine: Machine = LIVE) -> Path:
        """The path of the file, on this host if it does not survive reboots."""
        folder = files.state_dir() if self._until_reboot else files.lib_dir(machine.root)
        return folder / f"{self._name}.json"

    def load(self, machine: Machine = LIVE) -> _T | None:
        """The state; None if there is no file.  UserError if the file is damaged."""
        path = self.path(machine)
        try:
            return self._parse(json.loads(files.text(path)))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise UserError(f"cannot read {path}: {error.strerror}", "run this as root") from error
        except INVALID as error:
            hint = "correct it, or move it away: the changes that it records cannot be undone then"
            raise UserError(f"{path} is damaged: {fault(error)}", hint) from error

    def save(self, state: _T | None, machine: Machine = LIVE) -> None:
        """Write the file in one step; for None remove it, and its folder if that is empty then."""
        path = self.path(machine)
        if state is not None:
            if self._until_reboot:
                files.make_state_dir()
            files.write_atomically(path, json.dumps(self._dump(state), indent=1) + "\n")
            return
        files.remove(path)
        # another process may be about to write a journal into the folder of journals
        if not self._until_reboot:
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for the changes of this command in the block."""
        hint = "wait until it has finished"
        with host_lock(self._name, busy=UserError(self._busy, hint) if self._busy else None):
            yield


@dataclass(frozen=True)
class ModuleState:
    """Our module as loaded: its file, its parameters, and the module that it replaced."""

    file: str
    parameters: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """The module that owned the netid rdma before; "" if none did."""


@dataclass(frozen=True)
class Installed:
    """The changes of `module install`."""

    version: str
    made: tuple[str, ...] = ()
    """New paths that ``dkms remove`` does not remove, folders before their content."""


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
    requests_rdma: bool = True
    """Our drop-in requests the RDMA port, if there is one: nothing else did."""
    needs_restart: bool = False
    """A running nfsd was changed in a way that only a restart reverts."""
    made: tuple[str, ...] = ()
    """Directories that did not exist."""
    versions: tuple[str, ...] = ()
    """Requested NFS versions, like ``4.2``."""
    exports: dict[str, str] = field(default_factory=dict)
    """Exported path -> file below /etc/exports.d."""
    listeners: tuple[str, ...] = ()
    """RDMA listeners that nothing but portlist had ("nfr 20050"); a restart loses them."""
    threadless: int | None = None
    """The requested limit of threadless reads in bytes; None: unchanged."""
    threadless_was: int = 0
    """The limit before the first request."""


@dataclass(frozen=True)
class Tuned:
    """A tuned mount.  None: not tuned, or unknown because it was not mounted.

    ``file`` is fstab (``before`` and ``after`` are a line of it) or our drop-in (``before`` is
    None, ``after`` the whole file); None if only the read-ahead was tuned.
    ``read_ahead_was_kb`` was in effect before tuning.
    """

    directory: str
    rsize: int | None
    wsize: int | None
    read_ahead_kb: int | None
    file: str | None
    before: str | None
    after: str | None
    read_ahead_was_kb: int | None = None


def _server(row: dict[str, Any]) -> ServerState:
    lists = ("made", "versions", "listeners")
    values: dict[str, Any] = {key: tuple(row[key]) if key in lists else row[key] for key in row}
    return record(ServerState, values)


def _tuned(data: dict[str, Any]) -> list[Tuned]:
    return [record(Tuned, row) for row in data["mounts"]]


def _tuned_json(mounts: list[Tuned]) -> dict[str, Any]:
    return {"version": 1, "mounts": [asdict(tuned) for tuned in mounts]}


module_state = StateFile(
    "module",
    lambda row: record(ModuleState, row),
    asdict,
    until_reboot=True,
    busy="another nfsrdma is changing modules",
)
"""Our module if `module load` loaded it since boot."""
installed_state = StateFile(
    "module", lambda row: Installed(row["version"], tuple(row["made"])), asdict
)
"""Our module if `module install` installed it."""
server_state = StateFile(
    "server",
    _server,
    asdict,
    busy="another nfsrdma server command is running",
)
"""The exports of `server enable`."""
tune_state = StateFile("tune", _tuned, _tuned_json)
"""The mounts of `tune apply`.  The udev helper reads the same file, so that only this file names
mount points."""
