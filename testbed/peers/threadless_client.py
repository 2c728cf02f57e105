# SPDX-License-Identifier: Apache-2.0
"""READs of every odd kind: sends the Calls of odd_reads.py, and describes the Replies."""

from __future__ import annotations

import hashlib
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, RefusedError, Segment, decode, encode

from testbed.node import channel
from testbed.peers import rpc
from testbed.peers.odd_reads import PAGE, ROOM, Case, Files, cases
from testbed.peers.peer import GoneError, Message
from testbed.peers.site import handles
from testbed.peers.token_client import TokenClient
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, VerbsError

# seconds that a Call may take that nfsd answers
PATIENCE = 20.0
# and one that nfsd may drop, beyond those that were sent later
LATER = 1.0
PROBES = 3
# Write chunks, the Reply chunk, and Calls
CALLS = ROOM + 4 * PAGE
REGION = CALLS + 2 * PAGE
PATTERN = (bytes(range(1, 252)) * (REGION // 251 + 1))[:REGION]
# a Reply to READ: attributes, and atime, which moves with READs that nfsd executes
ATTRIBUTES, ATIME = slice(32, 116), slice(92, 100)
# a Reply, as much of it as has to be the same
Account = dict[str, Any]


class Client(TokenClient):
    """A connection, and the Calls on it."""

    def __init__(self) -> None:
        super().__init__(0)
        access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
        self.memory = self.connection.memory(REGION, access)
        self.counters = self.folder() / "counters"

    def hits(self) -> int:
        """READs of this connection that were answered without nfsd."""
        try:
            rows = dict(line.split() for line in self.counters.read_text().splitlines())
        except OSError:
            # the connection has ended
            return 0
        return int(rows["threadless_hits"])

    def send(self, case: Case) -> int:
        """Send a Call; returns its XID."""
        xid, memory = self.next_xid(), self.memory
        memory.view[:] = PATTERN
        call = (rpc.words(xid) + case.call[4:])[: len(case.call)]
        writes = case.segments(memory.key, memory.address)
        reply = case.reply_chunk(memory.key, memory.address)
        head = Header(xid, 32, RDMA_MSG, (), writes, reply)
        if case.long:
            memory.view[CALLS : CALLS + len(call)] = call
            where = Segment(memory.key, len(call), memory.address + CALLS)
            head = Header(xid, 32, RDMA_NOMSG, (Read(0, (where,)),), writes, reply)
            call = b""
        self.connection.send(encode(head) + call)
        return xid

    def next(self, xid: int, may_drop: bool) -> Message | None:
        """The Reply to a Call; None if the connection ends, or if Calls behind it were answered."""
        probes = 0
        if may_drop:
            self._probe()
        while message := self.connection.next(LATER if probes == PROBES else PATIENCE):
            if message.data[:4] == rpc.words(xid):
                return message
            if may_drop and probes < PROBES:
                probes += 1
                if probes < PROBES:
                    self._probe()
        return None

    def _probe(self) -> None:
        head = Header(0x600D0000, 32, RDMA_MSG)
        self.connection.send(encode(head) + rpc.call(head.xid, rpc.NULL))

    def reply(self, case: Case) -> Message | None:
        """Send a Call; returns its Reply, or None as ``next`` does."""
        try:
            return self.next(self.send(case), case.may_drop)
        except (GoneError, VerbsError):
            return None

    def ask(self, case: Case) -> Account:
        """Send a Call, and describe its Reply."""
        message = self.reply(case)
        if message:
            return self._described(message, case)
        return {"form": "the connection ended" if self.connection.ended else "no Reply"}

    def _described(self, message: Message, case: Case) -> Account:
        memory = self.memory
        try:
            head, size = decode(message.data)
        except (RefusedError, struct.error) as error:
            return {"form": f"unreadable: {error}", "message": message.data.hex()[:400]}
        offered = {s for chunk in case.segments(memory.key, memory.address) for s in chunk}
        offered |= set(case.reply_chunk(memory.key, memory.address) or ())
        places = {(s.handle, s.offset) for s in offered}
        returned = [*head.writes, *([head.reply] if head.reply is not None else [])]
        account: Account = {
            "form": head.proc,
            "error": head.error,
            "length": len(message.data),
            "writes": [[s.length for s in chunk] for chunk in head.writes],
            "reply": head.reply and [s.length for s in head.reply],
            "as_offered": all((s.handle, s.offset) in places for c in returned for s in c),
            "invalidated": message.invalidated,
        }
        body = message.data[size:]
        if head.proc == RDMA_NOMSG:
            body = b"".join(self._bytes(segment) for segment in head.reply or ())
        account |= described(body)
        # what was written, and that nothing else was
        kept = bytearray(memory.view)
        if head.proc == RDMA_NOMSG and head.reply:
            # described above
            for segment in head.reply:
                at = segment.offset - memory.address
                kept[at : at + segment.length] = bytes(segment.length)
        kept[CALLS:] = b""
        account["memory"] = digest(bytes(kept))
        return account

    def _bytes(self, segment: Segment) -> bytes:
        at = segment.offset - self.memory.address
        return bytes(self.memory.view[at : at + segment.length])

    def permitted(self, case: Case) -> bool:
        """Send the honest Call until a READ like it is answered without nfsd; False if none is."""
        end = time.monotonic() + (LATER if case.forged else PATIENCE)
        while time.monotonic() < end and not self.connection.ended:
            before = self.hits()
            self.reply(honest(case))
            if self.hits() > before:
                return True
        return False


def honest(case: Case) -> Case:
    return Case("honest", case.honest, b"")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def described(reply: bytes) -> Account:
    """An RPC message, without its XID and atime."""
    account: Account = {"rpc": len(reply)}
    if not rpc.accepted(reply) or len(reply) < 32:
        return account | {"body": reply[4:].hex()}
    status, has_attributes = struct.unpack_from(">2I", reply, 24)
    masked = bytearray(reply)
    rest = 32
    if has_attributes and len(reply) >= ATTRIBUTES.stop:
        masked[ATIME] = bytes(8)
        account["attributes"] = masked[ATTRIBUTES].hex()
        rest = ATTRIBUTES.stop
    account["status"] = status
    if not status and len(reply) >= rest + 12:
        account["count"], account["eof"], account["data"] = struct.unpack_from(">3I", reply, rest)
    return account | {"digest": digest(bytes(masked[4:]))}


def files_in(folder: Path, elsewhere: Path) -> Files:
    file, private, other = handles(folder, "data", "private", "other")
    (inside,) = handles(folder.parent, folder.name)
    (foreign,) = handles(elsewhere.parent, elsewhere.name)
    return Files(file, private, other, inside, foreign, (folder / "data").stat().st_size)


class Replies(NamedTuple):
    """The Replies to the Calls of a table."""

    replies: dict[str, Account]
    hits: list[str]
    """names of Calls that were answered without nfsd"""
    sound: list[str]
    """of those that read a file in a way in which it may be read"""
    second: Account
    """the Reply to a Call on another connection of the client than the one that nfsd answered"""
    second_hits: int


def replies(folder: Path, elsewhere: Path, limit: int) -> Replies:
    """Send each odd READ behind an honest one.

    The folder has the files "data", "private" of mode 0600, and "other"; ``elsewhere`` is a file
    on another file system.  ``limit`` is the value of server_threadless: if it is not 0, nfsd has
    permitted READs like each honest one when the odd one is sent.
    """
    table, client = cases(files_in(folder, elsewhere)), Client()
    answers, hits = dict[str, Account](), list[str]()
    for name, case in table.items():
        channel.send(name)
        if client.connection.ended:
            client = _renewed(client)
        if limit:
            client.permitted(case)
        else:
            client.reply(honest(case))
        before = client.hits()
        answers[name] = client.ask(case)
        if client.hits() > before:
            hits.append(name)
        if answers[name]["form"] == "no Reply":
            # the server ends the connection later
            client = _renewed(client)
    client, case = _renewed(client), table["3 bytes"]
    other = Client()
    # by nfsd: then the connection is one of the client's
    other.reply(honest(case))
    if limit and not client.permitted(case):
        raise TimeoutError("no READ was answered without nfsd")
    second, second_hits = other.ask(case), other.hits()
    for connection in (other.connection, client.connection):
        connection.close()
    sound = [name for name, case in table.items() if case.sound]
    return Replies(answers, hits, sound, second, second_hits)


def _renewed(client: Client) -> Client:
    client.connection.close()
    return Client()
