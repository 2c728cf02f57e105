# SPDX-License-Identifier: Apache-2.0
"""Private data of a connection (RFC 8797), and the extension of our module that follows it."""

from __future__ import annotations

import struct

__all__ = ["extended", "parsed"]

MAGIC, EXTENSION = bytes.fromhex("f6ab0e18"), b"NFRX"


def extended(capabilities: int, token: int, kilobytes: int = 4) -> bytes:
    """Both, for messages of this size, and without remote invalidation."""
    sizes = bytes((1, 0, kilobytes - 1, kilobytes - 1))
    version = bytes((1, 0, 0, 0))
    return MAGIC + sizes + EXTENSION + version + struct.pack(">IQ", capabilities, token)


def parsed(data: bytes) -> tuple[int, int]:
    """The capabilities and the token; 0 if there is no extension."""
    if len(data) < 28 or data[8:12] != EXTENSION:
        return 0, 0
    capabilities, token = struct.unpack_from(">IQ", data, 16)
    return capabilities, token
