# SPDX-License-Identifier: Apache-2.0
"""A client with a token of its own, by which it finds its connection in the server's debugfs.

It runs on the host of the server.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from testbed.node.mounts import SERVER
from testbed.peers import private_data, rpc
from testbed.peers.peer import GoneError, Host, Wish
from testbed.peers.site import FOLDER

__all__ = ["TokenClient", "contents", "host"]


@functools.cache
def host() -> Host:
    """The host of all clients of this process."""
    return Host()


class TokenClient:
    """A connection to the server."""

    xid = 0x1000

    def __init__(self, capabilities: int, **wish: Any) -> None:
        self.token = int.from_bytes(os.urandom(8), "big")
        own = private_data.extended(capabilities, self.token)
        self.connection = host().connect(Wish(own, **wish))
        self.agreed, token = private_data.parsed(self.connection.private)
        assert token == self.token

    def raw(self, message: bytes) -> None:
        self.connection.finish(self.connection.send(message))

    def next_xid(self) -> int:
        self.xid += 1
        return self.xid

    def answer(self, call: bytes) -> bytes:
        """Send a Call of version 1 without chunks, with an XID of its own; returns its Reply."""
        xid = rpc.words(self.next_xid())
        self.connection.send(xid + rpc.words(1, 32, 0, 0, 0, 0) + xid + call[4:])
        message = self.connection.next()
        if message is None:
            raise GoneError(self.connection.ended or "no Reply")
        assert message.data[:4] == xid
        return message.data[28:]

    def answers(self) -> bool:
        """Whether a NULL Call is answered."""
        return rpc.accepted(self.answer(rpc.call(0, rpc.NULL)))

    def folder(self) -> Path:
        """The folder of the connection in the server's debugfs."""
        word = f"token {self.token:016x}\n"
        (path,) = (path for path in SERVER.glob("*/connection") if word in path.read_text())
        return path.parent

    def values(self, *names: str) -> list[int]:
        """Values of the connection in the server's debugfs."""
        texts = [(self.folder() / name).read_text() for name in ("connection", "counters")]
        rows = dict(line.split(" ", 1) for text in texts for line in text.splitlines())
        return [int(rows[name]) for name in names]


def contents(name: str) -> bytes:
    """The contents of a file of the server."""
    return (FOLDER / name).read_bytes()
