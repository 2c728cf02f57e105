# SPDX-License-Identifier: Apache-2.0
"""The cache of images, kernels and snapshots, and how to make room."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.lab import kernels, leftovers
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.places import cache_dir, locked

__all__ = ["clean"]


def clean() -> int:
    """Remove what belongs to other recipes than the present one, or to no lab; bytes freed."""
    keep, freed = kernels.present(), leftovers.remove()
    for name in ("images", "kernels"):
        folder = cache_dir() / name
        if folder.is_dir():
            with locked(folder / "lock"):
                freed += sum(
                    leftovers.removed(path) for path in folder.iterdir() if _is_old(path, keep)
                )
    warm = (cache_dir() / "warm").glob("*")
    return freed + sum(leftovers.removed(path) for path in warm if _is_old(path, keep))


def _is_old(path: Path, kernels_kept: set[str]) -> bool:
    # a snapshot's name is its image's, then its kernel's where that was built apart
    first, *parts = path.name.split("-")
    if path.name == "lock" or path.name in kernels_kept:
        return False
    return first != recipe_hash() or (len(parts) > 1 and "-".join(parts[:2]) not in kernels_kept)
