# SPDX-License-Identifier: Apache-2.0
"""The module that ``module load`` loaded, and the one before: a file that a reboot deletes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nfsrdma_tools import state_files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lock import host_lock

__all__ = ["ModuleState", "load", "locked", "path", "save"]


@dataclass(frozen=True)
class ModuleState:
    """Our module as loaded: its file, its parameters, and the module that it replaced."""

    file: str
    parameters: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """The module that owned the netid rdma before; "" if none did."""


def path() -> Path:
    """The path of the state file."""
    return state_files.state_dir() / "module.json"


def load() -> ModuleState | None:
    """The state; None if nfsrdma has not loaded our module since boot."""
    return state_files.load(path(), lambda row: ModuleState(**row))


def save(state: ModuleState | None) -> None:
    """Write the state, or remove the file for None."""
    state_files.save(path(), state and asdict(state))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock for changing the transport module; UserError if another process holds it."""
    busy = UserError("another nfsrdma is changing modules", "wait until it has finished")
    with host_lock("module", busy=busy):
        yield
