# SPDX-License-Identifier: Apache-2.0
"""A hostile client: sends the table of calls.py, guesses keys, and sends mutated messages."""

from __future__ import annotations

import random
import struct
from collections import Counter, deque
from dataclasses import replace
from typing import Any, NamedTuple

from wire.rpcrdma import (
    ERR_VERS,
    RDMA_ERROR,
    RDMA_NOMSG,
    Header,
    RefusedError,
    Segment,
    decode,
    encode,
)

from testbed.node import channel
from testbed.node.mounts import HERE
from testbed.peers import calls, kernel, rpc
from testbed.peers.bystander import Bystander
from testbed.peers.calls import CASES, GOOD_PRIVATE, Case
from testbed.peers.mutate import mutated, shown
from testbed.peers.peer import Connection, GoneError, Host, Message, Wish
from testbed.peers.site import FOLDER, Site, handles
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_WRITE, VerbsError

PROBE = 0x600D0000
# what has to be answered is waited for this long, in seconds
PATIENCE = 30.0
ENOUGH = 5


def probe(connection: Connection) -> None:
    """Ask what has to be answered."""
    head = rpc.words(PROBE, 1, calls.CREDITS, 0, 0, 0, 0)
    connection.send(head + rpc.call(PROBE, rpc.NULL))


def outcome(message: Message, sent: bytes) -> tuple[int, str]:
    """The xid of an answer, and its outcome; an answer that no server may send comes in full."""
    try:
        head, size = decode(_version_1(message.data, sent))
    except (RefusedError, struct.error) as error:
        return 0, f"garbled ({error}): {message.data[:80].hex()}"
    if not head.credits:
        return head.xid, "garbled: no credits granted"
    if head.proc == RDMA_ERROR:
        if head.error == ERR_VERS and head.versions != (1, 1):
            return head.xid, f"garbled: versions {head.versions}"
        return head.xid, "vers" if head.error == ERR_VERS else "chunk"
    if head.reads or not _as_offered(head, sent):
        return head.xid, f"garbled: chunks that were not offered: {head}"
    whole = head.proc == RDMA_NOMSG
    # the caller reads a Reply chunk from memory
    return head.xid, "ok" if whole or rpc.accepted(message.data[size:]) else "rpc"


def _version_1(answer: bytes, sent: bytes) -> bytes:
    """RFC 8166, section 4.5: an error is in the version that the message it refuses was in.

    A message of less than 8 bytes has none; its answer may have any.
    """
    is_error = answer[12:16] == rpc.words(RDMA_ERROR)
    echoed = len(sent) < 8 or answer[4:8] == sent[4:8]
    return answer[:4] + rpc.words(1) + answer[8:] if is_error and echoed else answer


def _as_offered(head: Header, sent: bytes) -> bool:
    """Every segment that is returned was in the message, and is not longer now."""
    segments = [segment for chunk in (*head.writes, head.reply or ()) for segment in chunk]
    return all(_offered(segment, sent) for segment in segments)


def _offered(segment: Segment, sent: bytes) -> bool:
    handle, offset = struct.pack(">I", segment.handle), struct.pack(">Q", segment.offset)
    return any(
        sent[at : at + 4] == handle
        and sent[at + 8 : at + 16] == offset
        and int.from_bytes(sent[at + 4 : at + 8], "big") >= segment.length
        for at in range(0, len(sent) - 15, 4)
    )


def as_it_is(kind: str) -> list[Case]:
    """The table, for a server of a kind."""
    if kind == "ours":
        return list(CASES.values())
    return [
        replace(CASES[name], may=CASES[name].may | {answer})
        for name, answer in kernel.ANSWERS.items()
    ]


