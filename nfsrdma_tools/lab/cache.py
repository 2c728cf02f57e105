# SPDX-License-Identifier: Apache-2.0
"""Cleans the cache of images, kernels and snapshots."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.lab import kernels, stale_labs
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.paths import cache_dir
from nfsrdma_tools.lock import file_lock

__all__ = ["clean"]


def clean() -> int:
    """Remove files of outdated recipes and of stale labs; returns the bytes freed."""
    images = {recipe_hash(extras) for extras in (False, True)}
    known, freed = kernels.present(), stale_labs.remove()
    for name, keep in (("images", images), ("kernels", known)):
        folder = cache_dir() / name
        if folder.is_dir():
            with file_lock(folder / "lock"):
                freed += _keep_only(folder, keep)
    # the name of a snapshot begins with the names of its image and its kernel
    return freed + _keep_only(cache_dir() / "warm", {f"{i}-{k}" for i in images for k in known})


def _keep_only(folder: Path, keep: set[str]) -> int:
    found = [path for path in folder.glob("*") if path.name != "lock"]
    return sum(stale_labs.removed(path) for path in found if not keep & _names(path))


def _names(path: Path) -> set[str]:
    name = path.name.removesuffix(".lock").removesuffix(".qcow2")
    return {name, name.rpartition("-")[0]}
