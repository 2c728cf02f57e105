# SPDX-License-Identifier: Apache-2.0
"""``padded_node.py SERVER PORT FOLDER CASE [SEED COUNT]``: a client that breaks rules of padded.

The server accepts the personality.  FOLDER, below /export, holds a file ``data`` of 4 MiB and a
file ``written`` of 64 KiB.  A case is a function of this file; prints what it found as JSON.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wire import rdma5666, rpcrdma
from wire.rdma5666 import RDMA_MSGP
from wire.rpcrdma import RDMA_ERROR, RDMA_MSG, Header, Read, RefusedError, Segment

from hostile import rpc
from hostile.messages import mutants
from hostile.peer import GoneError
from hostile.site import handles
from hostile.token_client import HOST, TokenClient, contents, run_case

CREDITS = 32
PADDED, UNITS = 2, 4 << 8
SIZE, ALIGN, THRESH = 8192, 1024, 4096
LIMIT = 20.0


class Client(TokenClient):
    """A client of padded."""

    def __init__(self, capabilities: int = PADDED | UNITS) -> None:
        super().__init__(capabilities, size=32768, receives=CREDITS * 2)
        self.data, self.written = handles(sys.argv[1], f"/export/{sys.argv[3]}", "data", "written")

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
        found = rdma5666.find(message.data)
        head, align, _, length = rdma5666.decode(message.data)
        assert align == ALIGN
        assert not any(message.data[length + found.rpc_length : align]), "padding is not zero"
        body = message.data[length : length + found.rpc_length]
        return head, body, message.data[align : align + found.length]

    def answer(self) -> str:
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
            return self.answer() == "ok"
        return False


def write_call(
    client: Client, size: int = SIZE, announced: int | None = None, xid: int = 7
) -> bytes:
    """The RPC message of a WRITE at offset 0 without its data."""
    count = size if announced is None else announced
    arguments = rpc.opaque(client.written) + rpc.hyper(0) + rpc.words(count, 2, count)
    return rpc.call(xid, rpc.WRITE, arguments)


# --- cases ---


def honest() -> dict[str, Any]:
    client, data = Client(), os.urandom(SIZE)
    body = write_call(client)
    client.raw(rdma5666.call(7, body, len(body), data))
    wrote = client.answer()
    odd, late = write_call(client, 4097, xid=8), os.urandom(4097)
    client.raw(rdma5666.call(8, odd, len(odd), late))
    wrote_odd = client.answer()
    there = contents("written")[:SIZE] == late + data[4097:]
    reads = {}
    for size, at in ((SIZE, 0), (16384, 4096), (5000, 777), (100, 3)):
        client.read(9, size, at, Segment(0, size, 0))
        head, body, found = client.take()
        inline = rpc.read_data(body)
        assert inline is not None
        if not found:
            found = body[inline[0] : inline[0] + inline[1]]
        reads[str(size)] = [head.proc, found == contents("data")[at : at + size]]
    # behind the end of the file
    client.read(10, SIZE, 1 << 30, Segment(0, SIZE, 0))
    empty = client.answer()
    names = ("padded_calls", "padded_replies", "padded_bytes", "read_chunks", "write_chunks")
    return {
        **{"agreed": client.agreed & 0xFF, "wrote": [wrote, wrote_odd], "there": there},
        **{"reads": reads, "empty": empty, "counted": client.values(*names)},
        "lives": client.lives(),
    }


def lies() -> dict[str, Any]:
    """The server's answers to messages that contradict themselves, and whether it goes on."""
    before = contents("written")
    first = Client()
    body, data = write_call(first), bytes(SIZE)
    at, segment = len(body), Segment(0, SIZE, len(body))
    head = Header(7, CREDITS, RDMA_MSGP, (Read(at, (segment,)),))

    def with_padding(
        align: int = ALIGN, thresh: int = THRESH, position: int = at, **numbers: int
    ) -> bytes:
        reads = (Read(position, (replace(segment, **numbers),)),)
        return rdma5666.whole(replace(head, reads=reads), body, data, align, thresh)

    def listed(**lists: Any) -> bytes:
        return rdma5666.whole(replace(head, **lists), body, data, ALIGN, THRESH)

    sound = with_padding()
    words = rpc.words
    messages = {
        "threshold above the data": with_padding(thresh=SIZE + 1),
        "alignment of 512": with_padding(align=512),
        "alignment of 2048": with_padding(align=2048),
        "alignment of 1020": with_padding(align=1020),
        "alignment inside the header": sound[:16] + words(32) + sound[20:],
        "alignment behind the message": sound[:16] + words(1 << 20) + sound[20:],
        "alignment of 4 GiB": sound[:16] + words(0xFFFFFFFC) + sound[20:],
        "data longer than the message": with_padding(length=SIZE + 1),
        "data much longer": with_padding(length=0xFFFFFFFF),
        "data shorter than the message": with_padding(length=SIZE - 4),
        "no data": with_padding(length=0, thresh=0),
        "a key": with_padding(handle=7),
        "an RPC message longer than the padding": with_padding(offset=ALIGN),
        "an RPC message of 4 GiB": with_padding(offset=1 << 32),
        "no RPC message": with_padding(offset=0, position=0),
        "an RPC message of 4 bytes": with_padding(offset=4, position=4),
        "position in the RPC header": with_padding(position=8),
        "position zero": with_padding(position=0),
        "position behind the RPC message": with_padding(position=at + 4),
        "position far behind": with_padding(position=0xFFFFFFFC),
        "position inside a word": with_padding(position=at - 2),
        "two segments": listed(reads=(Read(at, (segment, segment)),)),
        "two chunks": listed(reads=(Read(at - 4, (segment,)), Read(at, (segment,)))),
        "a Write list": listed(reads=(), writes=((segment,),)),
        "both lists": listed(writes=((segment,),)),
        "a Reply chunk": listed(reply=(segment,)),
        "no list": words(7, 1, CREDITS, 2, ALIGN, THRESH),
        "another xid": rdma5666.call(8, body, at, data),
        "a reply": rdma5666.call(7, words(7, 1, 0, 0, 0, 0) + bytes(40), 40, data),
    }
    found = {}
    for name, message in messages.items():
        client = Client()
        client.raw(message)
        found[name] = [client.answer(), client.lives()]
        client.connection.close()
    return {"found": found, "same": contents("written") == before}


