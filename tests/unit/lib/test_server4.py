# SPDX-License-Identifier: Apache-2.0
"""The NFSv4.1 server of tests/device against COMPOUNDs made by hand: what RFC 8881 forbids.

The library has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from device import (
    COMPILER,
    FOLDER,
    GRACE_FOREVER,
    LINK,
    OPERATION,
    SANITIZER,
    Change,
    Device,
    build,
    peer,
)
from device.peer import (
    ANONYMOUS,
    BOTH,
    BYPASS,
    CURRENT,
    FH,
    GETFH,
    NO_DELEGATION,
    NONE,
    OPEN,
    PREVIOUS,
    PUTFH,
    READ,
    READS,
    SEQUENCE,
    WRITE,
    WRITES,
    Peer,
    attributes,
    bitmap,
    op,
    opaque,
    open_file,
    read,
    u32,
    u64,
    write,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

DATA = bytes(range(256)) * 200
NOENT, EXIST, NOTDIR, ISDIR, INVAL, NOTEMPTY, STALE = 2, 17, 20, 21, 22, 66, 70
NOTSUPP, TOOSMALL, BADTYPE, DELAY, EXPIRED, LOCKED, GRACE = (
    10004, 10005, 10007, 10008, 10011, 10012, 10013,
)  # fmt: skip
SHARE_DENIED, CLID_INUSE, NOFILEHANDLE, MINOR, STALE_CLIENTID = 10015, 10017, 10020, 10021, 10022
OLD_STATEID, BAD_STATEID, NOT_SAME, SYMLINK, ATTRNOTSUPP, NO_GRACE, RECLAIM_BAD, BADXDR = (
    10024, 10025, 10027, 10029, 10032, 10033, 10034, 10036,
)  # fmt: skip
LOCKS_HELD, OPENMODE, BADNAME, OP_ILLEGAL, ADMIN_REVOKED = 10037, 10038, 10041, 10044, 10047
BADSESSION, BADSLOT, COMPLETE_ALREADY, NOT_BOUND, MISORDERED, POSITION = (
    10052, 10053, 10054, 10055, 10063, 10064,
)  # fmt: skip
REQ_TOO_BIG, REP_TOO_BIG, TOO_BIG_TO_CACHE, UNCACHED, TOO_MANY, NOT_IN_SESSION, BUSY = (
    10065, 10066, 10067, 10068, 10070, 10071, 10074,
)  # fmt: skip
FALSE_RETRY, BAD_HIGH_SLOT, NOT_ONLY = 10076, 10077, 10081
RECLAIM_NEEDED, ALL_REVOKED, SOME_REVOKED, ADMIN = 0x100, 0x8, 0x10, 0x20


def loaded(path: Path) -> Device:
    device = Device(path)
    device.put("/export", kind=FOLDER)
    device.put("/export/data", DATA)
    device.put("/export/link", b"data", kind=LINK)
    return device


@pytest.fixture(scope="module")
def library() -> Path:
    return build(SANITIZER)


@pytest.fixture
def device(library: Path) -> Iterator[Device]:
    made = loaded(library)
    yield made
    made.reset()


@pytest.fixture
def opened(device: Device) -> Iterator[Peer]:
    made = Peer(device).start()
    yield made
    made.close()


def faulted(device: Device, text: str) -> bool:
    return any(text in fault for fault in device.faults)


# --- what is right ---


def test_files_are_read_and_written(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    made = opened(
        op(PUTFH, opaque(folder)),
        open_file(b"new", access=WRITES, how=u32(peer.UNCHECKED) + attributes(mode=0o640)),
        op(GETFH),
        write(CURRENT, 0, b"unstable", 0),
        write(CURRENT, 8, b"stable"),
        op(peer.GETATTR, bitmap(1, 4, 8, 20, 33, 35)),
    )
    assert made.statuses == [0] * 7
    handle, stateid = made[GETFH], made[OPEN].stateid
    assert made[OPEN].set == [33]
    bits, values = made[peer.GETATTR]
    assert bits == [1, 4, 8, 20, 33, 35]
    assert values[:12] == u32(1) + u64(14)
    assert device.get("/export/new") == b"unstablestable"
    assert device.get("/export/new", disk=True) == bytes(8) + b"stable"
    reply = opened.at(handle, op(peer.COMMIT, u64(0), 0), op(peer.CLOSE, 0, stateid))
    assert reply.status == 0
    assert reply[peer.CLOSE] == NONE
    assert device.get("/export/new", disk=True) == b"unstablestable"
    assert (device.opens, device.opened, device.closed) == (0, 1, 1)
    assert opened.at(opened.handle("export", "new"), read(ANONYMOUS, 5, 100))[READ] == (
        True, b"blestable",
    )  # fmt: skip
    assert not device.faults


def test_names_and_attributes(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    made = opened.at(folder, op(peer.CREATE, 2, opaque(b"sub"), attributes(mode=0o700)), op(GETFH))
    assert made.statuses == [0] * 4
    assert made[peer.CREATE][1] == [33]
    inner = made[GETFH]
    link = op(peer.CREATE, 5, opaque(b"abc"), opaque(b"l"), attributes())
    target = opened.at(inner, link, op(GETFH), op(peer.READLINK))
    assert target[peer.READLINK] == b"abc"
    moved = opened(
        op(PUTFH, opaque(folder)), op(peer.SAVEFH), op(PUTFH, opaque(inner)),
        op(peer.RENAME, opaque(b"data"), opaque(b"moved")),
        op(peer.RESTOREFH), op(peer.LOOKUP, opaque(b"data")),
    )  # fmt: skip
    assert moved.statuses == [0] * 6 + [NOENT]
    assert device.get("/export/sub/moved") == DATA
    listed = opened.at(inner, op(peer.READDIR, u64(0), u64(0), 0, 4000, bitmap(1, 11)))
    _verifier, entries, end = listed[peer.READDIR]
    assert end
    assert [(name, bits, values) for _cookie, name, (bits, values) in entries] == [
        (b"l", [1, 11], u32(5, 0)), (b"moved", [1, 11], u32(1, 0)),
    ]  # fmt: skip
    assert all(cookie > 2 for cookie, _name, _attributes in entries)
    file = opened.handle("export", "sub", "moved")
    assert opened.at(file, op(peer.SETATTR, ANONYMOUS, attributes(3, 0o600)))[peer.SETATTR] == [
        4,
        33,
    ]
    assert device.get("/export/sub/moved") == DATA[:3]
    assert opened.at(folder, op(peer.REMOVE, opaque(b"sub"))).status == NOTEMPTY
    assert (
        opened.at(inner, op(peer.REMOVE, opaque(b"l")), op(peer.REMOVE, opaque(b"moved"))).status
        == 0
    )
    assert opened.at(folder, op(peer.REMOVE, opaque(b"sub"))).status == 0
    assert opened.at(inner, op(GETFH)).status == STALE
    assert not device.faults


@pytest.mark.parametrize("long", (False, True))
def test_data_is_in_chunks(device: Device, opened: Peer, long: bool) -> None:
    """Each READ takes the next Write chunk; an empty one leaves the data in the message."""
    folder = opened.handle("export")
    data, handle = opened.open(folder, b"new", access=BOTH, how=u32(0) + attributes())
    first, second = write(data.stateid, 0, b"a" * 1001), write(data.stateid, 1001, b"b" * 502)
    places = ((len(first) - 1004, 1001), (len(first) + len(second) - 504, 502))
    reply = opened.at(handle, first, second, places=places, long=long, reply=4000)
    assert reply.statuses == [0] * 4
    reads = [read(data.stateid, at, 500) for at in (0, 700, 1300)]
    reply = opened.at(handle, *reads, room=(500, 0, 600, 50))
    whole = b"a" * 1001 + b"b" * 502
    assert [each.value for each in reply.results[2:]] == [
        (False, whole[:500]), (False, whole[700:1200]), (True, whole[1300:]),
    ]  # fmt: skip
    link = opened.handle("export", "link")
    assert opened.at(link, op(peer.READLINK), room=(100,))[peer.READLINK] == b"data"
    text = op(peer.CREATE, 5, opaque(b"text"), opaque(b"to"), bitmap(), opaque(b""))
    assert opened.at(folder, text, op(GETFH), places=((12, 4),)).status == 0
    assert device.get("/export/to") == b"text"
    assert opened.at(handle, read(ANONYMOUS, 0, 60_000), reply=60_000)[READ] == (True, whole)
    assert not device.faults


def test_a_chunk_for_what_is_not_data_is_a_fault(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    assert opened.at(folder, op(peer.LOOKUP, opaque(b"data")), places=((8, 4),)).status == 0
    assert faulted(device, "for what is not data")
    # operations behind an error are not looked at
    before = len(device.faults)
    assert opened(op(peer.LOOKUP), read(ANONYMOUS, 0, 9), room=(9,)).status == NOFILEHANDLE
    assert len(device.faults) == before
    opened(op(peer.PUTROOTFH), room=(100,))
    assert faulted(device, "without READ and READLINK")


def test_chunks_that_are_too_small_are_faults(device: Device, opened: Peer) -> None:
    file = opened.handle("export", "data")
    for terms, text in (({"room": (99,)}, "a Write chunk of 99"), ({}, "no room for it")):
        with pytest.raises(ConnectionError, match="ERR_CHUNK"):
            opened.at(file, read(ANONYMOUS, 0, 100 if terms else 9999), cached=False, **terms)
        opened.next[0] += 1
        assert faulted(device, text)


# --- sessions ---


def test_a_retry_has_the_reply_of_the_cache(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    device.set(end_behind=1)
    words = (op(PUTFH, opaque(folder)), op(peer.REMOVE, opaque(b"data")))
    slot = opened.slot(0, opened.next[0])
    assert opened.compound(slot, *words) is None
    assert device.get("/export/data") is None
    opened.reconnect()
    reply = opened.compound(slot, *words)
    assert reply
    assert reply.statuses == [0, 0, 0]
    assert (device.replays, device.uncached) == (1, 0)
    assert not device.faults


@pytest.mark.parametrize("keep_all", (0, 1))
def test_a_retry_without_cachethis(device: Device, opened: Peer, keep_all: int) -> None:
    file = opened.handle("export", "data")
    device.set(end_behind=1, keep_all=keep_all)
    words = (
        opened.slot(0, opened.next[0], cached=False),
        op(PUTFH, opaque(file)),
        read(ANONYMOUS, 0, 9),
    )
    assert opened.compound(*words) is None
    opened.reconnect()
    reply = opened.compound(*words, room=(9,))
    assert reply
    assert reply.statuses == ([0, 0, 0] if keep_all else [0, UNCACHED])
    assert [each.op for each in reply.results[:2]] == [SEQUENCE, PUTFH]
    assert (device.replays, device.uncached) == (1, 1 - keep_all)
    # SEQUENCE alone is always kept
    opened.next[0] += 1
    alone = opened.slot(0, opened.next[0], cached=False)
    device.set(end_behind=1)
    assert opened.compound(alone) is None
    opened.reconnect()
    assert opened.only(alone).status == 0
    assert not device.faults


def held(device: Device, opened: Peer) -> None:
    """A COMPOUND is held by the numbers of its operations."""
    device.hold4(READ)
    file = opened.handle("export", "data")
    assert opened.try_call(op(PUTFH, opaque(file)), read(ANONYMOUS, 0, 2)) is None
    assert device.held == 1
    assert opened(op(peer.PUTROOTFH), slot=1).status == 0
    device.hold4()
    reply = opened.reply()
    assert reply
    assert reply[READ] == (False, DATA[:2])
    assert not device.faults


def test_replies_are_held(device: Device, opened: Peer) -> None:
    held(device, opened)


def false_retry(device: Device, opened: Peer) -> None:
    opened.reconnect()
    number = opened.next[0] - 1
    assert opened.only(opened.slot(0, number)).status == FALSE_RETRY
    assert faulted(device, "another request with the sequence ID")
    last = (opened.slot(0, opened.next[0]),)
    assert opened.only(*last).status == 0
    assert opened.only(*last, user=1).status == FALSE_RETRY


def same_connection(device: Device, opened: Peer) -> None:
    words = opened.slot(0, opened.next[0])
    assert opened.only(words).status == opened.only(words).status == 0
    assert faulted(device, "a retry on the connection")


def misordered(device: Device, opened: Peer) -> None:
    for slot, number in ((0, 5), (3, 2), (3, 0), (0, 2**32 - 1)):
        device.set(late=0)
        assert opened.only(opened.slot(slot, number)).status == MISORDERED
    assert faulted(device, "the sequence ID 5 of slot 0 behind 1")
    assert opened.only(opened.slot(0, 2)).status == 0


def slots(device: Device, opened: Peer) -> None:
    assert opened.only(opened.slot(64)).status == BADSLOT
    assert faulted(device, "slot 64 of 64")
    assert opened.only(opened.slot(2, highest=1)).status == BAD_HIGH_SLOT
    assert opened.only(opened.slot(2, highest=64)).status == BAD_HIGH_SLOT
    assert faulted(device, "the highest slot 64")
    assert opened.only(opened.slot(63)).status == 0
    assert device.highest_slot == 63


def early(device: Device, opened: Peer) -> None:
    device.hold4(peer.PUTROOTFH)
    assert opened.try_call(op(peer.PUTROOTFH)) is None
    opened.only(opened.slot(0, opened.next[0]))
    assert faulted(device, "slot 0 is used again before")
    device.hold4()


def target(device: Device, opened: Peer) -> None:
    """Slots that the server takes back are refused once the client has said that it knows."""
    device.set(target_slots=4)
    assert opened(slot=9)[SEQUENCE][3:5] == (63, 3)
    assert opened(slot=10)[SEQUENCE][3:5] == (63, 3)
    assert not device.faults
    opened(slot=10)
    assert faulted(device, "slot 10 is used again: the client knows")
    # a request for another slot may have been sent before
    assert opened(slot=3)[SEQUENCE][3:5] == (63, 3)
    assert opened(slot=3)[SEQUENCE][3:5] == (3, 3)
    assert opened.only(opened.slot(9, 2)).status == BADSLOT
    assert faulted(device, "slot 9 of 4")
    device.set(target_slots=0)
    assert opened(slot=2)[SEQUENCE][3:5] == (63, 63)
    assert opened.only(opened.slot(9, 1)).status == 0


def limits(device: Device, opened: Peer) -> None:
    other = Peer(device, b"small").start(2000, 1500, 400, 4, 2)
    file = opened.handle("export", "data")
    root = op(peer.PUTROOTFH)
    assert other(root, root, root).status == 0
    assert other(root, root, root, root).statuses == [TOO_MANY]
    assert faulted(device, "ca_maxoperations is 4")
    assert other(op(PUTFH, opaque(bytes(2000)))).statuses == [REQ_TOO_BIG]
    assert faulted(device, "ca_maxrequestsize is 2000")
    # the data of Read chunks counts
    big = write(ANONYMOUS, 0, bytes(2000))
    assert other.at(file, big, places=((len(big) - 2000, 2000),)).statuses == [REQ_TOO_BIG]
    assert other.at(file, read(ANONYMOUS, 0, 1600), cached=False).statuses == [0, 0, REP_TOO_BIG]
    assert (
        other.at(file, read(ANONYMOUS, 0, 1600), room=(1600,), cached=False).status == REP_TOO_BIG
    )
    assert other.at(file, read(ANONYMOUS, 0, 500), cached=False).status == 0
    assert other.at(file, read(ANONYMOUS, 0, 500)).statuses == [0, 0, TOO_BIG_TO_CACHE]
    assert other.only(other.slot(2)).status == BADSLOT
    other.close()


def positions(device: Device, opened: Peer) -> None:
    root, end = op(peer.PUTROOTFH), op(peer.DESTROY_SESSION, opened.session)
    assert opened.only(root).status == NOT_IN_SESSION
    assert opened(opened.slot(1)).statuses == [0, POSITION]
    exchange = op(peer.EXCHANGE_ID, u64(1), opaque(b"x"), 0, 0, 0)
    for words in ((exchange, root), (end, end)):
        reply = opened.compound(*words)
        assert reply
        assert reply.statuses == [NOT_ONLY]
    assert opened(end, root).statuses == [0, NOT_ONLY]
    assert opened(op(peer.BIND_CONN_TO_SESSION, opened.session, 1, 0)).statuses == [0, NOT_ONLY]
    assert opened(op(59)).results[1] == (OP_ILLEGAL, OP_ILLEGAL, None)
    assert opened(op(30, u64(1))).statuses == [0, NOTSUPP]
    for text in ("without SEQUENCE", "SEQUENCE as operation 1", "is one of 2", "operation 59",
                 "operation 30, which", "that is not the last"):  # fmt: skip
        assert faulted(device, text)
    reply = opened.compound(opened.slot(7), minor=2)
    assert reply
    assert (reply.status, reply.results) == (MINOR, [])


def malformed(device: Device, opened: Peer) -> None:
    assert opened(op(peer.LOOKUP, 5)).status == NOFILEHANDLE
    assert opened(op(peer.PUTROOTFH), op(peer.LOOKUP, 5)).status == BADXDR
    assert faulted(device, "arguments of operation 15 that are malformed")
    opened.compound(opened.slot(9), u32(0))
    assert opened(op(peer.PUTROOTFH), op(peer.LOOKUP, 2, b"ab\0x")).status == NOENT
    assert faulted(device, "padding of XDR that is not zero")
    assert opened(op(peer.PUTROOTFH) + u32(0)).status == 0
    assert faulted(device, "4 bytes behind the operations")
    for value, status in (("..", BADNAME), ("a/b", BADNAME), ("", INVAL), ("a\0", INVAL)):
        assert opened(op(peer.PUTROOTFH), op(peer.LOOKUP, opaque(value.encode()))).status == status


def unknown(device: Device, opened: Peer) -> None:
    """Bits that NFSv4.1 does not have."""
    assert Peer(device, b"bits").exchange(flags=0x200).status == INVAL
    assert faulted(device, "EXCHANGE_ID with the flags 200")
    assert opened.create(flags=8).status == INVAL
    assert faulted(device, "CREATE_SESSION with the flags 8")
    file, folder = opened.handle("export", "data"), opened.handle("export")
    for share, deny in ((0, 0), (5, 0), (READS | 0x600, 0), (READS, 4)):
        opening = open_file(b"data", access=share, deny=deny)
        assert opened.at(folder, opening, op(GETFH)).status == INVAL
    assert faulted(device, "share_access 601 and share_deny 0")
    opened.at(file, op(peer.ACCESS, 0x40))
    assert faulted(device, "ACCESS with unknown bits: 40")
    opened.at(file, op(peer.GETATTR, bitmap(76)))
    assert faulted(device, "a bitmap with unknown bits in word 2")
    assert opened.at(file, op(peer.GETATTR, bitmap(48))).status == INVAL
    assert opened.at(file, op(peer.SETATTR, ANONYMOUS, attributes(mode=0o20000))).status == INVAL
    assert faulted(device, "a mode with unknown bits")
    assert opened.at(file, op(peer.SETATTR, ANONYMOUS, bitmap(20), opaque(u64(1)))).status == INVAL
    assert faulted(device, "attributes that cannot be set")
    assert (
        opened.at(file, op(peer.SETATTR, ANONYMOUS, bitmap(12), opaque(u64(1)))).status
        == ATTRNOTSUPP
    )
    assert opened.at(file, op(peer.SETATTR, ANONYMOUS, bitmap(4), opaque(u32(1)))).status == BADXDR
    assert opened.at(folder, op(peer.READDIR, u64(1), u64(0), 0, 999, bitmap())).status == NOT_SAME
    assert opened.at(folder, op(peer.READDIR, u64(0), u64(0), 0, 20, bitmap())).status == TOOSMALL


def clients(device: Device, opened: Peer) -> None:
    """The cases of RFC 8881, section 18.35.4."""
    update = 0x40000000
    again = opened.exchange()
    assert again.value["client"] == opened.client
    assert again.value["flags"] & 0x80000000
    assert opened.exchange(update).status == 0
    assert opened.exchange(update, user=5).status == 1
    assert Peer(device, b"none").exchange(update).status == NOENT
    assert Peer(device, b"peer", 2).exchange(update).status == NOT_SAME
    opened.open(opened.handle("export"), b"data")
    assert opened.exchange(user=5).status == CLID_INUSE
    # the client restarts: what it was before ends with its next session
    reborn = Peer(device, b"peer", 2)
    made = reborn.exchange().value
    assert opened().status == 0
    reborn.client, reborn.sequence = made["client"], made["sequence"]
    assert (device.clients, device.opens) == (2, 1)
    assert reborn.create(sequence=reborn.sequence + 1).status == MISORDERED
    first = reborn.create()
    assert first.status == 0
    assert reborn.create() == first
    assert (device.clients, device.sessions, device.opens) == (1, 1, 0)
    assert opened.only(opened.slot(0, opened.next[0])).status == BADSESSION
    opened.client += 1 << 40
    assert opened.create().status == STALE_CLIENTID
    assert faulted(device, "CREATE_SESSION with the sequence ID")


def ends(device: Device, opened: Peer) -> None:
    data, handle = opened.open(opened.handle("export"), b"data")
    assert opened.only(op(peer.DESTROY_CLIENTID, u64(opened.client))).status == BUSY
    other = Peer(device, b"other")
    assert other.only(op(peer.DESTROY_SESSION, opened.session)).status == NOT_BOUND
    assert faulted(device, "DESTROY_SESSION on a connection")
    end = op(peer.DESTROY_SESSION, opened.session)
    assert opened.only(end).status == 0
    assert opened.only(end).status == BADSESSION
    assert opened.only(op(peer.DESTROY_CLIENTID, u64(opened.client))).status == BUSY
    opened.sequence = opened.exchange().value["sequence"]
    opened.session = opened.create().value[0]
    opened.next.clear()
    assert opened.at(handle, op(peer.CLOSE, 0, data.stateid)).status == 0
    assert opened(op(peer.DESTROY_SESSION, opened.session)).status == 0
    assert opened.only(op(peer.DESTROY_CLIENTID, u64(opened.client))).status == 0
    assert (device.clients, device.sessions, device.opens) == (0, 0, 0)
    assert opened.only(op(peer.DESTROY_CLIENTID, u64(opened.client))).status == STALE_CLIENTID


def bindings(device: Device, opened: Peer) -> None:
    device.set(bind=1)
    assert opened().status == 0
    opened.reconnect()
    assert opened.only(opened.slot(0, opened.next[0])).status == NOT_BOUND
    binding = op(peer.BIND_CONN_TO_SESSION, opened.session, 3, 0)
    assert opened.only(binding).value == (opened.session, 1, 0)
    assert opened().status == 0
    assert opened.only(op(peer.BIND_CONN_TO_SESSION, opened.session, 4, 0)).status == INVAL
    assert faulted(device, "BIND_CONN_TO_SESSION of the channels 4")


def reclaim_complete(device: Device, opened: Peer) -> None:
    assert opened(op(peer.RECLAIM_COMPLETE, 0)).status == COMPLETE_ALREADY
    new = Peer(device, b"new").start(complete=False)
    folder = new.handle("export")
    assert new.at(folder, open_file(b"data"), op(GETFH)).status == GRACE
    assert faulted(device, "before RECLAIM_COMPLETE")
    assert new(op(peer.RECLAIM_COMPLETE, 0)).status == 0
    assert new.at(folder, open_file(b"data"), op(GETFH)).status == 0
    new.close()


# --- opens ---


def modes(device: Device, opened: Peer) -> None:
    data, handle = opened.open(opened.handle("export"), b"data", access=READS)
    assert opened.at(handle, write(data.stateid, 0, b"x")).status == OPENMODE
    assert faulted(device, "WRITE to a file that is open to read only")
    assert device.get("/export/data") == DATA
    assert opened.at(handle, op(peer.SETATTR, data.stateid, attributes(0))).status == OPENMODE
    opened.at(handle, write(ANONYMOUS, 0, b"x"))
    assert faulted(device, "WRITE with a special stateid")
    more, _ = opened.open(opened.handle("export"), b"data", access=WRITES)
    # one set of opens of an owner
    assert more.stateid[4:] == data.stateid[4:]
    assert (data.stateid[:4], more.stateid[:4]) == (u32(1), u32(2))
    assert device.opens == 1
    assert opened.at(handle, write(data.stateid, 0, b"x")).status == OLD_STATEID
    zero = u32(0) + data.stateid[4:]
    assert opened.at(handle, write(zero, 0, b"y")).status == 0
    assert opened.at(handle, write(u32(3) + zero[4:], 0, b"y")).status == BAD_STATEID
    assert opened.at(handle, op(peer.CLOSE, 0, data.stateid)).status == OLD_STATEID
    down = opened.at(handle, op(peer.OPEN_DOWNGRADE, more.stateid, 0, READS, 0))
    assert down[peer.OPEN_DOWNGRADE] == u32(3) + zero[4:]
    assert opened.at(handle, write(zero, 0, b"y")).status == OPENMODE
    assert opened.at(handle, op(peer.OPEN_DOWNGRADE, zero, 0, BOTH, 0)).status == INVAL
    assert faulted(device, "OPEN_DOWNGRADE to access 3")
    assert opened.at(handle, op(peer.CLOSE, 0, zero)).status == 0
    for stateid in (zero, NONE, u32(7) + bytes(12), CURRENT):
        assert opened.at(handle, read(stateid, 0, 1)).status == BAD_STATEID
    other = opened.handle("export")
    assert opened.at(other, read(ANONYMOUS, 0, 1)).status == ISDIR


def shares(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    mine, handle = opened.open(folder, b"data", access=READS, deny=WRITES)
    other = Peer(device, b"other").start()
    writing = open_file(b"data", access=WRITES)
    assert other.at(folder, writing, op(GETFH)).status == SHARE_DENIED
    assert other.at(handle, open_file(access=READS, deny=READS, claim=FH)).status == SHARE_DENIED
    assert other.at(handle, op(peer.SETATTR, ANONYMOUS, attributes(0))).status == LOCKED
    assert other.at(handle, read(ANONYMOUS, 0, 1)).status == 0
    # a stateid is of its client
    assert other.at(handle, read(mine.stateid, 0, 1)).status == BAD_STATEID
    theirs = other.at(handle, open_file(access=READS | NO_DELEGATION, claim=FH))
    assert theirs[OPEN].why == 0
    assert opened.at(handle, op(peer.CLOSE, 0, mine.stateid)).status == 0
    assert other.at(folder, writing, op(GETFH)).status == 0
    assert opened.at(handle, open_file(deny=BOTH, claim=FH)).status == SHARE_DENIED
    none, _ = other.open(folder, b"new", access=READS, deny=READS, how=u32(1) + attributes())
    assert none.flags & 8
    new = opened.handle("export", "new")
    assert opened.at(new, read(ANONYMOUS, 0, 1)).status == LOCKED
    assert opened.at(new, read(BYPASS, 0, 1)).status == 0
    other.close()
    assert not device.faults


def creates(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")

    def create(name: bytes, how: int, *words: bytes, owner: bytes = b"owner") -> int:
        opening = open_file(name, access=WRITES, how=u32(how) + b"".join(words), owner=owner)
        return opened.at(folder, opening, op(GETFH)).status

    zero = attributes(0)
    assert create(b"data", peer.UNCHECKED, attributes(mode=0)) == 0
    assert device.get("/export/data") == DATA
    assert create(b"data", peer.UNCHECKED, zero) == 0
    assert device.get("/export/data") == b""
    assert create(b"data", peer.GUARDED, zero) == EXIST
    assert create(b"one", peer.GUARDED, zero) == 0
    for how, more in ((peer.EXCLUSIVE, ()), (peer.EXCLUSIVE_1, (attributes(mode=0o600),))):
        name = b"only%d" % how
        assert create(name, how, u64(77), *more) == 0
        assert create(name, how, u64(77), *more) == 0
        assert create(name, how, u64(78), *more) == EXIST
    device.set(exclusive_times=1)
    reply = opened.at(
        folder, open_file(b"times", access=BOTH, how=u32(3) + u64(1) + attributes()), op(GETFH)
    )
    assert reply[OPEN].set == [48, 54]
    assert not device.faults
    for name, unset in ((b"only%d" % peer.EXCLUSIVE, 1 << 33), (b"times", 1 << 48 | 1 << 54)):
        data, handle = opened.open(folder, name, access=BOTH)
        assert opened.at(handle, write(data.stateid, 0, b"x")).status == 0
        assert device.faults[-1] == f"attributes {unset:x} are not set behind an exclusive OPEN"
    bits = op(peer.SETATTR, ANONYMOUS, bitmap(48, 54), opaque(u32(0, 0)))
    assert opened.at(handle, bits, op(peer.CLOSE, 0, data.stateid)).status == 0
    assert len(device.faults) == 2
    assert create(b"link", peer.UNCHECKED, zero) == SYMLINK
    assert opened.at(folder, open_file(b"none"), op(GETFH)).status == NOENT
    device.put("/export/sub", kind=FOLDER)
    assert create(b"sub", peer.UNCHECKED, zero) == ISDIR
    assert opened.at(opened.handle("export", "data"), open_file(b"x"), op(GETFH)).status == NOTDIR
    assert len(device.faults) == 2
    assert create(b"bits", peer.UNCHECKED, bitmap(20), opaque(u64(1))) == INVAL
    assert device.get("/export/bits") is None
    assert opened.at(folder, open_file(claim=FH, how=u32(0) + attributes())).status == INVAL
    assert faulted(device, "by the claim 4, which has no name")
    assert (
        opened.at(folder, op(peer.CREATE, 1, opaque(b"f"), attributes()), op(GETFH)).status
        == BADTYPE
    )


def handles(device: Device, opened: Peer) -> None:
    """RFC 8881, section 18.16.4.1: GETFH behind OPEN."""
    folder = opened.handle("export")
    opened.at(folder, open_file(b"data"))
    assert faulted(device, "no GETFH behind operation 18")
    opened.at(folder, op(peer.CREATE, 2, opaque(b"sub"), attributes()), op(peer.PUTROOTFH))
    assert faulted(device, "no GETFH behind operation 6")


def delegations(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    for kind in (1, 2):
        device.set(delegate=kind)
        data, handle = opened.open(folder, b"data", access=WRITES | NO_DELEGATION)
        assert data.delegation
        assert device.delegations == 1
        used = opened.at(handle, write(data.delegation, 0, b"x"))
        assert used.status == (0 if kind == 2 else OPENMODE)
        assert opened.at(handle, op(peer.DELEGRETURN, data.stateid)).status == BAD_STATEID
        assert opened.at(handle, op(peer.CLOSE, 0, data.delegation)).status == BAD_STATEID
        assert opened.at(handle, op(peer.DELEGRETURN, data.delegation)).status == 0
        assert opened.at(handle, op(peer.CLOSE, 0, data.stateid)).status == 0
    assert (device.delegations, device.delegreturns, device.opens) == (0, 2, 0)


def unlinked(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    for preserve in (1, 0):
        device.set(preserve=preserve)
        device.put("/export/file", b"abc")
        data, handle = opened.open(folder, b"file")
        assert bool(data.flags & 8) == bool(preserve)
        assert opened.at(folder, op(peer.REMOVE, opaque(b"file"))).status == 0
        reply = opened.at(handle, read(data.stateid, 0, 9), op(peer.GETATTR, bitmap(35)))
        if preserve:
            assert (reply[READ], reply[peer.GETATTR]) == ((True, b"abc"), ([35], u32(0)))
            assert opened.at(handle, op(peer.CLOSE, 0, data.stateid)).status == 0
        assert opened.at(handle, op(GETFH)).status == STALE
        assert device.opens == 0
    assert not device.faults


# --- loss ---


def expired(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    data, handle = opened.open(folder, b"data", access=BOTH)
    for terms, flag, status in (
        ({}, ALL_REVOKED, EXPIRED),
        ({"path": "/export/data"}, SOME_REVOKED, EXPIRED),
        ({"admin": True}, ADMIN, ADMIN_REVOKED),
    ):
        device.expire(**terms)
        reply = opened.at(handle, write(data.stateid, 0, b"x"))
        assert (reply.status, reply[SEQUENCE][5]) == (status, flag)
        tested = opened(op(peer.TEST_STATEID, 2, data.stateid, ANONYMOUS))
        assert tested[peer.TEST_STATEID] == [status, BAD_STATEID]
        assert opened()[SEQUENCE][5] == flag
        assert opened(op(peer.FREE_STATEID, data.stateid)).status == 0
        assert opened()[SEQUENCE][5] == 0
        assert opened(op(peer.FREE_STATEID, data.stateid)).status == BAD_STATEID
        data, _ = opened.open(folder, b"data", access=BOTH)
        assert opened(op(peer.FREE_STATEID, data.stateid)).status == LOCKS_HELD
    device.expire(forgotten=True)
    reply = opened.at(handle, read(data.stateid, 0, 1))
    assert (reply.status, reply[SEQUENCE][5], device.opens) == (BAD_STATEID, 0, 0)
    device.discard_clients()
    assert opened.only(opened.slot(0, opened.next[0])).status == BADSESSION
    assert opened.create().status == STALE_CLIENTID
    assert not device.faults


def restarted(device: Device, opened: Peer) -> None:
    folder = opened.handle("export")
    data, handle = opened.open(folder, b"data", access=BOTH, deny=WRITES)
    before = opened.at(handle, write(data.stateid, 0, b"lost", 0))[WRITE]
    device.restart()
    opened.reconnect()
    assert device.get("/export/data") == DATA
    assert (device.clients, device.sessions, device.opens) == (0, 0, 0)
    assert opened.only(opened.slot(0, opened.next[0])).status == BADSESSION
    assert opened.create().status == STALE_CLIENTID
    opened.start(complete=False)
    other = Peer(device, b"other").start()
    assert other()[SEQUENCE][5] == 0
    assert opened()[SEQUENCE][5] == RECLAIM_NEEDED
    assert other.at(folder, open_file(b"data"), op(GETFH)).status == GRACE
    wrong = open_file(access=BOTH, claim=PREVIOUS, owner=b"wrong")
    assert opened.at(handle, wrong).status == RECLAIM_BAD
    assert faulted(device, "what the client did not have")
    reply = opened.at(handle, open_file(access=BOTH, deny=WRITES, claim=PREVIOUS))
    assert reply.status == 0
    after = opened.at(handle, write(reply[OPEN].stateid, 0, b"kept"))[WRITE]
    assert before[2] != after[2]
    assert other.at(folder, open_file(b"link"), op(GETFH)).status == GRACE
    assert opened(op(peer.RECLAIM_COMPLETE, 0)).status == 0
    assert opened()[SEQUENCE][5] == 0
    assert other.at(folder, open_file(b"data"), op(GETFH)).status == 0
    assert other.at(folder, open_file(b"data", access=WRITES), op(GETFH)).status == SHARE_DENIED
    assert opened.at(handle, open_file(access=READS, claim=PREVIOUS)).status == NO_GRACE
    assert faulted(device, "OPEN reclaims behind RECLAIM_COMPLETE")
    assert device.reclaimed == 1
    other.close()


def grace(device: Device, opened: Peer) -> None:
    """A grace period of so many COMPOUNDs, until the test ends it, or none."""
    folder = opened.handle("export")
    for restart_grace, statuses in (
        (3, [GRACE, GRACE, 0]), (GRACE_FOREVER, [GRACE] * 3), (0, [0] * 3),
    ):  # fmt: skip
        opened.open(folder, b"data")
        device.set(restart_grace=restart_grace, grace_io=1)
        device.restart()
        opened.reconnect()
        opened.start()
        opening = (open_file(b"data"), op(GETFH))
        assert [opened.at(folder, *opening).status for _ in range(3)] == statuses
        file = opened.handle("export", "data")
        reading = opened.at(file, read(ANONYMOUS, 0, 1))
        assert reading.status == (GRACE if restart_grace == GRACE_FOREVER else 0)
        device.set(grace=0)
        assert opened.at(folder, *opening).status == 0
    new = Peer(device, b"new").start(complete=False)
    assert new.at(file, open_file(claim=PREVIOUS)).status == NO_GRACE
    new.close()
    assert not device.faults


def errors(device: Device, opened: Peer) -> None:
    """A test asks for the status of an operation; an error of SEQUENCE leaves the slot alone."""
    file = opened.handle("export", "data")
    number = opened.next[0]
    device.error(OPERATION | SEQUENCE, DELAY)
    assert opened.only(opened.slot(0, number)).status == DELAY
    assert opened.only(opened.slot(0, number)).status == 0
    opened.next[0] += 1
    device.error(OPERATION | READ, DELAY, offset=5)
    assert opened.at(file, read(ANONYMOUS, 0, 5), read(ANONYMOUS, 5, 5)).statuses == [
        0,
        0,
        0,
        DELAY,
    ]
    device.error(OPERATION | peer.SETATTR, DELAY)
    assert opened.at(file, op(peer.SETATTR, ANONYMOUS, attributes(3)))[peer.SETATTR] == []
    device.set(entry_error=5)
    folder = opened.handle("export")
    listing = (u64(0), u64(0), 0, 4000)
    listed = opened.at(folder, op(peer.READDIR, *listing, bitmap(1, 11)))
    assert {each[2] for each in ((e[0], e[1], str(e[2])) for e in listed[peer.READDIR][1])} == {
        str(([11], u32(5)))
    }
    assert opened.at(folder, op(peer.READDIR, *listing, bitmap(1))).status == 5
    assert not device.faults


SCENES: tuple[Callable[[Device, Peer], None], ...] = (
    false_retry, same_connection, misordered, slots, early, target, limits, positions, malformed,
    unknown, clients, ends, bindings, reclaim_complete, modes, shares, creates, handles,
    delegations, unlinked, expired, restarted, grace, errors,
)  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_server_follows_rfc_8881(
    device: Device, opened: Peer, scene: Callable[[Device, Peer], None]
) -> None:
    scene(device, opened)


REMOVED: dict[str, tuple[Any, Change]] = {
    "the digest of a request": (
        false_retry,
        Change("session4.c", "slot->digest != c->digest || ", ""),
    ),
    "the order of sequence IDs": (
        misordered,
        Change("session4.c", "if (sequence != slot->sequence + 1) {", "if (0) {"),
    ),
    "the size of a request": (
        limits,
        Change("session4.c", "if (c->call->size > session->request_max) {", "if (0) {"),
    ),
    "the access of an open": (
        modes,
        Change("state4.c", "return state->access & use ? NFS4_OK : NFS4ERR_OPENMODE;", "return 0;"),
    ),
    "RECLAIM_COMPLETE": (
        reclaim_complete,
        Change("state4.c", "if (!client->complete) {", "if (0) {"),
    ),
    "what was open before": (
        restarted,
        Change("state4.c", "same_opaque(&(*at)->owner, &open->owner) &&", "1 &&"),
    ),
    "a reply that has not come": (early, Change("session4.c", "if (slot->pending)", "if (0)")),
}


@pytest.mark.parametrize("check", sorted(REMOVED))
def test_a_check_that_is_taken_out_is_missed(check: str) -> None:
    scene, change = REMOVED[check]
    device = loaded(build(change=change))
    made = Peer(device).start()
    with pytest.raises(AssertionError):
        scene(device, made)
    made.close()
    device.reset()
