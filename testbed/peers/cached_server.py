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
from testbed.peers.trick_server import ENDED, ERROR, OK, Trick, Want, again
from testbed.peers.verbs import SEND_WITH_INV

# statuses of an RDMA Write or Read that the client's card refuses
REFUSED = (9, 10, 11)


@dataclass
class Answer(trick_server.Answer):
    """A READ: where its data belongs, the RPC message without the data, and the data."""

    xid: int
    offer: Segment
    rpc: bytes
    data: bytes
    connection: Connection

    def sound(self) -> bytes:
        """Write the data; the message that is due."""
        return self.stating(len(self.data))

    def stating(self, length: int) -> bytes:
        """Write the data; a message that states another length."""
        if self.connection.write(self.data, self.offer.offset, self.offer.handle):
            raise GoneError("the client's memory could not be written")
        written = replace(self.offer, length=length)
        return encode(Header(self.xid, CREDITS, RDMA_MSG, writes=((written,),))) + self.rpc

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


def invalidates(flips: int = 0) -> Trick:
    """The Reply invalidates the key, which the client did not ask for, or another one."""
    return lambda a: a.connection.send(a.sound(), SEND_WITH_INV, a.offer.handle ^ flips)


TRICKS: dict[str, tuple[Trick, Want]] = {
    "honest": (honest, OK),
    "same key": (same_key, OK),
    "kept": (kept, OK),
    "behind": (behind, ENDED),
    "before": (lambda a: a.refused(a.offer.offset - 64, a.offer.handle), ENDED),
    "over the end": (
        lambda a: a.refused(a.offer.offset + a.offer.length - 32, a.offer.handle),
        ENDED,
    ),
    "another key": (lambda a: a.refused(a.offer.offset, a.offer.handle ^ 1), ENDED),
    "looks": (looks, ENDED),
    "evicted": (evicted, ENDED),
    "invalidates": (invalidates(), OK),
    "invalidates another": (invalidates(0x100), ENDED),
    "again": (again, OK),
    # than the client offered
    "longer": (lambda a: a.connection.send(a.stating(a.offer.length + 4096)), ERROR),
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