def senseless() -> dict[str, Any]:
    """Sound messages whose RPC states another size of its data."""
    client = Client()
    found = {}
    for name, size in {"more": 65536, "less": 4096}.items():
        body = write_call(client, announced=size)
        client.raw(rdma5666.call(7, body, len(body), bytes(SIZE)))
        found[name] = [client.answer(), client.lives()]
    null = rpc.call(7, rpc.NULL)
    client.raw(rdma5666.call(7, null, len(null), bytes(SIZE)))
    found["no arguments"] = [client.answer(), client.lives()]
    return found


def long() -> dict[str, Any]:
    """More than a receive of the server holds."""
    client = Client()
    body = write_call(client, 60000)
    with suppress(GoneError):
        client.raw(rdma5666.call(7, body, len(body), bytes(60000)))
    HOST.wait(lambda: bool(client.connection.ended), LIMIT, late=False)
    return {"ended": bool(client.connection.ended)}


def offers() -> dict[str, Any]:
    """Offers for the data of a READ that the server cannot use."""
    one = Segment(0, SIZE, 0)
    cases: dict[str, tuple[int, tuple[Segment, ...], dict[str, Any]]] = {
        "less than the READ": (SIZE, (replace(one, length=4096),), {}),
        "nothing": (SIZE, (replace(one, length=0),), {}),
        "more than a message": (1 << 18, (replace(one, length=1 << 18),), {}),
        "more than its own receives": (32768, (replace(one, length=32768),), {}),
        "4 GiB, for a small READ": (SIZE, (replace(one, length=0xFFFFFFFF),), {}),
        "a Reply chunk as well": (SIZE, (one,), {"reply": (replace(one, handle=9),)}),
        "two segments": (SIZE, (one, one), {}),
    }
    found = {}
    for name, (size, chunks, lists) in cases.items():
        client = Client()
        client.read(7, size, 0, *chunks, **lists)
        found[name] = [client.answer(), client.lives()]
        client.connection.close()
    return found


def unasked() -> dict[str, Any]:
    """A client that did not ask for the personality."""
    client = Client(capabilities=0)
    body = write_call(client)
    client.raw(rdma5666.call(7, body, len(body), bytes(SIZE))[:4000])
    return {"agreed": client.agreed, "answer": client.answer(), "lives": client.lives()}


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

        one = Segment(0, SIZE, 0)
        return [write(4096), write(5001), read(SIZE, one), read(100, one), read(100)]


def mutated() -> dict[str, Any]:
    return mutants(sys.argv[5], range(int(sys.argv[6])), Sender)


CASES = (honest, lies, senseless, long, offers, unasked, mutated)


run_case(CASES)
