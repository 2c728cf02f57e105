# SPDX-License-Identifier: Apache-2.0
"""Removes leftovers of labs whose owners were killed: folders, and gigabytes of disks."""

from __future__ import annotations

import shutil
from pathlib import Path

from nfsrdma_tools.lab import paths
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

__all__ = ["remove", "removed"]


def remove() -> int:
    """Remove the files of labs without an owner; returns the bytes freed."""
    made = [*paths.labs_dir().iterdir(), *_folders(paths.disks_dir())]
    return sum(_of_lab(name) for name in sorted({path.name for path in made if path.is_dir()}))


def removed(path: Path) -> int:
    """Remove a file or a folder; returns the bytes freed."""
    size = sum(p.stat().st_blocks * 512 for p in [path, *path.rglob("*")] if not p.is_symlink())
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return size


def _folders(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _of_lab(name: str) -> int:
    folders = paths.lab_dir(name), paths.disks_dir() / name
    with try_file_lock(paths.lab_lock(name)) as free:
        return sum(_gone(folder) for folder in folders if free and folder.is_dir())


def _gone(folder: Path) -> int:
    # a lab of another run directory has its lock there
    with try_folder_lock(folder) as free:
        try:
            return removed(folder) if free else 0
        except OSError:
            # its machines are still exiting; the next start removes what they write now
            return 0
