# SPDX-License-Identifier: Apache-2.0
"""``cached_server_node.py SERVER PORT FOLDER [again | SEED COUNT]``: a server that abuses.

The server runs here, at PORT, and has nfsd of this node do the work over TCP.  The mount, of
SERVER, requests personality cached, and an application reads FOLDER/data over it, below /export,
into the same private memory each time: once for each trick, which the server plays on the first
answer.  Prints a JSON object: for each trick how the read ended ("ok", "error" or "wrong"), and
whether the connection ended.  With SEED it plays COUNT mutated Replies in place of the tricks, half
of them for reads that arrive in slots.  With "again" in place of SEED it waits until the client
uses the first key again, and writes to the first address.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wire.rpcrdma import RDMA_MSG, Header, Segment, decode, encode

from hostile import rpc, trick_server
from hostile.json_lines import print_json
from hostile.peer import Connection, GoneError
from hostile.proxy import CREDITS, Peer
from hostile.verbs import SEND_WITH_INV

CLIENTS = Path("/sys/kernel/debug/nfsrdma")
LIMIT = 60.0
# more than a key has values
USES = 2000
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
        until("cache_idle_pages", lambda pages: pages > 0)


def until(name: str, good: Callable[[int], bool]) -> None:
    """Wait for a figure of the cache; all mounts but this one have another personality."""
    end = time.monotonic() + LIMIT
    while not good(figure(name)):
        assert time.monotonic() < end, f"{name} is {figure(name)}"
        time.sleep(0.02)


def figure(name: str) -> int:
    lines = [line.split() for file in CLIENTS.glob("*/connection")
             for line in file.read_text().splitlines()]  # fmt: skip
    return sum(int(line[1]) for line in lines if line[0] == name)


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
    until("cache_pages", lambda pages: pages == 0)


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


class Keys:
    """Keys of one registration after another, until one comes again."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.again = self.repeated = False

    def take(self, answer: Answer) -> None:
        handle, offset = answer.offer.handle, answer.offer.offset
        # the key of any region: the client may never use a certain one again
        self.again = handle in self.offsets
        before = self.offsets.setdefault(handle, offset)
        if self.again:
            self.repeated = offset == before
            answer.refused(before, handle)
        else:
            answer.send()


def key_comes_again(server: Server) -> None:
    """A key has 8 bits of its own, so a region gets it again. It has another address then."""
    keys, outcome = Keys(), "ok"
    with trick_server.asking(server) as ask:
        while not keys.again and outcome == "ok" and len(keys.offsets) < USES:
            server.trick = keys.take
            outcome = ask(0)
            if not keys.again:
                evict()
        ended = server.story.ended
    print_json(outcome=outcome, uses=len(keys.offsets), again=keys.again, repeated=keys.repeated,
         ended=ended)  # fmt: skip


def main() -> None:
    if sys.argv[4:] == ["again"]:
        key_comes_again(Server(int(sys.argv[2])))
        return
    if sys.argv[4:] and sys.argv[4].endswith("slots"):
        Server.memory = mmap.MAP_SHARED
    trick_server.main(Server, TRICKS)


main()
