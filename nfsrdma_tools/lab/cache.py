# SPDX-License-Identifier: Apache-2.0
"""The cache of images, kernels and snapshots, and how to make room."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.lab import kernels, stale_labs
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.paths import cache_dir
from nfsrdma_tools.lock import file_lock

__all__ = ["clean"]


def clean() -> int:
    """Remove what belongs to other recipes than the present ones, or to no lab; bytes freed."""
    images = {recipe_hash(extras) for extras in (False, True)}
    known, freed = kernels.present(), stale_labs.remove()
    for name, keep in (("images", images), ("kernels", known)):
        folder = cache_dir() / name
        if folder.is_dir():
            with file_lock(folder / "lock"):
                freed += _keep_only(folder, keep)
    # a snapshot's name is its image's and its kernel's, then its own
    return freed + _keep_only(cache_dir() / "warm", {f"{i}-{k}" for i in images for k in known})


def _keep_only(folder: Path, keep: set[str]) -> int:
    found = [path for path in folder.glob("*") if path.name != "lock"]
    return sum(stale_labs.removed(path) for path in found if not keep & _names(path))


def _names(path: Path) -> set[str]:
    name = path.name.removesuffix(".lock").removesuffix(".qcow2")
    return {name, name.rpartition("-")[0]}