class Client:
    """The state that all cases share."""

    def __init__(self, kind: str) -> None:
        self.host = Host()
        self.table = as_it_is(kind)
        self.folder, self.file = handles(FOLDER, ".", "data")
        self.failures: list[str] = []
        self.witness = self.host.connect(Wish(private=GOOD_PRIVATE))
        self.target = self.witness.memory(8192, LOCAL_WRITE | REMOTE_WRITE)
        self.rounds = 0

    def fail(self, name: str, **about: Any) -> None:
        self.failures.append(f"{name}: {about}")
        channel.send(f"FAILED: {self.failures[-1]}")

    def others_go_on(self, name: str) -> None:
        """The honest connection reads a page by Write chunk."""
        self.rounds += 1
        segment = Segment(self.target.key, 4096, self.target.address)
        xid = 0x11110000 + self.rounds
        body = rpc.opaque(self.file) + rpc.hyper(0) + rpc.words(4096)
        head = encode(Header(xid, calls.CREDITS, 0, writes=((segment,),)))
        try:
            self.witness.send(head + rpc.call(xid, rpc.READ, body))
            answer = self.witness.next(PATIENCE)
        except (GoneError, VerbsError):
            answer = None
        if not answer or outcome(answer, head) != (xid, "ok"):
            self.fail(name, witness=answer and answer.data.hex(), ended=self.witness.ended)
            self.witness.close()
            self.witness = self.host.connect(Wish(private=GOOD_PRIVATE))
            self.target = self.witness.memory(8192, LOCAL_WRITE | REMOTE_WRITE)

    # --- one message ---

    def converse(
        self, connection: Connection, case: Case, message: bytes, before: bytes = b""
    ) -> list[str]:
        """The answers to a message, up to where two calls sent behind it were answered."""
        answers: list[str] = []
        asked, heard = 1, 0
        try:
            for _ in range(case.times):
                connection.send(message, case.opcode, case.imm)
            probe(connection)
            while heard < 2:
                answer = connection.next(PATIENCE)
                if answer is None:
                    return [*answers, _without_answer(connection, heard)]
                xid, word = outcome(answer, message + before)
                if xid == PROBE:
                    heard += 1
                else:
                    answers.append(word)
                # what need not be answered, but may be, has had its time when the second one is
                if heard == asked == 1 and ("dropped" in case.may or len(answers) >= case.times):
                    probe(connection)
                    asked = 2
        except (GoneError, VerbsError):
            return [*answers, "ended"]
        return answers or ["dropped"]


def _without_answer(connection: Connection, probes: int) -> str:
    if connection.ended:
        return "ended"
    return "dropped" if probes else "silent"


def by_hand(client: Client, only: str) -> dict[str, list[str]]:
    answers_by_case: dict[str, list[str]] = {}
    for case in client.table:
        if only not in case.name:
            continue
        wish = Wish(private=case.private, size=case.size, receives=16 + case.times)
        try:
            connection = client.host.connect(wish)
        except GoneError as error:
            client.fail(case.name, connecting=str(error))
            continue
        site = Site(connection, client.file, client.folder)
        message = case.make(site)
        answers_by_case[case.name] = answers = client.converse(connection, case, message)
        connection.close()
        if not site.intact(message):
            client.fail(case.name, memory="written to where nothing was offered")
        if not set(answers) <= case.may:
            client.fail(case.name, answers=answers, may=sorted(case.may))
        client.others_go_on(case.name)
        channel.send(f"{case.name}: {answers}")
    return answers_by_case


# --- the server's memory ---

KEYS = (0, 1, 0x100, 0x101, 0x200, 0x1000, 0x10000, 0x7FFFFFFF, 0xFFFFFF00, 0xFFFFFFFF)
PLACES = (0, 0x1000, 0x7F0000000000, 0xFFFF888000000000, 0xFFFFFFFF81000000)
# IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR
REFUSED = (9, 10)
# IBV_WC_WR_FLUSH_ERR
FLUSHED = 5


def reaching(client: Client, seed: str) -> int:
    """Read and write with keys that are guessed: refused, and the connection ends."""
    rng, tried = random.Random(seed), 0  # noqa: S311 - no secret
    keys = [*KEYS, *(rng.getrandbits(32) for _ in range(10))]
    for number, key in enumerate(keys):
        place = PLACES[number % len(PLACES)]
        for kind in ("read", "write"):
            status, data, ended = _reached(client, kind, place, key)
            if status not in REFUSED or data.strip(b"\0") or not ended:
                client.fail(f"{kind}s with key {key:#x}", status=status, ended=ended)
            tried += 1
    client.others_go_on("reaching")
    return tried


