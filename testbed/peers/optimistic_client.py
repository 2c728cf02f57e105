# SPDX-License-Identifier: Apache-2.0
"""A client of the personality optimistic that reads too much, on the host of the server.

Each case may end the second connection that it makes. The first one has to answer afterwards, and
no grant is left.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from wire.notices import Credit, Grant, Notice, Revoke, encode
from wire.rpcrdma import Segment

from testbed.node import channel
from testbed.node.grants import CARDS, totals
from testbed.node.mounts import HERE
from testbed.peers import optimistic, private_data, rpc, verbs
from testbed.peers.bystander import Bystander, LibraryBystander
from testbed.peers.lanes import read_call
from testbed.peers.optimistic import OPTIMISTIC, granted, notices, revoked
from testbed.peers.peer import SERVER, Connection, GoneError, Wish
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient, contents, host

PAGE = 4096
NOTICES = 64
SIDES = 5
# more than a key has values
USES = 2000


class Client(TokenClient):
    """A first connection, and what it reads."""

    def __init__(self) -> None:
        super().__init__(OPTIMISTIC)
        assert self.agreed == OPTIMISTIC
        self.path, (self.file,) = FOLDER / "data", handles(FOLDER, "data")

    def side(self, token: int = 0, receives: int = 2 * NOTICES, deaf: bool = False) -> Connection:
        """A second connection. The server frees an earlier one in its own time."""
        wish = Wish(
            optimistic.asked(token or self.token), receives=receives, deaf=deaf, rnr_retry=0
        )
        return host().connect(wish)

    def read(self) -> bytes:
        """The beginning of the file, by RPC."""
        return rpc.data_of(self.answer(read_call(0, self.file, 0, 512)))

    def grant(self, side: Connection) -> Segment:
        """Read by RPC until the server grants the extent."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.read()
            message = side.next(0.5)
            if message:
                side.messages.appendleft(message)
                grant = granted(side)
                assert grant
                assert (grant.fh, grant.position) == (self.file, 0)
                return grant.extent
        raise TimeoutError("nothing was granted")


def ends(side: Connection) -> bool:
    host().wait(lambda: bool(side.ended), late=False)
    good = bool(side.ended)
    side.close()
    return good


def is_refused(side: Connection, at: int, key: int, size: int = PAGE) -> bool:
    """Whether an RDMA Read fails and brings nothing."""
    status, came = side.try_read(size, at, key)
    return status != 0 and not any(came)


# --- what is allowed ---


def honest(client: Client) -> bool:
    side, content = client.side(), contents("data")
    extent = client.grant(side)
    status, came = side.read(extent.length, extent.offset, extent.handle)
    good = (status, came, extent.length) == (0, content, len(content))
    # the card reads what was written, but not what is behind the end of the file
    side.close()
    return good


# --- keys ---


def guesses(client: Client, count: int) -> bool:
    """Keys near the right one, and any. A card that goes on after a refusal takes many."""
    chance, good = random.Random(1), []  # noqa: S311 - no secret
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("Y")
    side = client.side()
    extent = client.grant(side)
    near = [extent.handle ^ 1 << bit for bit in range(32)]
    keys = near + [chance.getrandbits(32) for _ in range(count)]
    for key in keys:
        if key != extent.handle:
            good.append(is_refused(side, extent.offset, key))
            # the queue pair goes on
            side.ended = side.ended if side.ended != "remote access error" else ""
    # it is still what it was
    good.append(side.read(PAGE, extent.offset, extent.handle)[0] == 0)
    side.close()
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("N")
    return all(good)


def another_key(client: Client) -> bool:
    """The key of another client, which goes on reading."""
    other = Client()
    theirs, side = other.side(), client.side()
    extent = other.grant(theirs)
    client.grant(side)
    good = is_refused(side, extent.offset, extent.handle) and ends(side)
    good = good and theirs.read(PAGE, extent.offset, extent.handle)[0] == 0
    theirs.close()
    other.connection.close()
    return good


def key_of_its_own_first(client: Client) -> bool:
    """The right key on the first connection."""
    other = Client()
    side = other.side()
    extent = other.grant(side)
    good = is_refused(other.connection, extent.offset, extent.handle)
    side.close()
    other.connection.close()
    return good


def after(change: Callable[[Client], object]) -> Callable[[Client], bool]:
    """Whether a key is refused after the file has changed, and a revocation comes before."""

    def play(client: Client) -> bool:
        side = client.side()
        extent = client.grant(side)
        change(client)
        is_revoked = revoked(side, extent.handle)
        return is_revoked and is_refused(side, extent.offset, extent.handle) and ends(side)

    return play


