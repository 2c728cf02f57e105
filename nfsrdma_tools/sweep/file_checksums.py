# SPDX-License-Identifier: Apache-2.0
"""Remember the verified content of the test file, and compare later reads with it."""

from __future__ import annotations

import itertools
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from nfsrdma_tools.files import opened_regular

__all__ = ["Content", "holds", "remember"]

_BLOCK = 1 << 20
# a comparison costs a fraction of a checksum, but needs memory
_KEPT = 64

Content = Sequence[bytes | int]
"""Each MiB of a file: the content of the first ones, checksums of the others."""


def remember(path: Path) -> Content:
    """Read the whole file; raises OSError."""
    blocks = enumerate(_blocks(path))
    return [block if place < _KEPT else zlib.crc32(block) for place, block in blocks]


def holds(path: Path, content: Content, size: int, direct: bool = False) -> bool:
    """Read the first ``size`` bytes in whole blocks and compare; ``direct`` uses O_DIRECT.

    Raises OSError.
    """
    wanted = content[: -(-size // _BLOCK)]
    found = itertools.islice(_blocks(path, direct), len(wanted))
    return all(map(_same, itertools.chain(found, itertools.repeat(b"")), wanted))


def _same(block: bytes, known: bytes | int) -> bool:
    return block == known if isinstance(known, bytes) else zlib.crc32(block) == known


def _blocks(path: Path, direct: bool = False) -> Iterator[bytes]:
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    # page-aligned, as O_DIRECT requires
    with opened_regular(path, flags) as file, mmap.mmap(-1, _BLOCK) as room:
        while done := os.readv(file, [room]):
            yield room[:done]
