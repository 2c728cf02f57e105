# SPDX-License-Identifier: Apache-2.0
"""What was tuned, and how to take it back: one JSON file, written before each change.

It lives in /var/lib/nfsrdma ($NFSRDMA_LIB for tests), because what it takes back outlives reboots.
The udev helper reads the same file, so it is the only place that names mount points.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import read, write_atomically
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
    return Path(os.environ.get("NFSRDMA_LIB", root / "var/lib/nfsrdma")) / "tune.json"


def load(root: Path) -> list[Tuned]:
    """Everything that is tuned; UserError when the file makes no sense."""
    path = state_file(root)
    text = read(path)
    try:
        return [Tuned(**row) for row in json.loads(text)["mounts"]] if text else []
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error!r}", "mend it or move it away") from error


def save(root: Path, rows: list[Tuned]) -> None:
    """Write everything that is tuned; no file when nothing is."""
    path = state_file(root)
    if rows:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        text = json.dumps({"version": 1, "mounts": [asdict(row) for row in rows]}, indent=1)
        write_atomically(path, text + "\n")
    else:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One tune at a time: the next one waits here."""
    with folder_lock(root / "etc"):
        yield
