# SPDX-License-Identifier: Apache-2.0
"""A hostile server of 2003 (personality read-read)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from wire import rdma2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, Segment

from testbed.peers import rpc, trick_server
from testbed.peers.application import SIZE
from testbed.peers.peer import Connection, Memory
from testbed.peers.proxy import CREDITS, Peer
from testbed.peers.trick_server import ENDED, ERROR, OK, Trick, Want, again, stranger
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ

ROOM = 1 << 16


@dataclass
class Answer(trick_server.Answer):
    """The Reply to a READ: a header, the inline part, and the exposed data."""

    head: Header
    inline: bytes
    memory: Memory
    connection: Connection

    @property
    def xid(self) -> int:
        return self.head.xid

    @xid.setter
    def xid(self, value: int) -> None:
        self.head = replace(self.head, xid=value)

    @property
    def chunk(self) -> Read:
        return self.head.reads[0]

    @property
    def segment(self) -> Segment:
        return self.chunk.segments[0]

    def sound(self) -> bytes:
        return rdma2003.encode(self.head) + self.inline

    def send_named(self, *segments: Segment, position: int | None = None, **head: Any) -> None:
        """The answer with other segments, at another position."""
        at = self.chunk.position if position is None else position
        self.head = replace(self.head, reads=(Read(at, segments),), **head)
        self.send()


def named(position: int | None = None, **numbers: int) -> Trick:
    """The segment has other numbers."""
    return lambda a: a.send_named(replace(a.segment, **numbers), position=position)


def cut_into(count: int, size: int) -> Trick:
    """The segment comes in pieces."""

    def play(answer: Answer) -> None:
        whole = answer.segment
        offsets = range(whole.offset, whole.offset + count * size, size)
        answer.send_named(*(replace(whole, length=size, offset=offset) for offset in offsets))

    return play


def twice(answer: Answer) -> None:
    """Two chunks."""
    first = answer.chunk
    answer.head = replace(answer.head, reads=(Read(first.position - 4, first.segments), first))
    answer.send()


def without_chunk(proc: int) -> Trick:
    """A header alone, of another kind."""
    return lambda a: a.connection.send(rdma2003.encode(replace(a.head, reads=(), proc=proc)))


def whole_too_long(answer: Answer) -> None:
    """A whole message that is longer than the reply buffer."""
    answer.inline = b""
    answer.send_named(replace(answer.segment, length=ROOM), position=0, proc=RDMA_NOMSG)


def whole(answer: Answer) -> None:
    """The whole message by chunk, which the protocol allows."""
    at, data = answer.chunk.position, answer.memory.view[:SIZE].tobytes()
    message = answer.inline[:at] + data + answer.inline[at:]
    answer.memory.view[: len(message)] = message
    answer.inline = b""
    answer.send_named(replace(answer.segment, length=len(message)), position=0, proc=RDMA_NOMSG)


def stale(answer: Answer) -> None:
    """The key is not valid any more."""
    answer.memory.deregister()
    answer.send()


TRICKS: dict[str, tuple[Trick, Want]] = {
    "honest": (Answer.send, OK),
    "whole": (whole, OK),
    # the most that the client accepts
    "64 pieces": (cut_into(64, SIZE // 64), OK),
    "again": (again, OK),
    "stranger": (stranger, OK),
    # more bytes than the application reads
    "longer": (named(length=SIZE + 4096), ERROR),
    "much longer": (named(length=0xFFFFFFFF), ERROR),
    "empty": (named(length=0), ERROR),
    # the position is behind the inline part
    "far": (lambda a: a.send_named(a.segment, position=len(a.inline) + 4), ERROR),
    "far away": (named(position=0xFFFFFFFC), ERROR),
    # with an inline part
    "at zero": (named(position=0), ERROR),
    "twice": (twice, ERROR),
    "whole and inline": (lambda a: a.send_named(a.segment, position=0, proc=RDMA_NOMSG), ERROR),
    "nothing": (without_chunk(RDMA_NOMSG), ERROR),
    "whole, too long": (whole_too_long, ERROR),
    # the NFS client takes it for a short READ, and asks for the rest
    "shorter": (named(length=SIZE // 2), OK),
    "stale": (stale, ENDED),
    # before the memory that the key is for
    "elsewhere": (
        lambda a: a.send_named(replace(a.segment, offset=a.segment.offset - 4096)),
        ENDED,
    ),
    "done": (without_chunk(RDMA_DONE), ENDED),
    "version 1": (
        lambda a: a.connection.send(rpc.words(a.xid, 1, CREDITS, 0, 0, 0, 0) + a.inline),
        ENDED,
    ),
    "short": (lambda a: a.connection.send(rdma2003.encode(a.head)[:30]), ENDED),
    "65 pieces": (cut_into(65, 64), ENDED),
}


class Server(trick_server.TrickServer):
    """A server of 2003."""

    def header(self, message: bytes) -> Header:
        return rdma2003.decode(message)[0]

    def _received(self, peer: Peer, message: bytes) -> None:
        header, size = rdma2003.decode(message)
        if header.proc == RDMA_DONE:
            self.story.dones += 1
            return
        xid, reply, place = self.forward(peer, header, message[size:])
        head = Header(xid, CREDITS, RDMA_MSG)
        if not place:
            peer.connection.send(rdma2003.encode(head) + reply)
            return
        inline, data = rpc.split(reply, place)
        memory = peer.connection.memory(ROOM, LOCAL_WRITE | REMOTE_READ)
        memory.view[: len(data)] = data
        chunk = Read(place[0], (Segment(memory.key, len(data), memory.address),))
        self.play(Answer(replace(head, reads=(chunk,)), inline, memory, peer.connection))
