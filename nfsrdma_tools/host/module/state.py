# SPDX-License-Identifier: Apache-2.0
"""What ``module load`` put in, and what was there before: one file that a reboot takes away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.lock import folder_lock
from nfsrdma_tools.undo import state_dir

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
    return state_dir() / "module.json"


def load() -> ModuleState | None:
    """The state; None when our module was not loaded by us since the machine started."""
    try:
        return ModuleState(**json.loads(path().read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UserError(f"{path()} is damaged: {error!r}", "remove it") from error


def save(state: ModuleState | None) -> None:
    """Write the state; no file for None."""
    if state is None:
        path().unlink(missing_ok=True)
    else:
        write_atomically(path(), json.dumps(asdict(state)))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One change of the carrier at a time; UserError when another one is under way."""
    with folder_lock(_LOCK, UserError("another nfsrdma is changing modules", "wait for it")):
        yield
