# SPDX-License-Identifier: Apache-2.0
"""A hostile server of 2003 (personality read-read)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wire import rdma2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, Segment

from testbed.peers import rpc, trick_server
from testbed.peers.application import SIZE
from testbed.peers.peer import Connection, Memory
from testbed.peers.proxy import CREDITS, Peer
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ

ROOM = 1 << 16


@dataclass
class Answer:
    """The Reply to a READ: a header, the inline part, and the exposed data."""

    head: Header
    inline: bytes
    memory: Memory
    connection: Connection

    @property
    def xid(self) -> int:
        return self.head.xid

    @property
    def chunk(self) -> Read:
        return self.head.reads[0]

    @property
    def segment(self) -> Segment:
        return self.chunk.segments[0]

    def named(self, *segments: Segment, position: int | None = None, **head: Any) -> None:
        at = self.chunk.position if position is None else position
        self.head = replace(self.head, reads=(Read(at, segments),), **head)

    def sound(self) -> bytes:
        return rdma2003.encode(self.head) + self.inline

    def send(self) -> None:
        self.connection.send(self.sound())


Trick = Callable[[Answer], None]


def honest(answer: Answer) -> None:
    answer.send()


def longer(answer: Answer) -> None:
    """The chunk has more bytes than the application reads."""
    answer.named(replace(answer.segment, length=SIZE + 4096))
    answer.send()


def much_longer(answer: Answer) -> None:
    answer.named(replace(answer.segment, length=0xFFFFFFFF))
    answer.send()


def empty(answer: Answer) -> None:
    answer.named(replace(answer.segment, length=0))
    answer.send()


def shorter(answer: Answer) -> None:
    """Half of the data that the RPC message states."""
    answer.named(replace(answer.segment, length=SIZE // 2))
    answer.send()


def far(answer: Answer) -> None:
    """The position is behind the inline part."""
    answer.named(answer.segment, position=len(answer.inline) + 4)
    answer.send()


def far_away(answer: Answer) -> None:
    answer.named(answer.segment, position=0xFFFFFFFC)
    answer.send()


def at_zero(answer: Answer) -> None:
    """A chunk at position zero, and an inline part."""
    answer.named(answer.segment, position=0)
    answer.send()


def twice(answer: Answer) -> None:
    """Two chunks."""
    first = answer.chunk
    answer.head = replace(answer.head, reads=(Read(first.position - 4, first.segments), first))
    answer.send()


def whole_and_inline(answer: Answer) -> None:
    answer.named(answer.segment, position=0, proc=RDMA_NOMSG)
    answer.send()


def nothing(answer: Answer) -> None:
    """No message at all."""
    answer.head = replace(answer.head, reads=(), proc=RDMA_NOMSG)
    answer.connection.send(rdma2003.encode(answer.head))


def whole_too_long(answer: Answer) -> None:
    """A whole message that is longer than the reply buffer."""
    answer.named(replace(answer.segment, length=ROOM), position=0, proc=RDMA_NOMSG)
    answer.inline = b""
    answer.send()


def whole(answer: Answer) -> None:
    """The whole message by chunk, which the protocol allows."""
    at, data = answer.chunk.position, answer.memory.view[:SIZE].tobytes()
    message = answer.inline[:at] + data + answer.inline[at:]
    answer.memory.view[: len(message)] = message
    answer.named(replace(answer.segment, length=len(message)), position=0, proc=RDMA_NOMSG)
    answer.inline = b""
    answer.send()


def pieces(answer: Answer) -> None:
    """Name 64 segments, the most that the client accepts."""
    one = answer.segment
    size = SIZE // 64
    parts = [replace(one, length=size, offset=one.offset + n * size) for n in range(64)]
    answer.named(*parts)
    answer.send()


def more_pieces(answer: Answer) -> None:
    one = answer.segment
    parts = [replace(one, length=64, offset=one.offset + n * 64) for n in range(65)]
    answer.named(*parts)
    answer.send()


def stale(answer: Answer) -> None:
    """The key is not valid any more."""
    answer.memory.deregister()
    answer.send()


def elsewhere(answer: Answer) -> None:
    """Before the memory that the key is for."""
    answer.named(replace(answer.segment, offset=answer.segment.offset - 4096))
    answer.send()


def again(answer: Answer) -> None:
    """The answer comes three times."""
    for _ in range(3):
        answer.send()


def stranger(answer: Answer) -> None:
    """An answer to another Call comes first."""
    mine = answer.head
    answer.head = replace(mine, xid=mine.xid ^ 0x55)
    answer.send()
    answer.head = mine
    answer.send()


def done(answer: Answer) -> None:
    """The client gets a Done."""
    answer.connection.send(rdma2003.encode(replace(answer.head, reads=(), proc=RDMA_DONE)))


def version_1(answer: Answer) -> None:
    answer.connection.send(rpc.words(answer.head.xid, 1, CREDITS, 0, 0, 0, 0) + answer.inline)


def short(answer: Answer) -> None:
    answer.connection.send(rdma2003.encode(answer.head)[:30])


# what the application may see, and whether the connection ends
TRICKS: dict[Trick, tuple[str, bool]] = {
    **{honest: ("ok", False), whole: ("ok", False), pieces: ("ok", False)},
    **{again: ("ok", False), stranger: ("ok", False)},
    **dict.fromkeys((longer, much_longer, empty, far, far_away, at_zero), ("error", False)),
    **dict.fromkeys((twice, whole_and_inline, nothing, whole_too_long), ("error", False)),
    # the NFS client takes it for a short READ, and asks for the rest
    shorter: ("ok", False),
    **dict.fromkeys((stale, elsewhere, done, version_1, short, more_pieces), ("ok", True)),
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
