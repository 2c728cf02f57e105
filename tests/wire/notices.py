# SPDX-License-Identifier: Apache-2.0
"""Notices of the personality optimistic, from docs/dev/module-internals.md and RFC 4506 alone.

kmod/wire/notice.c is tested against this; the two share no line and no table.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import NamedTuple

from wire.rpcrdma import RefusedError, Segment

__all__ = ["Credit", "Grant", "Notice", "Revoke", "decode", "encode"]

_GRANT, _REVOKE, _CREDIT = 1, 2, 3
_MOST_HANDLES = 16
# RFC 1813, section 2.3.3
_MOST_FH = 64


class Grant(NamedTuple):
    """The client may read an extent of a file; ``lifetime`` in seconds, ``position`` in bytes."""

    lifetime: int
    position: int
    extent: Segment
    fh: bytes
    ends: bool = False
    """Whether the file ends with the extent."""
    credential: int = 0
    """Digest of the credential of the READ."""


class Revoke(NamedTuple):
    """The handles become invalid."""

    handles: tuple[int, ...]


@dataclass(frozen=True)
class Credit:
    """The client has handled so many notices."""

    count: int


Notice = Grant | Revoke | Credit


def encode(notice: Notice) -> bytes:
    """The message."""
    match notice:
        case Grant(lifetime, position, extent, fh, ends, credential):
            words = struct.pack(">IIQ", _GRANT, lifetime, position)
            segment = struct.pack(">IIQ", extent.handle, extent.length, extent.offset)
            user = struct.pack(">IQI", ends, credential, len(fh))
            return words + segment + user + fh + bytes(-len(fh) % 4)
        case Revoke(handles):
            return struct.pack(f">{2 + len(handles)}I", _REVOKE, len(handles), *handles)
        case Credit(count):
            return struct.pack(">2I", _CREDIT, count)


def decode(message: bytes) -> Notice:
    """The notice; RefusedError if the message is none."""
    _need(len(message) >= 8)
    kind, second = struct.unpack_from(">2I", message)
    match kind:
        case 1:
            return _grant(message, second)
        case 2:
            _need(1 <= second <= _MOST_HANDLES and len(message) == 8 + 4 * second)
            return Revoke(struct.unpack_from(f">{second}I", message, 8))
        case 3:
            _need(second > 0 and len(message) == 8)
            return Credit(second)
    raise RefusedError(errno.EBADMSG)


def _grant(message: bytes, lifetime: int) -> Grant:
    _need(len(message) >= 48)
    position, *words, ends, user, size = struct.unpack_from(">QIIQIQI", message, 8)
    extent = Segment(*words)
    _need(ends <= 1 <= size <= _MOST_FH and len(message) == 48 + size + -size % 4)
    _need(extent.length > 0 and max(position, extent.offset) + extent.length < 1 << 64)
    return Grant(lifetime, position, extent, message[48 : 48 + size], bool(ends), user)


def _need(condition: bool) -> None:
    if not condition:
        raise RefusedError(errno.EBADMSG)
