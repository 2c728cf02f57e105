# SPDX-License-Identifier: Apache-2.0
"""Cleans the cache of images, kernels and snapshots."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.lab import kernels, stale_labs
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.paths import built_name, cache_dir, lock_of
from nfsrdma_tools.lock import try_file_lock

__all__ = ["clean"]


def clean() -> int:
    """Remove files of outdated recipes and of stale labs; returns the bytes freed.

    Leaves what another process builds at the moment.
    """
    images = {recipe_hash(extras) for extras in (False, True)}
    known = kernels.present()
    # the name of a snapshot begins with the names of its image and its kernel
    warm = {f"{image}-{kernel}" for image in images for kernel in known}
    freed = stale_labs.remove()
    for name, current in (("images", images), ("kernels", known), ("warm", warm)):
        folder = cache_dir() / name
        freed += sum(_removed(path, current) for path in _one_of_each(folder))
    return freed


def _one_of_each(folder: Path) -> list[Path]:
    return sorted({path.with_name(built_name(path)) for path in folder.glob("*")})


def _removed(path: Path, current: set[str]) -> int:
    outdated = current.isdisjoint((path.name, path.name.rpartition("-")[0]))
    kept = {f"{path.name}.lock"}
    kept |= set() if outdated else {path.name, f"{path.name}.qcow2"}
    with try_file_lock(lock_of(path)) as free:
        if not free:
            return 0
        found = [each for each in path.parent.glob("*") if built_name(each) == path.name]
        return sum(stale_labs.removed(each) for each in found if each.name not in kept)
