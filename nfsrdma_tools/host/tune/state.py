# SPDX-License-Identifier: Apache-2.0
"""The tuned mounts and how to revert them: one JSON file, written before each change.

It is in /var/lib/nfsrdma ($NFSRDMA_LIB for tests), because tuned values persist across reboots.
The udev helper reads the same file, so it is the only place that names mount points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools import state_files
from nfsrdma_tools.lock import host_lock

__all__ = ["Tuned", "load", "locked", "save", "state_file"]


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


def state_file(root: Path) -> Path:
    """The state file below ``root``."""
    return state_files.lib_dir(root) / "tune.json"


def load(root: Path) -> list[Tuned]:
    """All tuned mounts.  UserError if the file is damaged."""
    return state_files.load(state_file(root), _rows) or []


def _rows(data: dict[str, Any]) -> list[Tuned]:
    return [Tuned(**row) for row in data["mounts"]]


def save(root: Path, rows: list[Tuned]) -> None:
    """Write all tuned mounts; remove the file if there are none."""
    data = {"version": 1, "mounts": [asdict(row) for row in rows]} if rows else None
    state_files.save(state_file(root), data)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock: only one tune runs at a time, others wait."""
    with host_lock("tune"):
        yield
