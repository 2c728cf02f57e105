# SPDX-License-Identifier: Apache-2.0
"""The cache of images and snapshots, and how to make room."""

from __future__ import annotations

import shutil
from pathlib import Path

from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.places import cache_dir, locked

__all__ = ["clean"]


def clean() -> int:
    """Remove images and snapshots of other recipes than the present one; returns bytes freed."""
    images, warm = cache_dir() / "images", cache_dir() / "warm"
    freed = 0
    if images.is_dir():
        with locked(images / "lock"):
            for path in [*images.iterdir(), *warm.glob("*")]:
                if path.name != "lock" and not path.name.startswith(recipe_hash()):
                    freed += _remove(path)
    return freed


def _remove(path: Path) -> int:
    size = sum(p.stat().st_blocks * 512 for p in [path, *path.rglob("*")] if not p.is_symlink())
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return size
