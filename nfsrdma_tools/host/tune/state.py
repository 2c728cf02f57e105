# SPDX-License-Identifier: Apache-2.0
"""What was tuned, and how to take it back: one JSON file, written before each change.

It lives in /var/lib/nfsrdma ($NFSRDMA_LIB for tests), because what it takes back outlives reboots.
The udev helper reads the same file, so it is the only place that names mount points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools import state_files
from nfsrdma_tools.lock import folder_lock

__all__ = ["Tuned", "load", "locked", "save", "state_file"]


@dataclass(frozen=True)
class Tuned:
    """One mount that was tuned.  None: left alone, or unknown because it was not mounted.

    ``file`` is fstab (``before`` and ``after`` are a line of it) or a drop-in of ours (``before``
    is None, ``after`` the whole file); None when only the read-ahead was tuned.
    ``read_ahead_was_kb`` was in effect when it was tuned.
    """

    directory: str
    rsize: int | None
    wsize: int | None
    read_ahead_kb: int | None
    file: str | None
    before: str | None
    after: str | None
    read_ahead_was_kb: int | None = None


def state_file(root: Path) -> Path:
    """The state file of the machine below ``root``."""
    return state_files.lib_dir(root) / "tune.json"


def load(root: Path) -> list[Tuned]:
    """Everything that is tuned; UserError when the file makes no sense."""
    return state_files.load(state_file(root), _rows) or []


def _rows(data: dict[str, Any]) -> list[Tuned]:
    return [Tuned(**row) for row in data["mounts"]]


def save(root: Path, rows: list[Tuned]) -> None:
    """Write everything that is tuned; no file when nothing is."""
    data = {"version": 1, "mounts": [asdict(row) for row in rows]} if rows else None
    state_files.save(state_file(root), data)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One tune at a time: the next one waits here."""
    with folder_lock(root / "etc"):
        yield
