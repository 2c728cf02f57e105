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

ALIGN = 1024


@dataclass
class Answer:
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

    def send_padded(
        self, align: int = ALIGN, thresh: int = 1, more: bytes = b"", **numbers: int
    ) -> None:
        """The answer with other numbers."""
        self.listed(((replace(self.segment, **numbers),),), align, thresh, more)

    def listed(self, writes: Any, align: int = ALIGN, thresh: int = 1, more: bytes = b"",
               **lists: Any) -> None:  # fmt: skip
        head = Header(self.xid, CREDITS, RDMA_MSGP, writes=writes, **lists)
        self.send(rdma5666.whole(head, self.rpc, self.data + more, align, thresh))

    def send(self, message: bytes) -> None:
        self.connection.send(message)


Trick = Callable[[Answer], None]


def honest(answer: Answer) -> None:
    answer.send(answer.sound())


def plain(answer: Answer) -> None:
    """All of it in a message of version 1, as long as the client's receives."""
    at = answer.at
    body = answer.rpc[:at] + answer.data + answer.rpc[at:]
    answer.send(rpcrdma.encode(Header(answer.xid, CREDITS, RDMA_MSG)) + body)


def with_padding(answer: Answer) -> None:
    """The XDR padding follows, as it may."""
    answer.data = answer.data[:-3]
    size = rpc.words(len(answer.data))
    answer.rpc = answer.rpc[:-12] + size + answer.rpc[-8:-4] + size
    answer.send_padded(more=bytes(3))


def higher_threshold(answer: Answer) -> None:
    answer.send_padded(thresh=SIZE + 1)


def other_alignment(answer: Answer) -> None:
    answer.send_padded(align=2048)


def alignment_that_lies(answer: Answer) -> None:
    sound = answer.sound()
    answer.send(sound[:16] + rpc.words(2048) + sound[20:])


def alignment_behind(answer: Answer) -> None:
    sound = answer.sound()
    answer.send(sound[:16] + rpc.words(0xFFFFFFFC) + sound[20:])


def alignment_in_header(answer: Answer) -> None:
    sound = answer.sound()
    answer.send(sound[:16] + rpc.words(16) + sound[20:])


def longer(answer: Answer) -> None:
    """More data than the application reads."""
    answer.data += bytes(4096)
    answer.send_padded()


def longer_than_message(answer: Answer) -> None:
    answer.send_padded(length=SIZE + 4)


def much_longer(answer: Answer) -> None:
    answer.send_padded(length=0xFFFFFFFF)


def shorter(answer: Answer) -> None:
    """Half of the data that the RPC message states."""
    answer.data = answer.data[: SIZE // 2]
    answer.send_padded()


def shorter_than_message(answer: Answer) -> None:
    answer.send_padded(length=SIZE - 8)


def empty(answer: Answer) -> None:
    answer.send_padded(length=0)


def no_rpc(answer: Answer) -> None:
    answer.send_padded(offset=0)


def rpc_too_long(answer: Answer) -> None:
    answer.send_padded(offset=ALIGN)


def rpc_of_4_gib(answer: Answer) -> None:
    answer.send_padded(offset=1 << 32)


def key(answer: Answer) -> None:
    answer.send_padded(handle=7)


def two_segments(answer: Answer) -> None:
    answer.listed(((answer.segment, answer.segment),))


def two_chunks(answer: Answer) -> None:
    answer.listed(((answer.segment,), (answer.segment,)))


def no_list(answer: Answer) -> None:
    answer.listed(())


def read_list(answer: Answer) -> None:
    answer.listed((), reads=(Read(40, (answer.segment,)),))


def reply_chunk(answer: Answer) -> None:
    answer.listed(((answer.segment,),), reply=(answer.segment,))


def chunk_of_version_1(answer: Answer) -> None:
    """As if the data had been written to memory that the Call named."""
    head = Header(answer.xid, CREDITS, RDMA_MSG, writes=((answer.segment,),))
    answer.send(rpcrdma.encode(head) + answer.rpc)


def nothing(answer: Answer) -> None:
    head = Header(answer.xid, CREDITS, RDMA_NOMSG, writes=((answer.segment,),))
    answer.send(rpcrdma.encode(head))


def longer_than_receives(answer: Answer) -> None:
    answer.data += bytes(40000)
    answer.send_padded()


def cut(answer: Answer) -> None:
    answer.send(answer.sound()[:30])


def shorter_than_header(answer: Answer) -> None:
    answer.send(answer.sound()[:20])


def again(answer: Answer) -> None:
    """The answer comes three times."""
    for _ in range(3):
        honest(answer)


def stranger(answer: Answer) -> None:
    """An answer to another Call comes first."""
    answer.xid ^= 0x55
    honest(answer)
    answer.xid ^= 0x55
    honest(answer)


# what the application may see, and whether the connection ends
TRICKS: dict[Trick, tuple[str, bool]] = {
    **dict.fromkeys((honest, plain, again, stranger), ("ok", False)),
    # the NFS client takes it for a short READ, and asks for the rest
    **dict.fromkeys((shorter, with_padding), ("ok", False)),
    **dict.fromkeys((longer, no_rpc, chunk_of_version_1, nothing), ("error", False)),
    **dict.fromkeys((higher_threshold, other_alignment, alignment_that_lies), ("ok", True)),
    **dict.fromkeys((alignment_behind, alignment_in_header, longer_than_message), ("ok", True)),
    **dict.fromkeys((much_longer, shorter_than_message, empty, rpc_too_long), ("ok", True)),
    **dict.fromkeys((rpc_of_4_gib, key, two_segments, two_chunks, no_list), ("ok", True)),
    **dict.fromkeys((read_list, reply_chunk, longer_than_receives, cut), ("ok", True)),
    shorter_than_header: ("ok", True),
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
