# SPDX-License-Identifier: Apache-2.0
"""A client of the personality read-read, whose server has files ``data`` and ``written``."""

from __future__ import annotations

import time
from typing import Any

from wire import rdma2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import RDMA_NOMSG, Header, Read, Segment

from testbed.peers import rpc
from testbed.peers.peer import GoneError
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient, host
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ

CREDITS = 32
READ_READ = 1
SIZE = 65536
PAGE = 4096
# statuses of a Read or Write that the server's card refuses
REFUSED = (9, 10, 11)
LIMIT = 60.0


class Client(TokenClient):
    """A client of 2003."""

    def __init__(self, **wish: Any) -> None:
        super().__init__(READ_READ, **wish)
        (self.file,) = handles(FOLDER, "data")

    # --- what is sent ---

    def send(self, head: Header, body: bytes = b"") -> None:
        self.raw(rdma2003.encode(head) + body)

    def call(self, xid: int, procedure: int, arguments: bytes = b"") -> None:
        self.send(Header(xid, CREDITS, 0), rpc.call(xid, procedure, arguments))

    def ask(self, xid: int, size: int = SIZE, at: int = 0) -> None:
        self.call(xid, rpc.READ, rpc.opaque(self.file) + rpc.hyper(at) + rpc.words(size))

    def done(self, xid: int) -> None:
        self.send(Header(xid, CREDITS, RDMA_DONE))

    # --- what comes back ---

    def take(self) -> tuple[Header, bytes]:
        message = self.connection.next()
        if message is None:
            raise GoneError(self.connection.ended)
        head, length = rdma2003.decode(message.data)
        return head, message.data[length:]

    def exposed(self, xid: int, size: int = SIZE, at: int = 0) -> list[Segment]:
        """The segments of the answer to a READ that the server leaves in its memory."""
        self.ask(xid, size, at)
        head, _ = self.take()
        assert (head.xid, len(head.reads)) == (xid, 1)
        segments = list(head.reads[0].segments)
        assert sum(segment.length for segment in segments) == size
        return segments

    def fetch(self, segments: list[Segment]) -> bytes:
        """RDMA Reads that have to succeed."""
        parts = []
        for segment in segments:
            status, data = self.connection.read(segment.length, segment.offset, segment.handle)
            assert status == 0, f"RDMA Read: status {status}"
            parts.append(data)
        return b"".join(parts)

    def cannot_read(self, segment: Segment, more: int = 0) -> None:
        """An RDMA Read brings nothing, and ends the connection."""
        size = segment.length + more
        status, data = self.connection.try_read(size, segment.offset, segment.handle)
        assert status in REFUSED
        assert not any(data)
        assert self.ends()

    def ends(self) -> bool:
        host().wait(lambda: bool(self.connection.ended), LIMIT, late=False)
        return bool(self.connection.ended)

    def lives(self) -> bool:
        """A NULL call is answered."""
        self.call(99, rpc.NULL)
        head, body = self.take()
        return head.xid == 99 and rpc.accepted(body)

    def wait_for(self, name: str, value: int) -> None:
        """Wait until a figure of the server has a value."""
        end = time.monotonic() + LIMIT
        while self.values(name) != [value]:
            assert time.monotonic() < end, (name, self.values(name))
            host().wait(lambda: False, 0.05, late=False)


class Sender(Client):
    """A client with memory that the server may read."""

    def __init__(self) -> None:
        super().__init__()
        (self.target,) = handles(FOLDER, "written")
        self.memory = self.connection.memory(SIZE, LOCAL_WRITE | REMOTE_READ)
        whole = rpc.call(9, rpc.NULL)
        self.memory.view[: len(whole)] = whole

    def null(self, xid: int) -> bytes:
        return rdma2003.encode(Header(xid, CREDITS, 0)) + rpc.call(xid, rpc.NULL)

    def bases(self) -> list[bytes]:
        def read(size: int) -> bytes:
            return rpc.opaque(self.file) + rpc.hyper(0) + rpc.words(size)

        def named(length: int) -> Segment:
            return Segment(self.memory.key, length, self.memory.address)

        count = 20000
        arguments = rpc.opaque(self.target) + rpc.hyper(0) + rpc.words(count, 0, count)
        write, whole = rpc.call(8, rpc.WRITE, arguments), rpc.call(9, rpc.NULL)
        heads = (
            (Header(7, CREDITS, 0), rpc.call(7, rpc.READ, read(SIZE))),
            (Header(7, CREDITS, 0), rpc.call(7, rpc.READ, read(1000))),
            (Header(8, CREDITS, 0, (Read(len(write), (named(count),)),)), write),
            (Header(9, CREDITS, RDMA_NOMSG, (Read(0, (named(len(whole)),)),)), b""),
            (Header(7, CREDITS, RDMA_DONE), b""),
        )
        return [rdma2003.encode(head) + body for head, body in heads]
