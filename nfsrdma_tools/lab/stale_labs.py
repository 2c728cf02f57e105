# SPDX-License-Identifier: Apache-2.0
"""Removes leftovers of labs whose owners were killed: folders, and gigabytes of disks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

__all__ = ["remove", "remove_folder", "removed"]


def remove() -> int:
    """Remove the files of labs without an owner; returns the bytes freed."""
    made = [*paths.labs_dir().iterdir(), *_folders(paths.disks_dir())]
    return sum(_of_lab(name) for name in sorted({p.name for p in made if paths.is_lab_folder(p)}))


def removed(path: Path) -> int:
    """Remove a file or a folder; returns the bytes freed."""
    if path.is_symlink() or not path.is_dir():
        size = path.lstat().st_blocks * 512
        path.unlink()
        return size
    size = sum(p.lstat().st_blocks * 512 for p in [path, *path.rglob("*")])
    shutil.rmtree(path)
    return size


def remove_folder(folder: Path) -> int:
    """Remove a lab's folder, its mark last; returns the bytes freed.

    UserError if something exists there that no lab made.
    """
    if not os.path.lexists(folder):
        return 0
    if not paths.is_lab_folder(folder):
        raise UserError(f"{folder}: expected a folder of a lab, found other files", "remove it")
    size = sum(removed(path) for path in folder.iterdir() if path.name != paths.MARK)
    mark = folder / paths.MARK
    mark.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        # a machine that is still exiting wrote a file
        mark.touch()
        raise
    return size


def _folders(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _of_lab(name: str) -> int:
    folders = paths.lab_dir(name), paths.disks_dir() / name
    with try_file_lock(paths.lab_lock(name)) as free:
        return sum(_gone(folder) for folder in folders if free and paths.is_lab_folder(folder))


def _gone(folder: Path) -> int:
    # a lab of another run directory has its lock there
    with try_folder_lock(folder) as free:
        try:
            return remove_folder(folder) if free else 0
        except OSError:
            # its machines are still exiting; the next start removes what they write now
            return 0
