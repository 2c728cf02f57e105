# SPDX-License-Identifier: Apache-2.0
"""``threadless_node.py SERVER PORT FOLDER ELSEWHERE LIMIT [NAME]``: READs of every odd kind.

Sends the Calls of odd_reads.py, and prints the Replies. FOLDER has the files "data", "private" of
mode 0600, and "other", ELSEWHERE is a file on another file system; both are paths on this host,
which is the server as well. LIMIT is the value of server_threadless: if it is not 0, nfsd has
permitted READs like each honest one when the odd one is sent.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, RefusedError, Segment, decode, encode

from hostile import rpc
from hostile.json_lines import print_json
from hostile.odd_reads import PAGE, ROOM, Case, Files, cases
from hostile.peer import Connection, GoneError, Host, Message, Wish
from hostile.private_data import extended
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, VerbsError

SERVER_STATE = Path("/sys/kernel/debug/nfsrdma-server")
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
HOST = Host()
# a Reply, as much of it as has to be the same
Account = dict[str, Any]


class Client:
    """A connection, and the Calls on it."""

    xid = 0x0DD00000

    def __init__(self, server: str, port: int) -> None:
        token = int.from_bytes(os.urandom(8), "big")
        self.connection: Connection = HOST.connect(server, port, Wish(extended(0, token)))
        access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
        self.memory = self.connection.memory(REGION, access)
        self.folder = _folder(token)

    def counts(self) -> dict[str, int]:
        """The results of this connection's READs: hits, and misses by reason."""
        try:
            lines = (self.folder / "counters").read_text().splitlines()
        except OSError:
            # the connection has ended
            return {"hits": 0}
        pairs = (line.split() for line in lines if line.startswith("threadless_"))
        return {name.removeprefix("threadless_"): int(value) for name, value in pairs}

    def send(self, case: Case) -> int:
        """Send a Call; returns its XID."""
        Client.xid += 1
        xid, memory = Client.xid, self.memory
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

    def answer(self, case: Case) -> Message | None:
        """Send a Call; returns its Reply, or None as ``next`` does."""
        try:
            return self.next(self.send(case), case.may_drop)
        except (GoneError, VerbsError):
            return None

    def ask(self, case: Case) -> Account:
        """Send a Call, and describe its Reply."""
        message = self.answer(case)
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
            before = self.counts()["hits"]
            self.answer(honest(case))
            if self.counts()["hits"] > before:
                return True
        return False


def _folder(token: int) -> Path:
    """The folder of a connection in debugfs."""
    wanted = f"token {token:016x}"
    for folder in SERVER_STATE.iterdir():
        try:
            if wanted in (folder / "connection").read_text().splitlines():
                return folder
        except OSError:
            # the file of totals, or a connection that ends
            continue
    raise LookupError(f"the server has no connection with {wanted}")


def honest(case: Case) -> Case:
    return Case("honest", case.honest, b"")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def described(reply: bytes) -> Account:
    """An RPC message, without its XID and atime."""
    found: Account = {"rpc": len(reply)}
    if not rpc.accepted(reply) or len(reply) < 32:
        return found | {"body": reply[4:].hex()}
    status, has_attributes = struct.unpack_from(">2I", reply, 24)
    masked = bytearray(reply)
    rest = 32
    if has_attributes and len(reply) >= ATTRIBUTES.stop:
        masked[ATIME] = bytes(8)
        found["attributes"] = masked[ATTRIBUTES].hex()
        rest = ATTRIBUTES.stop
    found["status"] = status
    if not status and len(reply) >= rest + 12:
        found["count"], found["eof"], found["data"] = struct.unpack_from(">3I", reply, rest)
    return found | {"digest": digest(bytes(masked[4:]))}


def files_in(server: str, folder: Path, elsewhere: Path) -> Files:
    file, private, other = handles(server, str(folder), "data", "private", "other")
    (inside,) = handles(server, str(folder.parent), folder.name)
    (foreign,) = handles(server, str(elsewhere.parent), elsewhere.name)
    return Files(file, private, other, inside, foreign, (folder / "data").stat().st_size)


class Run:
    """The Replies to the Calls of a table."""

    def __init__(self, server: str, port: int, limit: int) -> None:
        self.server, self.port, self.limit = server, port, limit
        self.client = Client(server, port)
        self.replies = dict[str, Account]()
        self.hits = list[str]()
        self.unpermitted = list[str]()

    def play(self, name: str, case: Case) -> None:
        if self.client.connection.ended:
            self.renew()
        if not self.limit:
            self.client.answer(honest(case))
        elif not self.client.permitted(case):
            self.unpermitted.append(name)
        before = self.client.counts()["hits"]
        self.replies[name] = reply = self.client.ask(case)
        if self.client.counts()["hits"] > before:
            self.hits.append(name)
        if reply["form"] == "no Reply":
            # the server ends the connection later
            self.renew()

    def renew(self) -> None:
        self.client.connection.close()
        self.client = Client(self.server, self.port)

    def second(self, case: Case) -> Account:
        """Send a Call on another connection of the client than the one that nfsd answered it on."""
        other = Client(self.server, self.port)
        # by nfsd: then the connection is one of the client's
        other.answer(honest(case))
        if self.limit and not self.client.permitted(case):
            raise TimeoutError("no READ was answered without nfsd")
        reply = other.ask(case)
        counts = other.counts()
        other.connection.close()
        return {"reply": reply, "hits": counts["hits"]}


def main() -> None:
    server, port, folder, elsewhere, limit, *only = sys.argv[1:]
    table = cases(files_in(server, Path(folder), Path(elsewhere)))
    table = {name: case for name, case in table.items() if "".join(only) in name}
    run = Run(server, int(port), int(limit))
    for name, case in table.items():
        run.play(name, case)
        print_json(did=name)
    run.renew()
    second = run.second(next(iter(table.values())) if only else table["3 bytes"])
    run.client.connection.close()
    print_json(
        replies=run.replies,
        hits=run.hits,
        unpermitted=run.unpermitted,
        sound=[name for name, case in table.items() if case.sound],
        second=second,
    )


main()
