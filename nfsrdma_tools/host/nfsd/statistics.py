# SPDX-License-Identifier: Apache-2.0
"""nfsd's statistics: /proc/net/rpc/nfsd (fs/nfsd/stats.c, net/sunrpc/stats.c)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["Served", "parse", "read"]

_PROC = Path("/proc/net/rpc/nfsd")


@dataclass(frozen=True)
class Served:
    """Since module nfsd was loaded: file bytes read and written, Calls, refused Calls."""

    read_bytes: int = 0
    write_bytes: int = 0
    calls: int = 0
    bad_calls: int = 0


def read(path: Path = _PROC) -> Served | None:
    """The counters; None if nfsd is not loaded."""
    text = files.read(path)
    return parse(text) if text else None


def parse(text: str) -> Served:
    """Parse the lines ``io`` and ``rpc``; a missing value is 0."""
    return Served(*_two(text, "io"), *_two(text, "rpc"))


def _two(text: str, name: str) -> tuple[int, int]:
    words = f"\n{text}".partition(f"\n{name} ")[2].split(None, 2)
    return (int(words[0]), int(words[1])) if len(words) > 1 else (0, 0)
