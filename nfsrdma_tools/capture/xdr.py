# SPDX-License-Identifier: Apache-2.0
"""Reads XDR (RFC 4506): the units of RPC messages and of RPC-over-RDMA headers."""

from __future__ import annotations

import struct

__all__ = ["Reader"]

# most headers have fewer words; those with many segments have more
_FIRST_WORDS = 32


class Reader:
    """Reads words.  A busy mount sends thousands of headers a second: few calls unpack one.

    ``at`` is the position of the first word in bytes.  ValueError if the message is too short.
    """

    def __init__(self, message: bytes, at: int = 0) -> None:
        self._message = message
        self._next = at // 4
        self._unpack(_FIRST_WORDS)

    def _unpack(self, most: int) -> None:
        """Unpack words from the next one on."""
        self._first = self._next
        count = max(min(len(self._message) // 4 - self._next, most), 0)
        self._words = struct.unpack_from(f">{count}I", self._message, self.at) if count else ()

    @property
    def at(self) -> int:
        """The position of the next word, in bytes."""
        return 4 * self._next

    def word(self) -> int:
        """The next word."""
        return self.words(1)[0]

    def words(self, count: int) -> tuple[int, ...]:
        """The next words."""
        start = self._next - self._first
        if start + count > len(self._words):
            self._unpack(max(count, 2 * len(self._words), _FIRST_WORDS))
            start = 0
            if count > len(self._words):
                raise ValueError("the message is cut")
        self._next += count
        return self._words[start : start + count]

    def skip(self, size: int) -> None:
        """Go on behind ``size`` bytes and their padding."""
        self._next += (size + 3) // 4
        if self.at > len(self._message):
            raise ValueError("the message is cut")

    def opaque(self) -> None:
        """Skip data of variable length."""
        self.skip(self.word())
