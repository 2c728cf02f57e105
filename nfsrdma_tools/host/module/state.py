# SPDX-License-Identifier: Apache-2.0
"""What ``module load`` put in, and what was there before: one file that a reboot takes away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nfsrdma_tools import state_files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lock import folder_lock

__all__ = ["ModuleState", "load", "locked", "path", "save"]

_LOCK = Path("/sys/module")


@dataclass(frozen=True)
class ModuleState:
    """Our module as it is, or was, loaded: its file, its parameters, and whom it replaced."""

    file: str
    parameters: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """The module that owned the netid rdma before; "" when none did."""


def path() -> Path:
    """Where the state is kept."""
    return state_files.state_dir() / "module.json"


def load() -> ModuleState | None:
    """The state; None when our module was not loaded by us since the machine started."""
    return state_files.load(path(), lambda row: ModuleState(**row))


def save(state: ModuleState | None) -> None:
    """Write the state; no file for None."""
    state_files.save(path(), state and asdict(state))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One change of the carrier at a time; UserError when another one is under way."""
    with folder_lock(_LOCK, UserError("another nfsrdma is changing modules", "wait for it")):
        yield