def overwrite(client: Client) -> None:
    with client.path.open("r+b") as file:
        file.write(b"x")


def withdraw(client: Client) -> None:
    client.path.chmod(0o600)
    client.path.chmod(0o644)


def around(make: Callable[[Segment], tuple[int, int]]) -> Callable[[Client], bool]:
    """Whether a Read at another place is refused: ``make`` returns address and size."""

    def play(client: Client) -> bool:
        side = client.side()
        extent = client.grant(side)
        at, size = make(extent)
        return is_refused(side, at, extent.handle, size) and ends(side)

    return play


def write(client: Client) -> bool:
    side, content = client.side(), contents("data")
    extent = client.grant(side)
    status = side.try_write(b"\x66" * PAGE, extent.offset, extent.handle)
    return status != 0 and contents("data") == content and ends(side)


def invalidate(client: Client) -> bool:
    """The client invalidates the key by a message: its own loss."""
    side, other = client.side(), Client()
    theirs = other.side()
    extent, kept = client.grant(side), other.grant(theirs)
    side.send(encode(Credit(1)), verbs.SEND_WITH_INV, imm=extent.handle)
    host().wait(lambda: bool(side.ended), 1, late=False)
    if not side.ended:
        is_refused(side, extent.offset, extent.handle)
    # a task that changes the file does not wait for that client
    overwrite(client)
    good = is_refused(theirs, kept.offset, kept.handle)
    for each in (side, theirs, other.connection):
        each.close()
    return good


def open_to_write(client: Client) -> None:
    """Have the server revoke, without a change of the file."""
    os.close(os.open(client.path, os.O_WRONLY))


def key_comes_again(client: Client) -> bool:
    """A key has 8 bits of its own, so a region gets it again. It has another address then."""
    side, offsets = client.side(), dict[int, int]()
    while (extent := client.grant(side)).handle not in offsets and len(offsets) < USES:
        offsets[extent.handle] = extent.offset
        open_to_write(client)
        assert revoked(side, extent.handle)
        side.send(encode(Credit(2)))
    # the key of any region: the server may never use a certain one again
    assert extent.handle in offsets, f"{len(offsets)} uses, and no key came again"
    before = offsets[extent.handle]
    if not is_refused(side, before, extent.handle):
        return False
    return extent.offset != before and ends(side)