def _reached(client: Client, kind: str, place: int, key: int) -> tuple[int, bytes, str]:
    """The status of a read or write, what was read, and how its connection ended.

    A busy host may lose the message that confirms a connection. Its other end then rejects the
    connection although this end has it, and the work is flushed before the other end looks at the
    key: the key is tried again.
    """
    for _ in range(ENOUGH):
        connection = client.host.connect(Wish(private=GOOD_PRIVATE, reads_anyway=kind == "read"))
        if kind == "read":
            status, data = connection.try_read(64, place, key)
        else:
            status, data = connection.try_write(b"\x66" * 64, place, key), b""
        client.host.wait(lambda c=connection: bool(c.ended), PATIENCE, late=False)
        ended = connection.ended
        connection.close()
        if status != FLUSHED:
            break
    return status, data, ended


# --- mutated messages ---

BASES = (
    *("a WRITE's data by chunk", "READ into a Write chunk", "READDIR into a Reply chunk"),
    *("NULL at position zero", "WRITE at position zero", "READ with two Write chunks"),
    *("a Read chunk in ten segments", "1 credits asked for", "one xid four times"),
    *("READ with a Write and a Reply chunk", "NULL in segments of odd sizes"),
)


class Mutants:
    """Connections that live until a message ends them."""

    def __init__(self, client: Client, seed: str) -> None:
        self.client, self.seed = client, seed
        self.words: Counter[str] = Counter()
        self.renew()

    def renew(self) -> None:
        self.connection = self.client.host.connect(Wish(private=GOOD_PRIVATE, receives=32))
        self.site = Site(self.connection, self.client.file, self.client.folder)
        self.bases = [CASES[name].make(self.site) for name in BASES]
        self.recent: deque[bytes] = deque(maxlen=4)

    def send(self, number: int) -> None:
        message = mutated(self.seed, number, self.bases)
        # its server may die of it
        channel.send(shown(number, message))
        self.recent.append(message.ljust(-(-len(message) // 4) * 4, b"\0"))
        case = Case(f"mutant {number}", lambda _: message, calls.ANY | {"vers"})
        # an answer may be to one of those before
        before = b"".join(self.recent)
        answers = self.client.converse(self.connection, case, message, before)
        self.words.update(word.split(":")[0].split(" ")[0] for word in answers)
        if bad := [word for word in answers if word not in case.may]:
            self.client.fail(case.name, answers=bad, message=message.hex())
        if not self.site.intact(b"".join(self.recent)):
            about = {"memory": "written to where nothing was offered", "message": message.hex()}
            self.client.fail(case.name, **about)
        channel.send(f"{case.name}: {answers}")
        if self.connection.ended or "silent" in answers:
            self.connection.close()
            self.renew()


class Attack(NamedTuple):
    """The outcomes of messages."""

    by_hand: dict[str, list[str]]
    """the answers to each case of the table"""
    guesses: int
    """reads and writes with keys that were guessed"""
    mutants: int
    answers: dict[str, int]
    """to mutated messages, and their number"""
    rounds: int
    """READs of the honest connection"""
    failures: list[str]


def attack(kind: str, seed: str, first: int, count: int, only: str) -> Attack:
    """Send the table, each case over a connection of its own, guess keys, and send mutants.

    ``kind`` is the server's: "kernel", whose deviations are known, or "ours".  ``count`` mutated
    messages are numbered from ``first``; if that is not 0, the rest is left out.  ``only`` is in
    the names of the cases.  The mount and an honest connection are used all the while.
    """
    client = Client(kind)
    answers, guesses, sent = dict[str, list[str]](), 0, 0
    with Bystander(HERE) as bystander:
        if not first:
            answers, guesses = by_hand(client, only), reaching(client, seed)
        mutants = Mutants(client, seed)
        for number in range(first, first + count):
            if len(client.failures) >= ENOUGH:
                break
            mutants.send(number)
            sent += 1
            if number % 20 == 0:
                client.others_go_on(f"mutant {number}")
        mutants.connection.close()
    client.witness.close()
    print("rounds of the mount:", bystander.rounds)
    words = dict(mutants.words)
    return Attack(answers, guesses, sent, words, client.rounds, client.failures)
