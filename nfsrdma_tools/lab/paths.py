# SPDX-License-Identifier: Apache-2.0
"""The paths of labs: big files in the user's cache, sockets and state in the run directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = [
    "cache_dir",
    "disks_dir",
    "draft_of",
    "lab_dir",
    "lab_lock",
    "labs_dir",
]


def cache_dir() -> Path:
    """Images and snapshots: $XDG_CACHE_HOME/nfsrdma, or ~/.cache/nfsrdma."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return _made(Path(base) / "nfsrdma")


def labs_dir() -> Path:
    """The running labs, one folder each. Short, because socket paths are limited to 107 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR") or ("/run" if os.geteuid() == 0 else "")
    path = Path(base) / "nfsrdma-labs" if base else Path(f"/tmp/nfsrdma-labs-{os.geteuid()}")  # noqa: S108
    made = _made(path)
    if made.stat().st_uid != os.geteuid():
        raise UserError(f"{path} belongs to another user", "remove it, or set XDG_RUNTIME_DIR")
    return made


def lab_dir(name: str) -> Path:
    """One lab's folder, whether it is up or not."""
    return labs_dir() / name


def lab_lock(name: str) -> Path:
    """The lock file that a lab's owner holds while the lab is up."""
    return labs_dir() / f"{name}.lock"


def disks_dir() -> Path:
    """The disks of running labs, one folder per lab."""
    return cache_dir() / "labs"


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """A new folder that becomes ``folder`` if the block succeeds, and is removed if it fails.

    The caller holds the lock that excludes other writers; drafts of killed processes are removed.
    """
    prefix = f"{folder.name}.draft-"
    for left in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield draft
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
