# SPDX-License-Identifier: Apache-2.0
"""SipHash-2-4, from the paper of Aumasson and Bernstein (2012), section 2."""

from __future__ import annotations

import struct

__all__ = ["siphash"]

_CONSTANTS = struct.unpack(">4Q", b"somepseudorandomlygeneratedbytes")
_WORD = (1 << 64) - 1


def siphash(data: bytes, key: tuple[int, int]) -> int:
    """The digest of 64 bits."""
    v: list[int] = [constant ^ part for constant, part in zip(_CONSTANTS, key * 2, strict=True)]
    tail = data[len(data) // 8 * 8 :].ljust(7, b"\0") + bytes((len(data) & 0xFF,))
    whole = data[: len(data) // 8 * 8] + tail
    for (word,) in struct.iter_unpack("<Q", whole):
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    _rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        for a, b, left, other in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
            v[a] = (v[a] + v[b]) & _WORD
            v[b] = _rotated(v[b], left) ^ v[a]
            v[a] = _rotated(v[a], other)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _WORD
