# SPDX-License-Identifier: Apache-2.0
"""What nfsd counted of itself: /proc/net/rpc/nfsd (fs/nfsd/stats.c, net/sunrpc/stats.c)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["Served", "parse", "read"]

_PROC = Path("/proc/net/rpc/nfsd")


@dataclass(frozen=True)
class Served:
    """Since nfsd's module was loaded: bytes of files read and written, Calls, those refused."""

    read_bytes: int = 0
    write_bytes: int = 0
    calls: int = 0
    bad_calls: int = 0


def read(path: Path = _PROC) -> Served | None:
    """The counters; None where there is no nfsd."""
    text = files.read(path)
    return parse(text) if text else None


def parse(text: str) -> Served:
    """Read the lines ``io`` and ``rpc``; what is not there is 0."""
    return Served(*_two(text, "io"), *_two(text, "rpc"))


def _two(text: str, name: str) -> tuple[int, int]:
    words = f"\n{text}".partition(f"\n{name} ")[2].split(None, 2)
    return (int(words[0]), int(words[1])) if len(words) > 1 else (0, 0)
