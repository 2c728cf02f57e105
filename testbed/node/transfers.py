# SPDX-License-Identifier: Apache-2.0
"""Known numbers of READs and WRITEs: direct I/O of a node, block after block."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["read_blocks", "write_blocks"]


def read_blocks(path: Path, count: int, size: int) -> None:
    """Read ``count`` blocks of ``size`` bytes past the cache."""
    _move(path, count, size, os.O_RDONLY)


def write_blocks(path: Path, count: int, size: int) -> None:
    """Write ``count`` blocks of ``size`` bytes past the cache; makes the file if there is none."""
    _move(path, count, size, os.O_RDWR | os.O_CREAT)


def _move(path: Path, count: int, size: int, flags: int) -> None:
    block, move = mmap.mmap(-1, size), os.pwritev if flags & os.O_RDWR else os.preadv
    file = os.open(path, flags | os.O_DIRECT, 0o644)
    try:
        assert [move(file, [block], turn * size) for turn in range(count)] == [size] * count
    finally:
        os.close(file)
