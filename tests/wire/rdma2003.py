# SPDX-License-Identifier: Apache-2.0
"""Transport headers of 2003, from the XDR of the paper and from nothing else.

kmod/wire/header2003.c is tested against this; the two share no line and no table.  The paper's
header has no credits; here they follow the version, as in the extended header of the same year.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from wire.rpcrdma import Header, Read, RefusedError, Segment

__all__ = ["RDMA_DONE", "decode", "encode"]

RDMA_MSG, RDMA_NOMSG, RDMA_DONE = 0, 1, 3
_ENTRY = ">3IQ"


class _Entry(NamedTuple):
    """``clist`` of the paper: c_xdroff, c_len, c_shandle, c_saddr."""

    position: int
    length: int
    handle: int
    address: int


def encode(header: Header) -> bytes:
    start = struct.pack(">4I", header.xid, 0, header.credits, header.proc)
    if header.proc == RDMA_DONE:
        return start
    entries = [
        struct.pack(">I", 1) + struct.pack(_ENTRY, read.position, s.length, s.handle, s.offset)
        for read in header.reads
        for s in read.segments
    ]
    return start + b"".join(entries) + struct.pack(">I", 0)


def decode(message: bytes) -> tuple[Header, int]:
    """The header a message starts with, and its length in bytes."""
    xid, version, credit, proc = _words(message, 0, 4)
    if version:
        raise RefusedError(errno.EPROTONOSUPPORT)
    if proc == RDMA_DONE:
        return Header(xid, credit, proc), 16
    if proc not in (RDMA_MSG, RDMA_NOMSG):
        raise RefusedError(errno.EPROTO)
    entries = list(_entries(message))
    positions = [entry.position for entry in entries]
    _need(positions == sorted(positions) and not any(p % 4 for p in positions))
    reads = tuple(
        Read(position, tuple(Segment(e.handle, e.length, e.address) for e in group))
        for position, group in itertools.groupby(entries, attrgetter("position"))
    )
    _need(all(sum(s.length for s in read.segments) < 1 << 32 for read in reads))
    return Header(xid, credit, proc, reads), 20 + 24 * len(entries)


def _entries(message: bytes) -> Iterator[_Entry]:
    at = 16
    while True:
        (more,) = _words(message, at, 1)
        _need(more in (0, 1))
        if not more:
            return
        _need(at + 24 <= len(message))
        yield _Entry(*struct.unpack_from(_ENTRY, message, at + 4))
        at += 24


def _words(message: bytes, at: int, count: int) -> tuple[int, ...]:
    _need(at + 4 * count <= len(message))
    return struct.unpack_from(f">{count}I", message, at)


def _need(condition: bool) -> None:
    if not condition:
        raise RefusedError(errno.EBADMSG)
