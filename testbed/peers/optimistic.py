# SPDX-License-Identifier: Apache-2.0
"""The second connection of the personality optimistic, as docs/dev/module-internals.md has it."""

from __future__ import annotations

from wire.notices import Grant, Notice, Revoke, decode

from testbed.peers.lanes import LANE
from testbed.peers.peer import Connection
from testbed.peers.private_data import extended

__all__ = ["OPTIMISTIC", "asked", "granted", "notices", "offered", "revoked"]

OPTIMISTIC = 1 << 4
_ORDER = 16


def asked(token: int) -> bytes:
    """The private data of a client's second connection."""
    return extended(OPTIMISTIC | LANE, token)


def offered(token: int, order: int = 8) -> bytes:
    """The server's answer to it; an extent has 2 ** ``order`` pages."""
    return extended(OPTIMISTIC | LANE | order << _ORDER, token)


def notices(side: Connection, seconds: float) -> list[Notice]:
    """The notices that have arrived, and those that do within a time, up to the first pause."""
    received = []
    while message := side.next(seconds):
        received.append(decode(message.data))
    return received


def granted(side: Connection) -> Grant | None:
    """The next grant, or None if the connection ends first."""
    while message := side.next():
        notice = decode(message.data)
        if isinstance(notice, Grant):
            return notice
    return None


def revoked(side: Connection, handle: int) -> bool:
    """Whether a notice revokes a handle, before the connection ends."""
    while message := side.next():
        notice = decode(message.data)
        if isinstance(notice, Revoke) and handle in notice.handles:
            return True
    return False
