# SPDX-License-Identifier: Apache-2.0
"""A client of the personality padded, whose server has files ``data`` and ``written``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from wire import rdma5666, rpcrdma
from wire.rdma5666 import RDMA_MSGP
from wire.rpcrdma import RDMA_ERROR, RDMA_MSG, Header, RefusedError, Segment

from testbed.peers import rpc
from testbed.peers.peer import GoneError
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient

CREDITS = 32
PADDED, UNITS = 2, 4 << 8
SIZE, ALIGN, THRESH = 8192, 1024, 4096
LIMIT = 20.0


class Client(TokenClient):
    """A client of padded."""

    def __init__(self, capabilities: int = PADDED | UNITS) -> None:
        super().__init__(capabilities, size=32768, receives=CREDITS * 2)
        self.data, self.written = handles(FOLDER, "data", "written")

    # --- what is sent ---

    def read(self, xid: int, size: int, at: int, *chunks: Segment, **lists: Any) -> None:
        """A READ that offers ``chunks`` as its Write chunk."""
        head = Header(xid, CREDITS, RDMA_MSG, writes=(chunks,) if chunks else (), **lists)
        arguments = rpc.opaque(self.data) + rpc.hyper(at) + rpc.words(size)
        self.raw(rpcrdma.encode(head) + rpc.call(xid, rpc.READ, arguments))

    # --- what comes back ---

    def take(self) -> tuple[Header, bytes, bytes]:
        """The header of the next message, the RPC message and its data."""
        message = self.connection.next(LIMIT)
        if message is None:
            raise GoneError(self.connection.ended or "no answer")
        if message.data[12:16] != rpc.words(RDMA_MSGP):
            head, length = rpcrdma.decode(message.data)
            return head, message.data[length:], b""
        data = rdma5666.find(message.data)
        head, align, _, length = rdma5666.decode(message.data)
        assert align == ALIGN
        assert not any(message.data[length + data.rpc_length : align]), "padding is not zero"
        body = message.data[length : length + data.rpc_length]
        return head, body, message.data[align : align + data.length]

    def word(self) -> str:
        """In the words of calls.py."""
        try:
            head, body, _ = self.take()
        except GoneError:
            return "ended" if self.connection.ended else "dropped"
        except RefusedError:
            return "malformed"
        if head.proc == RDMA_ERROR:
            return "chunk" if head.error == rpcrdma.ERR_CHUNK else "vers"
        return "ok" if rpc.accepted(body) else "rpc"

    def lives(self) -> bool:
        """A NULL call is answered."""
        head = Header(99, CREDITS, RDMA_MSG)
        with suppress(GoneError):
            self.raw(rpcrdma.encode(head) + rpc.call(99, rpc.NULL))
            return self.word() == "ok"
        return False


def write_call(
    client: Client, size: int = SIZE, announced: int | None = None, xid: int = 7
) -> bytes:
    """The RPC message of a WRITE at offset 0 without its data."""
    count = size if announced is None else announced
    arguments = rpc.opaque(client.written) + rpc.hyper(0) + rpc.words(count, 2, count)
    return rpc.call(xid, rpc.WRITE, arguments)


class Sender(Client):
    """Its messages are sound."""

    def null(self, xid: int) -> bytes:
        return rpcrdma.encode(Header(xid, CREDITS, RDMA_MSG)) + rpc.call(xid, rpc.NULL)

    def bases(self) -> list[bytes]:
        def write(size: int) -> bytes:
            body = write_call(self, size)
            return rdma5666.call(7, body, len(body), bytes(size))

        def read(size: int, *chunks: Segment) -> bytes:
            head = Header(8, CREDITS, RDMA_MSG, writes=(chunks,) if chunks else ())
            arguments = rpc.opaque(self.data) + rpc.hyper(0) + rpc.words(size)
            return rpcrdma.encode(head) + rpc.call(8, rpc.READ, arguments)

        offer = Segment(0, SIZE, 0)
        return [write(4096), write(5001), read(SIZE, offer), read(100, offer), read(100)]
