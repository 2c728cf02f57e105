# SPDX-License-Identifier: Apache-2.0
"""Programs of fuzz_optimistic.c, as seeds: reads, honest notices, refused reads."""

from __future__ import annotations

from pathlib import Path

from wire.notices import Credit, Grant, Notice, Revoke, encode
from wire.rpcrdma import Segment

__all__ = ["write"]

# steps of fuzz_optimistic.c
NOTICE, READ, BATCH, STATUS, TIME, TRUNCATE, CHANGE = range(7)
REGISTERED, OTHER = 1, 0
# how the device completes RDMA Reads, and whether the queue pair stays
DONE, REFUSED, FLUSHED, REFUSED_STAYS = 0, 1, 2, 5
CREDENTIAL, FH, ADDRESS = 0x0102030405060708, b"file", 0x7F00_0000_0000


def deliver(notice: Notice) -> bytes:
    message = encode(notice)
    return bytes((NOTICE, len(message))) + message


def grant(handle: int, position: int = 0, length: int = 65536, *, ends: bool = False) -> bytes:
    extent = Segment(handle, length, ADDRESS + position)
    return deliver(Grant(60, position, extent, FH, ends, CREDENTIAL))


def read(units: int, blocks: int, memory: int = REGISTERED) -> bytes:
    """Read 1 octet and ``units`` of 256, from the position ``blocks`` of 512."""
    return bytes((READ, units, memory, blocks))


def batch(*blocks: int) -> bytes:
    return bytes((BATCH,)) + b"".join(bytes((31, REGISTERED, each)) for each in blocks)


PROGRAMS = {
    "granted": read(31, 0) + grant(7) + read(31, 8) + read(1, 9, OTHER),
    "crosses": read(31, 126) + grant(7) + read(31, 126),
    "ends": read(8, 0) + grant(7, length=3000, ends=True) + read(31, 4) + read(31, 6),
    "revoked": read(8, 0) + grant(7) + read(8, 0) + deliver(Revoke((6, 7))) + read(8, 0),
    "reused": read(8, 0) + read(8, 128) + grant(7) + grant(7, 65536) + read(8, 0) + read(8, 128),
    "refused": read(8, 0) + grant(7) + bytes((STATUS, REFUSED)) + read(8, 0) + read(8, 0),
    "stays": read(8, 0) + grant(7) + bytes((STATUS, REFUSED_STAYS)) + read(8, 0) + grant(7),
    "batch": read(8, 0) + grant(7) + batch(0, 8, 16, 130) + bytes((STATUS, FLUSHED)) + batch(0, 1),
    "expires": read(8, 0) + grant(7) + bytes((TIME, 255)) + read(8, 0) + read(8, 0),
    "truncated": read(8, 0) + grant(7) + bytes((TRUNCATE,)) + read(8, 0),
    "credits": read(8, 0) + grant(7) + deliver(Revoke((1,))) * 20 + read(8, 0),
    "cached": read(31, 0) + read(31, 1) + read(1, 2) + read(1, 3, OTHER) + batch(0, 1, 2, 40),
    "changed": read(1, 2) + bytes((CHANGE,)) + read(1, 2) + grant(7) + batch(0, 1, 2, 8) * 2,
    "malformed": read(8, 0) + grant(7) + deliver(Credit(1)) + read(8, 0),
}


def write(folder: Path) -> list[Path]:
    """Write two files for each program, without and with a cache; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, program in PROGRAMS.items():
        for cache in range(2):
            files.append(folder / f"{name}-{cache}")
            files[-1].write_bytes(bytes((cache,)) + program)
    return files
