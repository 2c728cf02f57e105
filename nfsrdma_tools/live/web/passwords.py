# SPDX-License-Identifier: Apache-2.0
"""HTTP basic authentication against bcrypt hashes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping

import bcrypt

__all__ = ["Passwords"]

# bytes of a password that bcrypt uses
_LONGEST = 72


class Passwords:
    """Checks passwords of ``users`` (names and bcrypt hashes).

    One check takes tens of milliseconds of CPU time by design.  So checks run in a thread, one at a
    time, and a password that was right once is remembered as a keyed hash.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._hashes = {name.encode(): value.encode() for name, value in users.items()}
        self._any = next(iter(self._hashes.values()), b"")
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()
        self._turn = asyncio.Lock()

    async def accept(self, credentials: str) -> bool:
        """Whether the ``credentials`` of a Basic authorization are right."""
        user, colon, password = _decoded(credentials).partition(b":")
        if not colon or len(password) > _LONGEST or b"\0" in password:
            return False
        digest = hashlib.blake2b(user + colon + password, key=self._key).digest()
        if digest in self._right:
            return True
        async with self._turn:
            right = await asyncio.to_thread(self._check, user, password)
        if right:
            self._right.add(digest)
        return right

    def _check(self, user: bytes, password: bytes) -> bool:
        # an unknown user takes as long as a known one
        right = bcrypt.checkpw(password, self._hashes.get(user, self._any))
        return right and user in self._hashes


def _decoded(credentials: str) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True)
    except (binascii.Error, ValueError):
        return b""
