# SPDX-License-Identifier: Apache-2.0
"""Messages of type RDMA_MSGP, from the XDR of RFC 5666 and docs/dev/module-internals.md alone.

kmod/wire/padded.c is tested against this; the two share no line and no table.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import replace
from typing import NamedTuple

from wire import rpcrdma
from wire.rpcrdma import RDMA_MSG, Header, Read, RefusedError, Segment

__all__ = ["RDMA_MSGP", "Padded", "call", "decode", "encode", "find", "reply", "whole"]

RDMA_MSGP = 2
# the decoder looks no further
_MOST = 256


class Padded(NamedTuple):
    """Where the data of a message is, and which part of the RPC message it is."""

    position: int
    offset: int
    length: int
    rpc_length: int


def encode(header: Header, align: int, thresh: int) -> bytes:
    """The header of a message with padding."""
    version_1 = rpcrdma.encode(replace(header, proc=RDMA_MSG))
    words = struct.pack(">3I", RDMA_MSGP, align, thresh)
    return version_1[:12] + words + version_1[16:]


def decode(message: bytes) -> tuple[Header, int, int, int]:
    """The header a message starts with, rdma_align, rdma_thresh, and the header's length."""
    start = message[:_MOST]
    if len(start) < 24:
        raise RefusedError(errno.EBADMSG)
    proc, align, thresh = struct.unpack_from(">3I", start, 12)
    assert proc == RDMA_MSGP
    header, length = rpcrdma.decode(start[:12] + struct.pack(">I", RDMA_MSG) + start[24:])
    return replace(header, proc=RDMA_MSGP), align, thresh, length + 8


def find(message: bytes) -> Padded:
    """The data of a message; RefusedError if its numbers contradict each other."""
    header, align, thresh, length = decode(message)
    chunks = [(read.position, read.segments) for read in header.reads]
    chunks += [(0, segments) for segments in header.writes]
    _need(len(chunks) == 1 and header.reply is None and len(chunks[0][1]) == 1)
    position, (segment,) = chunks[0]
    behind = len(message) - align
    _need(segment.handle == 0 and length + segment.offset <= align < len(message))
    _need(position <= segment.offset and max(thresh, 1) <= segment.length)
    _need(segment.length <= behind <= segment.length + -segment.length % 4)
    return Padded(position, align, segment.length, segment.offset)


def call(
    xid: int, rpc: bytes, position: int, data: bytes, *, align: int = 1024, thresh: int = 4096,
    credit: int = 32,
) -> bytes:  # fmt: skip
    """A Call with ``data`` behind padding, which belongs at ``position`` of ``rpc``."""
    read = Read(position, (Segment(0, len(data), len(rpc)),))
    return whole(Header(xid, credit, RDMA_MSGP, (read,)), rpc, data, align, thresh)


def reply(
    xid: int, rpc: bytes, data: bytes, *, align: int = 1024, thresh: int = 1, credit: int = 32
) -> bytes:
    """A Reply with ``data`` behind padding."""
    writes = ((Segment(0, len(data), len(rpc)),),)
    return whole(Header(xid, credit, RDMA_MSGP, (), writes), rpc, data, align, thresh)


def whole(header: Header, rpc: bytes, data: bytes, align: int, thresh: int) -> bytes:
    """A message, whatever its header says."""
    start = encode(header, align, thresh) + rpc
    return start + bytes(max(align - len(start), 0)) + data


def _need(condition: bool) -> None:
    if not condition:
        raise RefusedError(errno.EBADMSG)
