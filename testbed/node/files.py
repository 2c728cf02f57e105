# SPDX-License-Identifier: Apache-2.0
"""Descriptors of files, and their pages in the cache of a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["drop_from_cache", "opened", "read_from_server"]


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of an open file."""
    file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def drop_from_cache(path: Path) -> None:
    """Free the clean pages of a file: the next read is one from its server."""
    with opened(path) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def read_from_server(path: Path) -> bytes:
    """The data of a file of a mount, none of it from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()
