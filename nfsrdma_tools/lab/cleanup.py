# SPDX-License-Identifier: Apache-2.0
"""Removes outdated files of the cache, and leftovers of labs whose owners were killed.

A killed lab leaves folders, and gigabytes of disks.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import kernels, paths
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

__all__ = ["clean", "remove_folder", "remove_stale_labs"]


def clean() -> int:
    """Remove files of outdated recipes and of stale labs; returns the bytes freed.

    Leaves what another process builds at the moment.
    """
    images = {recipe_hash(extras) for extras in (False, True)}
    known = kernels.present()
    # the name of a snapshot begins with the names of its image and its kernel
    warm = {f"{image}-{kernel}" for image in images for kernel in known}
    freed = remove_stale_labs()
    for name, current in (("images", images), ("kernels", known), ("warm", warm)):
        folder = paths.cache_dir() / name
        # a lock and the drafts of a build have its name, with another end
        built = sorted({path.with_name(paths.built_name(path)) for path in folder.glob("*")})
        freed += sum(_remove_outdated(path, current) for path in built)
    return freed


def _remove_outdated(path: Path, current: set[str]) -> int:
    outdated = current.isdisjoint((path.name, path.name.rpartition("-")[0]))
    kept = {f"{path.name}.lock"}
    kept |= set() if outdated else {path.name, f"{path.name}.qcow2"}
    with try_file_lock(paths.lock_of(path)) as free:
        if not free:
            return 0
        files = [p for p in path.parent.glob("*") if paths.built_name(p) == path.name]
        return sum(_remove(file) for file in files if file.name not in kept)


def remove_stale_labs() -> int:
    """Remove the files of labs without an owner; returns the bytes freed."""
    disks = paths.disks_dir()
    folders = [*paths.labs_dir().iterdir(), *(disks.iterdir() if disks.is_dir() else ())]
    names = {folder.name for folder in folders if paths.is_lab_folder(folder)}
    return sum(_remove_stale_lab(name) for name in sorted(names))


def _remove_stale_lab(name: str) -> int:
    folders = paths.lab_dir(name), paths.disks_dir() / name
    with try_file_lock(paths.lab_lock(name)) as free:
        removable = [path for path in folders if free and paths.is_lab_folder(path)]
        return sum(_remove_unlocked(folder) for folder in removable)


def _remove_unlocked(folder: Path) -> int:
    # a lab of another run directory has its lock there
    with try_folder_lock(folder) as free:
        try:
            return remove_folder(folder) if free else 0
        except OSError:
            # its machines are still exiting; the next start removes what they write now
            return 0


def remove_folder(folder: Path) -> int:
    """Remove a lab's folder, its mark last; returns the bytes freed.

    UserError if something exists there that no lab made.
    """
    if not os.path.lexists(folder):
        return 0
    if not paths.is_lab_folder(folder):
        raise UserError(f"{folder}: expected a folder of a lab, found other files", "remove it")
    size = sum(_remove(path) for path in folder.iterdir() if path.name != paths.MARK)
    mark = folder / paths.MARK
    mark.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        # a machine that is still exiting wrote a file
        mark.touch()
        raise
    return size


def _remove(path: Path) -> int:
    """Remove a file or a folder; returns the bytes freed."""
    if path.is_symlink() or not path.is_dir():
        size = path.lstat().st_blocks * 512
        path.unlink()
        return size
    size = sum(p.lstat().st_blocks * 512 for p in [path, *path.rglob("*")])
    shutil.rmtree(path)
    return size
