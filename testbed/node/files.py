# SPDX-License-Identifier: Apache-2.0
"""Files that a function in a node reads and writes by their descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["opened"]


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of an open file."""
    file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)
