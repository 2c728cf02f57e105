# SPDX-License-Identifier: Apache-2.0
"""A server with wrong padding (personality padded)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wire import rdma5666, rpcrdma
from wire.rdma5666 import RDMA_MSGP
from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, Segment

from testbed.peers import rpc, trick_server
from testbed.peers.application import SIZE
from testbed.peers.peer import Connection
from testbed.peers.proxy import CREDITS, Peer
from testbed.peers.trick_server import ENDED, ERROR, OK, Trick, Want, again, stranger

ALIGN = 1024


@dataclass
class Answer(trick_server.Answer):
    """The Reply to a READ: its RPC message without the data, and the data."""

    xid: int
    rpc: bytes
    data: bytes
    connection: Connection
    at: int
    """position of the data in the RPC message"""

    @property
    def segment(self) -> Segment:
        return Segment(0, len(self.data), len(self.rpc))

    def sound(self) -> bytes:
        return rdma5666.reply(self.xid, self.rpc, self.data)

    def send_with(
        self, align: int = ALIGN, thresh: int = 1, more: bytes = b"", **numbers: int
    ) -> None:
        """The answer with other numbers."""
        self.listed(((replace(self.segment, **numbers),),), align, thresh, more)

    def listed(self, writes: Any, align: int = ALIGN, thresh: int = 1, more: bytes = b"",
               **lists: Any) -> None:  # fmt: skip
        head = Header(self.xid, CREDITS, RDMA_MSGP, writes=writes, **lists)
        message = rdma5666.whole(head, self.rpc, self.data + more, align, thresh)
        self.connection.send(message)

    def send_version_1(self, body: bytes, **fields: Any) -> None:
        head = Header(**{"xid": self.xid, "credits": CREDITS, "proc": RDMA_MSG, **fields})
        self.connection.send(rpcrdma.encode(head) + body)


def numbers(**values: int) -> Trick:
    """The answer states other numbers."""
    return lambda a: a.send_with(**values)


def stated_alignment(value: int) -> Trick:
    """The header states another alignment than the message has."""
    return lambda a: a.connection.send(a.sound()[:16] + rpc.words(value) + a.sound()[20:])


def with_data(change: Callable[[bytes], bytes]) -> Trick:
    """The answer has other data than the RPC message states."""

    def play(answer: Answer) -> None:
        answer.data = change(answer.data)
        answer.send_with()

    return play


def with_padding(answer: Answer) -> None:
    """The XDR padding follows, as it may."""
    answer.data = answer.data[:-3]
    size = rpc.words(len(answer.data))
    answer.rpc = answer.rpc[:-12] + size + answer.rpc[-8:-4] + size
    answer.send_with(more=bytes(3))


TRICKS: dict[str, tuple[Trick, Want]] = {
    "honest": (Answer.send, OK),
    # in a message of version 1, as long as the client's receives
    "plain": (lambda a: a.send_version_1(a.rpc[: a.at] + a.data + a.rpc[a.at :]), OK),
    "again": (again, OK),
    "stranger": (stranger, OK),
    # the NFS client takes it for a short READ, and asks for the rest
    "shorter": (with_data(lambda data: data[: SIZE // 2]), OK),
    "with padding": (with_padding, OK),
    # than the application reads
    "longer": (with_data(lambda data: data + bytes(4096)), ERROR),
    "no RPC message": (numbers(offset=0), ERROR),
    # as if the data had been written to memory that the Call named
    "chunk of version 1": (lambda a: a.send_version_1(a.rpc, writes=((a.segment,),)), ERROR),
    "nothing": (
        lambda a: a.send_version_1(b"", proc=RDMA_NOMSG, writes=((a.segment,),)),
        ERROR,
    ),
    "higher threshold": (numbers(thresh=SIZE + 1), ENDED),
    "other alignment": (numbers(align=2048), ENDED),
    "alignment that lies": (stated_alignment(2048), ENDED),
    "alignment behind": (stated_alignment(0xFFFFFFFC), ENDED),
    "alignment in header": (stated_alignment(16), ENDED),
    "longer than message": (numbers(length=SIZE + 4), ENDED),
    "much longer": (numbers(length=0xFFFFFFFF), ENDED),
    "shorter than message": (numbers(length=SIZE - 8), ENDED),
    "empty": (numbers(length=0), ENDED),
    "RPC message too long": (numbers(offset=ALIGN), ENDED),
    "RPC message of 4 GiB": (numbers(offset=1 << 32), ENDED),
    "key": (numbers(handle=7), ENDED),
    "two segments": (lambda a: a.listed(((a.segment, a.segment),)), ENDED),
    "two chunks": (lambda a: a.listed(((a.segment,), (a.segment,))), ENDED),
    "no list": (lambda a: a.listed(()), ENDED),
    "Read list": (lambda a: a.listed((), reads=(Read(40, (a.segment,)),)), ENDED),
    "Reply chunk": (lambda a: a.listed(((a.segment,),), reply=(a.segment,)), ENDED),
    "longer than receives": (with_data(lambda data: data + bytes(40000)), ENDED),
    "cut": (lambda a: a.connection.send(a.sound()[:30]), ENDED),
    "shorter than header": (lambda a: a.connection.send(a.sound()[:20]), ENDED),
}


class Server(trick_server.TrickServer):
    """A server with the personality."""

    size = 65536

    def header(self, message: bytes) -> Header:
        padded = message[12:16] == rpc.words(RDMA_MSGP)
        return rdma5666.decode(message)[0] if padded else super().header(message)

    def _received(self, peer: Peer, message: bytes) -> None:
        header, size = rpcrdma.decode(message)
        xid, reply, place = self.forward(peer, header, message[size:])
        if not place or not header.writes:
            head = Header(xid, CREDITS, RDMA_MSG)
            peer.connection.send(rpcrdma.encode(head) + reply)
            return
        ((offer,),) = header.writes
        assert offer.handle == 0, "the client names memory"
        inline, data = rpc.split(reply, place)
        self.play(Answer(xid, inline, data, peer.connection, place[0]))
