# SPDX-License-Identifier: Apache-2.0
"""A server that abuses memory that stays registered (personality cached)."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path

from wire.rpcrdma import RDMA_MSG, Header, Segment, decode, encode

from testbed.node.mounts import connections
from testbed.node.programs import until
from testbed.peers import rpc, trick_server
from testbed.peers.peer import Connection, GoneError
from testbed.peers.proxy import CREDITS, Peer
from testbed.peers.verbs import SEND_WITH_INV

# statuses of an RDMA Write or Read that the client's card refuses
REFUSED = (9, 10, 11)


@dataclass
class Answer:
    """A READ: where its data belongs, the RPC message without the data, and the data."""

    xid: int
    offer: Segment
    rpc: bytes
    data: bytes
    connection: Connection

    def sound(self) -> bytes:
        """Write the data; the message that is due."""
        if self.connection.write(self.data, self.offer.offset, self.offer.handle):
            raise GoneError("the client's memory could not be written")
        return self.message()

    def message(self) -> bytes:
        written = replace(self.offer, length=len(self.data))
        return encode(Header(self.xid, CREDITS, RDMA_MSG, writes=((written,),))) + self.rpc

    def send(self) -> None:
        self.connection.send(self.sound())

    def refused(self, at: int, key: int) -> None:
        """Write where the client gave no access: its card refuses, and the connection ends."""
        status = self.connection.try_write(b"\x66" * 64, at, key)
        assert status in REFUSED, f"RDMA Write: status {status}"

    def returned(self) -> None:
        """Wait until the client keeps the memory of this answer for the next Call."""
        until("memory that the client keeps", lambda: figure("cache_idle_pages"))


def figure(name: str) -> int:
    """A figure of the cache; all mounts but this one have another personality."""
    return sum(int(row.get(name, "0").split()[0]) for row in connections())


# --- tricks ---

LAST: list[Segment] = []


def honest(answer: Answer) -> None:
    LAST[:] = [answer.offer]
    answer.send()


def same_key(answer: Answer) -> None:
    """The client offers the memory under the key of the last Call."""
    assert [answer.offer] == LAST, (answer.offer, LAST)
    answer.send()


def kept(answer: Answer) -> None:
    """Write into the memory after the Reply, as the personality allows."""
    answer.send()
    answer.returned()
    status = answer.connection.write(answer.data, answer.offer.offset, answer.offer.handle)
    assert status == 0, f"RDMA Write: status {status}"


def behind(answer: Answer) -> None:
    answer.send()
    answer.returned()
    answer.refused(answer.offer.offset + answer.offer.length, answer.offer.handle)


def before(answer: Answer) -> None:
    answer.refused(answer.offer.offset - 64, answer.offer.handle)


def over_the_end(answer: Answer) -> None:
    answer.refused(answer.offer.offset + answer.offer.length - 32, answer.offer.handle)


def another_key(answer: Answer) -> None:
    answer.refused(answer.offer.offset, answer.offer.handle ^ 1)


def looks(answer: Answer) -> None:
    """Memory of a READ is not for reading."""
    status, data = answer.connection.try_read(64, answer.offer.offset, answer.offer.handle)
    assert status in REFUSED, f"RDMA Read: status {status}"
    assert not any(data)


def evict() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("2")
    until("an empty cache", lambda: not figure("cache_pages"))


def evicted(answer: Answer) -> None:
    """Write after the client gave the memory back."""
    answer.send()
    answer.returned()
    evict()
    answer.refused(answer.offer.offset, answer.offer.handle)


def invalidates(answer: Answer) -> None:
    """The Reply invalidates the key, which the client did not ask for."""
    answer.connection.send(answer.sound(), SEND_WITH_INV, answer.offer.handle)


def invalidates_another(answer: Answer) -> None:
    answer.connection.send(answer.sound(), SEND_WITH_INV, answer.offer.handle ^ 0x100)


def again(answer: Answer) -> None:
    for _ in range(3):
        answer.send()


def longer(answer: Answer) -> None:
    """State more than the client offered."""
    written = replace(answer.offer, length=answer.offer.length + 4096)
    answer.sound()
    answer.connection.send(
        encode(Header(answer.xid, CREDITS, RDMA_MSG, writes=((written,),))) + answer.rpc
    )


# what the application may see, and whether the connection ends
TRICKS = {
    honest: ("ok", False),
    same_key: ("ok", False),
    kept: ("ok", False),
    behind: ("ok", True),
    **dict.fromkeys((before, over_the_end, another_key, looks), ("ok", True)),
    evicted: ("ok", True),
    invalidates: ("ok", False),
    invalidates_another: ("ok", True),
    again: ("ok", False),
    longer: ("error", False),
}


class Server(trick_server.TrickServer):
    """A server with the personality."""

    memory = mmap.MAP_PRIVATE

    def _received(self, peer: Peer, message: bytes) -> None:
        header, size = decode(message)
        xid, reply, place = self.forward(peer, header, message[size:])
        if not place or not header.writes:
            unused = tuple(replace(each, length=0) for each in header.reply or ())
            head = Header(xid, CREDITS, RDMA_MSG, reply=unused if header.reply else None)
            peer.connection.send(encode(head) + reply)
            return
        ((offer,),) = header.writes
        rest, data = rpc.split(reply, place)
        self.play(Answer(xid, offer, rest, data, peer.connection))