def late_revocation(client: Client) -> bool:
    """A revocation without a credit precedes the next grant, which waits for it."""
    side = client.side()
    extent = client.grant(side)
    # grants and revocations use up the credits; the last one is for a grant
    for _ in range(NOTICES // 2 - 1):
        open_to_write(client)
        assert revoked(side, extent.handle)
        extent = client.grant(side)
    open_to_write(client)
    assert revoked(side, extent.handle)
    side.send(encode(Credit(1)))
    extent = client.grant(side)
    open_to_write(client)
    silent = [client.read() and notices(side, 0.1) for _ in range(3)]
    side.send(encode(Credit(1)))
    late, end = notices(side, 0.5), time.monotonic() + 60
    while not late and time.monotonic() < end:
        client.read()
        late = notices(side, 0.5)
    # one credit, and no other notice
    client.read()
    rest = notices(side, 0.1)
    good = (silent, late, rest) == ([[], [], []], [Revoke((extent.handle,))], [])
    side.send(encode(Credit(1)))
    return good and bool(client.grant(side)) and is_alive(side)


def is_alive(side: Connection) -> bool:
    good = not side.ended
    side.close()
    return good


# --- connections ---


def refused(connect: Callable[[], Connection]) -> bool:
    try:
        connect().close()
    except GoneError:
        return True
    return False


def wrong_token(client: Client) -> bool:
    return refused(lambda: client.side(token=client.token ^ 1))


def without_first(client: Client) -> bool:
    """A second connection alone, and one of a connection without the personality."""
    token = client.token + 7
    alone = refused(lambda: client.side(token=token))
    plain = host().connect(Wish(private_data.extended(0, token)))
    beside = refused(lambda: client.side(token=token))
    plain.close()
    return alone and beside


def several(client: Client) -> bool:
    """Each second connection ends the one before it; the last one works."""
    side = client.side()
    for _ in range(SIDES):
        client.grant(side)
        before, side = side, client.side()
        if not ends(before):
            return False
    extent = client.grant(side)
    good = side.read(PAGE, extent.offset, extent.handle)[0] == 0
    side.close()
    return good


def first_leaves(client: Client) -> bool:
    """The first connection ends, and with it the second one."""
    other = Client()
    side = other.side()
    other.grant(side)
    other.connection.close()
    return ends(side)


def leaves(client: Client) -> bool:
    side = client.side()
    client.grant(side)
    side.close()
    return True


# --- messages ---


def says(message: bytes) -> Callable[[Client], bool]:
    """Whether a second connection ends when the client sends this."""

    def play(client: Client) -> bool:
        side = client.side()
        client.grant(side)
        side.send(message)
        return ends(side)

    return play


def notice(message: Notice) -> Callable[[Client], bool]:
    return says(encode(message))


def too_many_credits(client: Client) -> bool:
    """A credit more than the server has used: it sends one notice, and gets two credits."""
    side = client.side()
    client.grant(side)
    side.send(encode(Credit(NOTICES + 1)))
    return ends(side)


def no_receives(client: Client) -> bool:
    """Notices find no receive. A task that changes the file does not wait for that."""
    side = client.side(receives=1, deaf=True)
    extent = client.grant(side)
    for _ in range(3):
        overwrite(client)
        for _ in range(5):
            client.read()
    # the server has ended the connection, or does so now
    return is_unreachable(side, extent) and ends(side)


def is_unreachable(side: Connection, extent: Segment) -> bool:
    try:
        return is_refused(side, extent.offset, extent.handle)
    except GoneError:
        return True


def no_credits(client: Client) -> bool:
    """The client never returns a credit: the server stops sending, and revokes without notices."""
    side = client.side()
    client.grant(side)
    count = 1
    for _ in range(NOTICES + 20):
        # the server announces the grant again
        client.read()
        count += len(notices(side, 0.03))
    overwrite(client)
    count += len(notices(side, 1))
    good = 0 < count <= NOTICES and not side.ended and pages_of_the_file(client) == 0
    side.close()
    return good


def pages_of_the_file(client: Client) -> int:
    """Pages granted beyond those of the honest mount, after a change of the file."""
    before = totals()["granted_pages"]
    overwrite(client)
    return before - totals()["granted_pages"]


CASES: dict[str, Callable[[Client], bool]] = {
    "honest": honest,
    "the key of another client": another_key,
    "the key on the first connection": key_of_its_own_first,
    "the key after a write": after(overwrite),
    "the key after a chmod": after(withdraw),
    "the key after a truncation": after(lambda c: os.truncate(c.path, 65536)),
    "the key comes again": key_comes_again,
    "a late revocation": late_revocation,
    "before the extent": around(lambda x: (x.offset - PAGE, PAGE)),
    "behind the extent": around(lambda x: (x.offset + x.length, PAGE)),
    "across the end": around(lambda x: (x.offset + x.length - 1, 2)),
    "far away": around(lambda x: (x.offset + (1 << 40), PAGE)),
    "address 0": around(lambda _: (0, PAGE)),
    "more than there is": around(lambda x: (x.offset, 1 << 20)),
    "a write": write,
    "an invalidation": invalidate,
    "wrong token": wrong_token,
    "without a first connection": without_first,
    "several": several,
    "the first leaves": first_leaves,
    "leaves": leaves,
    "noise": says(bytes(range(200))),
    "one byte": says(b"x"),
    "a Call": says(rpc.words(1, 1, 32, 0, 0, 0, 0) + rpc.call(1, rpc.NULL)),
    "no credits": says(encode(Credit(0))),
    "a long credit": says(encode(Credit(1)) + bytes(4)),
    "too long": says(bytes(3000)),
    "a grant": notice(Grant(60, 0, Segment(1, PAGE, 0), b"f" * 28)),
    "a revocation": notice(Revoke((1,))),
    "too many credits": too_many_credits,
    "all credits there are": notice(Credit(0xFFFFFFFF)),
    "no receives": no_receives,
    "no credits returned": no_credits,
}


def played(case: Callable[[Client], bool], client: Client) -> list[str]:
    """List the failures of a case."""
    wrong = []
    try:
        if not case(client):
            wrong.append("not refused")
    except (GoneError, TimeoutError, AssertionError) as error:
        wrong.append(repr(error))
    if not client.answers():
        wrong.append("the first connection does not answer")
    return wrong


def misbehave(keys: int) -> list[str]:
    """Play each case, and guess ``keys``; returns the failures.

    Beside an honest mount, and an honest client without a mount that reads by reference.
    """
    failures: list[str] = []
    cases = {"honest": honest, "guessed keys": lambda client: guesses(client, keys), **CASES}
    target, file = f"{SERVER}:/export", Path("/export/kept")
    with Bystander(HERE), LibraryBystander(target, file):
        client = Client()
        for name, case in cases.items():
            channel.send(name)
            failures += [f"{name}: {failure}" for failure in played(case, client)]
        client.connection.close()
    return failures
