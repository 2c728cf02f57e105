# SPDX-License-Identifier: Apache-2.0
"""``readread_node.py SERVER PORT FOLDER CASE [SEED COUNT]``: a client of 2003 that breaks rules.

The server accepts personality read-read.  FOLDER, below /export, holds a file ``data`` of 4 MiB and
a file ``written`` of 64 KiB.  A case is a function of this file; prints what it found as JSON.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from wire import rdma2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import RDMA_NOMSG, Header, Read, Segment

from hostile import rpc
from hostile.messages import mutants
from hostile.peer import GoneError, Message
from hostile.server_state import total
from hostile.site import handles
from hostile.token_client import HOST, TokenClient, contents, run_case
from hostile.verbs import LOCAL_WRITE, REMOTE_READ

CREDITS = 32
READ_READ = 1
SIZE = 65536
PAGE = 4096
# more than a key has values, also if a few regions take turns
USES = 2000
TIMEOUT = Path("/sys/module/nfsrdma/parameters/server_done_timeout")
LIMIT = 60.0


class Client(TokenClient):
    """A client of 2003."""

    def __init__(self, **wish: Any) -> None:
        super().__init__(READ_READ, **wish)
        (self.file,) = handles(sys.argv[1], f"/export/{sys.argv[3]}", "data")

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

    def refused(self, segment: Segment, more: int = 0) -> dict[str, Any]:
        """An RDMA Read that must not succeed: its status, and whether it ends the connection."""
        status, data = self.connection.try_read(
            segment.length + more, segment.offset, segment.handle
        )
        return {"status": status, "came": any(data), "ended": self.ends()}

    def ends(self) -> bool:
        HOST.wait(lambda: bool(self.connection.ended), LIMIT, late=False)
        return bool(self.connection.ended)

    def lives(self) -> bool:
        """A NULL call is answered."""
        self.call(99, rpc.NULL)
        head, body = self.take()
        return head.xid == 99 and rpc.accepted(body)

    def until(self, name: str, value: int) -> bool:
        """Whether a figure of the server becomes this."""
        end = time.monotonic() + LIMIT
        while self.values(name) != [value] and time.monotonic() < end:
            HOST.wait(lambda: False, 0.05, late=False)
        return self.values(name) == [value]


# --- cases ---


def honest() -> dict[str, Any]:
    client = Client()
    segments = client.exposed(7)
    exposed = client.values("exposed_pages", "dones_outstanding")
    same = client.fetch(segments) == contents("data")[:SIZE]
    again = client.fetch(segments) == contents("data")[:SIZE]
    client.done(7)
    gone = client.until("exposed_pages", 0)
    counted = client.values("exposures", "dones", "stray_dones", "done_timeouts", "reply_pages")
    lives = client.lives()
    return {
        **{"agreed": client.agreed, "exposed": exposed, "same": same and again, "gone": gone},
        **{"counted": counted, "lives": lives, "late": client.refused(segments[0])},
    }


def never() -> dict[str, Any]:
    client = Client()
    segments = client.exposed(7)
    same = client.fetch(segments) == contents("data")[:SIZE]
    began = time.monotonic()
    gone = client.until("exposed_pages", 0)
    waited = time.monotonic() - began
    counted = client.values("dones", "done_timeouts", "reply_pages")
    lives = client.lives()
    client.done(7)
    stray = client.until("stray_dones", 1)
    late = client.refused(segments[0])
    return {
        **{"same": same, "gone": gone, "waited": waited, "counted": counted, "lives": lives},
        **{"stray": stray, "late": late},
    }


def twice() -> dict[str, Any]:
    client = Client()
    client.fetch(client.exposed(7))
    for _ in range(3):
        client.done(7)
    return {"stray": client.until("stray_dones", 2), "lives": client.lives(),
            "counted": client.values("exposures", "dones", "exposed_pages")}  # fmt: skip


def other() -> dict[str, Any]:
    """The Done for what another connection reads."""
    mine, theirs = Client(), Client()
    segments = theirs.exposed(7)
    mine.done(7)
    stray = mine.until("stray_dones", 1)
    still = theirs.values("dones_outstanding", "dones")
    same = theirs.fetch(segments) == contents("data")[:SIZE]
    # nor can its key be used on a connection that it was not given to
    foreign = mine.refused(segments[0])
    theirs.done(7)
    return {"stray": stray, "still": still, "same": same, "foreign": foreign,
            "gone": theirs.until("exposed_pages", 0), "lives": theirs.lives()}  # fmt: skip


def unknown() -> dict[str, Any]:
    client = Client()
    for xid in (0, 1, 0xFFFFFFFF):
        client.done(xid)
    client.send(Header(8, 0, RDMA_DONE), bytes(100))
    return {"stray": client.until("stray_dones", 4), "lives": client.lives()}


def key_comes_again() -> dict[str, Any]:
    """A key has 8 bits of its own, so a region gets it again. It has another address then."""
    client, offsets, number = Client(), dict[int, int](), 7
    while (offer := client.exposed(number, PAGE)[0]).handle not in offsets and number < USES:
        offsets[offer.handle] = offer.offset
        client.done(number)
        number += 1
    # the key of any region: the server may never use a certain one again
    before = offsets.get(offer.handle, 0)
    return {
        **{"uses": len(offsets), "again": offer.handle in offsets},
        **{"repeated": offer.offset == before},
        **{"late": client.refused(replace(offer, offset=before))},
    }


def early() -> dict[str, Any]:
    """The Done follows the Call at once, many times."""
    client, rounds = Client(), 30
    for number in range(rounds):
        xid = 1000 + number
        client.ask(xid)
        client.done(xid)
        head, _ = client.take()
        assert head.xid == xid
        client.done(xid)
    gone = client.until("exposed_pages", 0)
    done, stray = client.values("dones", "stray_dones")
    return {"gone": gone, "sum": (done, done + stray) == (rounds, 2 * rounds)}


def beyond() -> dict[str, Any]:
    """More than the server exposes."""
    client = Client()
    return client.refused(client.exposed(7)[-1], 4096)


def written() -> dict[str, Any]:
    """Exposed memory is for reading."""
    client, before = Client(), contents("data")
    segment = client.exposed(7)[0]
    status = client.connection.try_write(b"broken!!", segment.offset, segment.handle)
    return {"status": status, "ended": client.ends(), "same": contents("data") == before}


def ended_by(message: bytes) -> bool:
    """Whether a message ends its connection."""
    client = Client()
    with suppress(GoneError):
        client.raw(message)
    return client.ends()


def malformed() -> dict[str, bool]:
    """Whether each message ends its connection."""
    words = rpc.words
    call = rpc.call(7, rpc.NULL)
    messages = {
        "version 1": words(7, 1, CREDITS, 0, 0, 0, 0) + call,
        "version 2": words(7, 2, CREDITS, 0, 0) + call,
        "MSGP": words(7, 0, CREDITS, 2, 0) + call,
        "ERROR": words(7, 0, CREDITS, 4, 2),
        "unknown": words(7, 0, CREDITS, 77, 0) + call,
        "a Done cut short": words(7, 0, CREDITS),
        "no list": words(7, 0, CREDITS, 0),
        "a boolean of 2": words(7, 0, CREDITS, 0, 2) + call,
        "NOMSG without chunk": words(7, 0, CREDITS, RDMA_NOMSG, 0),
        "a position inside a word": words(7, 0, CREDITS, 0, 1, 6, 4, 1, 0, 0, 0) + call,
        "another xid": words(8, 0, CREDITS, 0, 0) + call,
        "4096 entries": words(7, 0, CREDITS, 0, *([1, 40, 4, 1, 0, 0] * 150), 0),
        "nothing": b"\0",
    }
    return {name: ended_by(message) for name, message in messages.items()}


def stolen() -> dict[str, Any]:
    """A Call whose data is where nothing is: the server cannot read it."""
    client = Client()
    segment = Segment(0xBAD, 20000, 0x1000)
    arguments = rpc.opaque(client.file) + rpc.hyper(0) + rpc.words(20000, 0, 20000)
    call = rpc.call(7, rpc.WRITE, arguments)
    client.send(Header(7, CREDITS, 0, (Read(len(call), (segment,)),)), call)
    return {"ended": client.ends()}


def no_dones() -> dict[str, Any]:
    """READs of 1 MiB, as many as there are credits, and no Done."""
    client, calls, most = Client(), CREDITS, 0
    for number in range(calls):
        client.ask(number, 1 << 20, (number % 4) << 20)
    began = time.monotonic()
    answers: list[tuple[float, Message]] = []
    while len(answers) < calls and time.monotonic() < began + LIMIT:
        message = client.connection.next(0.2)
        if message:
            answers.append((time.monotonic() - began, message))
        most = max(most, *client.values("exposed_pages"))
    timeout = float(TIMEOUT.read_text())
    first = [when for when, _ in answers if when < timeout / 2]
    gone = client.until("exposed_pages", 0)
    return {
        **{"answers": len(answers), "first": len(first), "most": most, "gone": gone},
        **{"lives": client.lives(), "counted": client.values("exposures", "done_timeouts")},
    }


def left() -> dict[str, Any]:
    """The client goes away with memory exposed."""
    client = Client()
    for number in range(3):
        client.exposed(number, 1 << 18)
    exposed = client.values("exposed_pages")
    client.connection.close()
    end = time.monotonic() + LIMIT
    while total("exposed_pages"):
        assert time.monotonic() < end, "the server keeps memory exposed"
        time.sleep(0.1)
    return {"exposed": exposed}


def unasked() -> dict[str, Any]:
    """Without RDMA Reads of its own, a client gets version 1."""
    client = Client(reads=0)
    client.raw(rpc.words(7, 1, CREDITS, 0, 0, 0, 0) + rpc.call(7, rpc.NULL))
    message: Message | None = client.connection.next()
    return {"agreed": client.agreed, "answered": message is not None}


class Sender(Client):
    """A client with memory that the server may read."""

    def __init__(self) -> None:
        super().__init__()
        (self.target,) = handles(sys.argv[1], f"/export/{sys.argv[3]}", "written")
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


def mutated() -> dict[str, Any]:
    return mutants(sys.argv[5], range(int(sys.argv[6])), Sender)


CASES = (honest, never, twice, other, unknown, key_comes_again, early, beyond, written, malformed,
         stolen, no_dones, left, unasked, mutated)  # fmt: skip


run_case(CASES)
