# SPDX-License-Identifier: Apache-2.0
"""Personality read-read: the client reads large results from its server, and sends RDMA_DONE.

Over modelled cards, with client and server in one kernel, and our module on both ends.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import RDMA_NOMSG, Header, Read, Segment

from nfsrdma_tools.lab.lab import Lab
from testbed.kernel_events import recorded
from testbed.mounts import HERE, mounted, set_parameters
from testbed.node.grants import totals
from testbed.node.mounts import PARAMETERS
from testbed.node.programs import until
from testbed.peers import rpc
from testbed.peers.peer import GoneError
from testbed.peers.read_read_client import CREDITS, REFUSED, Client
from testbed.peers.token_client import contents
from testbed.personalities import (
    LIMIT,
    VERSIONS,
    agreed,
    compare,
    counted,
    hostile_files,
    in_effect,
    nothing_left,
    serves_others,
)
from testbed.remote import on
from testbed.tracing import said, tracing

# a page, in bytes; the module's limit for the replies of one client, in pages: what it may borrow,
# and its floor, the length of the largest message
PAGE, SHARE = 4096, 1024 + 257


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Iterator[Lab]:
    """A solo lab whose mounts and server speak read-read."""
    with agreed(lab, "read-read"):
        yield lab


@pytest.mark.parametrize("options", VERSIONS)
def test_data_is_equal_and_every_done_arrives(lab: Lab, options: str) -> None:
    with mounted(lab, options):
        assert in_effect(lab) == [["read-read"]] * 2
        # the server may expose 5 MiB, and one Reply for each thread beyond that
        compare(lab, 64 << 20, 1 << 20)
        fetches, sent = counted(lab, "nfsrdma", "fetches", "dones")
        exposures, dones, late, stray = counted(
            lab, "nfsrdma-server", "exposures", "dones", "done_timeouts", "stray_dones"
        )
    assert fetches == sent > 64
    # the last Done may be on its way
    assert exposures >= dones >= sent - 1
    assert (late, stray) == (0, 0)
    nothing_left(lab)


@pytest.mark.nightly
def test_the_probe_counts_replies_that_the_client_reads(lab: Lab) -> None:
    """Their bytes, and the RDMA_DONE of each."""
    lab.run("server", "sh", "-ec", "head -c 4194304 /dev/urandom > /export/probed")
    with mounted(lab, "vers=3"), tracing(lab, "client", "server"):
        argv = (f"if={HERE}/probed", "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
        lab.run("client", "dd", *argv)

        def counted() -> dict[str, int]:
            rows = [row for row in said(lab, "client") if row["procedure"] == "RDMA_DONE"]
            names = ("exposures", "exposed_bytes", "dones", "done_timeouts", "stray_dones")
            sums = {name: sum(row[name] for row in rows) for name in names}
            return sums | {"dones_outstanding": rows[-1]["dones_outstanding"] if rows else 0}

        until("as many RDMA_DONEs as READs", lambda: counted()["dones"] >= 64, 300, 0.5)
        counts = counted()
    lab.run("server", "rm", "/export/probed")
    assert counts == {"exposures": 64, "exposed_bytes": 4 << 20, "dones": 64, "done_timeouts": 0,
                     "stray_dones": 0, "dones_outstanding": 0}  # fmt: skip


@pytest.mark.parametrize("options", VERSIONS)
def test_long_messages_move_as_a_whole(lab: Lab, options: str) -> None:
    """A list of many names, and a link whose target is as long as a name may be."""
    lab.run("server", "sh", "-ec", """
mkdir /export/long
cd /export/long
seq -f name-%g 5000 | xargs touch
ln -s "$(printf %01023d 7)" link
""", timeout=LIMIT)  # fmt: skip
    try:
        with mounted(lab, options):
            listed = lab.run("client", "ls", f"{HERE}/long", timeout=LIMIT).stdout.split()
            target = lab.run("client", "readlink", f"{HERE}/long/link").stdout.strip()
            (fetches,) = counted(lab, "nfsrdma", "fetches")
    finally:
        lab.run("server", "rm", "-r", "/export/long", timeout=LIMIT)
    assert sorted(listed) == sorted([*(f"name-{n}" for n in range(1, 5001)), "link"])
    assert target == f"{7:01023d}"
    assert fetches > 0
    nothing_left(lab)


@pytest.mark.nightly
@pytest.mark.parametrize("timeout", [2, 3600])
def test_a_slow_invalidation_ends_the_connection(lab: Lab, timeout: int) -> None:
    """The server waits 10 s for its card to invalidate what the client has read.

    It does so after a timeout as well as after a Done, when nothing expires for an hour.
    """
    delay = "/sys/kernel/debug/nfsrdma_card/card1/completion_delay"
    events = {"nfsrdma/nfsrdma_disconnect/enable": "1"}
    lab.run("server", "sh", "-ec", "head -c 4194304 /dev/urandom > /export/slow")
    with set_parameters(lab, server_done_timeout=timeout), mounted(lab, "vers=3"):
        lab.run("server", "tee", delay, stdin=str(60 * 10**9).encode())
        try:
            with recorded(lab, "server", events) as lines:
                words = (f"if={HERE}/slow", "of=/dev/null", "bs=64k", "count=1", "iflag=direct")
                lab.run("client", "dd", *words, timeout=LIMIT)
                until(
                    "a disconnect", lambda: counted(lab, "nfsrdma", "disconnects") == [1], 300, 0.5
                )
        finally:
            lab.run("server", "tee", delay, stdin=b"0")
        lab.run("client", "cmp", "/export/slow", f"{HERE}/slow", timeout=LIMIT)
    lab.run("server", "rm", "/export/slow")
    assert [line for line in lines if "reason=an invalidation takes too long" in line]
    nothing_left(lab)


# --- a client that breaks the rules ---


@pytest.fixture(scope="module")
def files(lab: Lab) -> Iterator[Lab]:
    """Files on the server that hostile clients may damage, and a short time for the Done."""
    with hostile_files(lab), set_parameters(lab, server_done_timeout=2):
        yield lab


@pytest.fixture
def victim(files: Lab) -> Iterator[Lab]:
    """The server, which exposes nothing afterwards, and serves others."""
    yield files
    serves_others(files)


SIZE = 65536
# more than a key has values, also if a few regions take turns
USES = 2000


@on("client")
def read_after_done() -> None:
    client = Client()
    assert client.agreed == 1
    segments = client.exposed(7)
    assert client.values("exposed_pages", "dones_outstanding") == [16, 1]
    for _ in range(2):
        assert client.fetch(segments) == contents("data")[:SIZE]
    client.done(7)
    client.wait_for("exposed_pages", 0)
    names = ("exposures", "dones", "stray_dones", "done_timeouts", "reply_pages")
    assert client.values(*names) == [1, 1, 0, 0, 0]
    assert client.lives()
    client.cannot_read(segments[0])


@pytest.mark.nightly
def test_a_done_ends_the_access(victim: Lab) -> None:
    read_after_done(victim)


@on("client")
def send_no_done() -> None:
    client = Client()
    segments = client.exposed(7)
    assert client.fetch(segments) == contents("data")[:SIZE]
    began = time.monotonic()
    client.wait_for("exposed_pages", 0)
    assert time.monotonic() - began > 1
    assert client.values("dones", "done_timeouts", "reply_pages") == [0, 1, 0]
    # only what comes late ends the connection
    assert client.lives()
    client.done(7)
    client.wait_for("stray_dones", 1)
    client.cannot_read(segments[0])


@pytest.mark.nightly
def test_without_a_done_the_access_ends_by_itself(victim: Lab) -> None:
    send_no_done(victim)


@on("client")
def send_done_three_times() -> None:
    client = Client()
    client.fetch(client.exposed(7))
    for _ in range(3):
        client.done(7)
    client.wait_for("stray_dones", 2)
    assert client.lives()
    assert client.values("exposures", "dones", "exposed_pages") == [1, 1, 0]


@pytest.mark.nightly
def test_a_done_counts_once(victim: Lab) -> None:
    send_done_three_times(victim)


@on("client")
def send_done_of_another_connection() -> None:
    mine, theirs = Client(), Client()
    segments = theirs.exposed(7)
    mine.done(7)
    mine.wait_for("stray_dones", 1)
    assert theirs.values("dones_outstanding", "dones") == [1, 0]
    assert theirs.fetch(segments) == contents("data")[:SIZE]
    # nor can its key be used on a connection that it was not given to
    mine.cannot_read(segments[0])
    theirs.done(7)
    theirs.wait_for("exposed_pages", 0)
    assert theirs.lives()


@pytest.mark.nightly
def test_a_done_for_another_connection_changes_nothing(victim: Lab) -> None:
    send_done_of_another_connection(victim)


@on("client")
def send_dones_of_no_reply() -> None:
    client = Client()
    for xid in (0, 1, 0xFFFFFFFF):
        client.done(xid)
    client.send(Header(8, 0, RDMA_DONE), bytes(100))
    client.wait_for("stray_dones", 4)
    assert client.lives()


@pytest.mark.nightly
def test_a_done_for_no_reply_is_dropped(victim: Lab) -> None:
    send_dones_of_no_reply(victim)


@on("client")
def read_by_a_key_that_comes_again() -> None:
    """A key has 8 bits of its own, so a region gets it again. It has another address then."""
    client, offsets, number = Client(), dict[int, int](), 7
    while (offer := client.exposed(number, PAGE)[0]).handle not in offsets and number < USES:
        offsets[offer.handle] = offer.offset
        client.done(number)
        number += 1
    # the key of any region: the server may never use a certain one again
    assert offer.handle in offsets
    assert len(offsets) > 200
    before = offsets[offer.handle]
    assert offer.offset != before
    client.cannot_read(replace(offer, offset=before))


def test_a_key_that_comes_again_has_another_address(victim: Lab) -> None:
    read_by_a_key_that_comes_again(victim)


@on("client")
def send_dones_at_once() -> None:
    """The Done follows the Call, many times."""
    client, rounds = Client(), 30
    for xid in range(1000, 1000 + rounds):
        client.ask(xid)
        client.done(xid)
        head, _ = client.take()
        assert head.xid == xid
        client.done(xid)
    client.wait_for("exposed_pages", 0)
    done, stray = client.values("dones", "stray_dones")
    assert (done, done + stray) == (rounds, 2 * rounds)


@pytest.mark.nightly
def test_a_done_before_its_reply_is_dropped(victim: Lab) -> None:
    send_dones_at_once(victim)


@on("client")
def read_more_than_is_exposed() -> None:
    client = Client()
    client.cannot_read(client.exposed(7)[-1], 4096)


@pytest.mark.nightly
def test_more_than_the_reply_is_not_readable(victim: Lab) -> None:
    read_more_than_is_exposed(victim)


@on("client")
def write_exposed_memory() -> None:
    client, before = Client(), contents("data")
    segment = client.exposed(7)[0]
    status = client.connection.try_write(b"broken!!", segment.offset, segment.handle)
    assert status in REFUSED
    assert client.ends()
    assert contents("data") == before


@pytest.mark.nightly
def test_exposed_memory_is_not_writable(victim: Lab) -> None:
    write_exposed_memory(victim)


@on("client")
def send_malformed_messages() -> None:
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
    for name, message in messages.items():
        client = Client()
        with suppress(GoneError):
            client.raw(message)
        assert client.ends(), name


@pytest.mark.nightly
def test_malformed_messages_end_their_connection(victim: Lab) -> None:
    send_malformed_messages(victim)


@on("client")
def send_call_without_its_data() -> None:
    client = Client()
    segment = Segment(0xBAD, 20000, 0x1000)
    arguments = rpc.opaque(client.file) + rpc.hyper(0) + rpc.words(20000, 0, 20000)
    call = rpc.call(7, rpc.WRITE, arguments)
    client.send(Header(7, CREDITS, 0, (Read(len(call), (segment,)),)), call)
    assert client.ends()


@pytest.mark.nightly
def test_an_unreadable_call_ends_its_connection(victim: Lab) -> None:
    send_call_without_its_data(victim)


@on("client")
def read_without_dones() -> None:
    """READs of 1 MiB, as many as there are credits, and no Done."""
    client, most = Client(), 0
    for number in range(CREDITS):
        client.ask(number, 1 << 20, (number % 4) << 20)
    began, answers = time.monotonic(), list[float]()
    while len(answers) < CREDITS and time.monotonic() < began + 60:
        if client.connection.next(0.2):
            answers.append(time.monotonic() - began)
        most = max(most, *client.values("exposed_pages"))
    threads = int(Path("/proc/fs/nfsd/threads").read_text())
    timeout = float((PARAMETERS / "server_done_timeout").read_text())
    assert len(answers) == CREDITS
    assert SHARE // 2 < most <= SHARE + threads * ((1 << 20) // PAGE)
    assert len([when for when in answers if when < timeout / 2]) < len(answers)
    client.wait_for("exposed_pages", 0)
    assert client.lives()
    assert client.values("exposures", "done_timeouts") == [CREDITS, CREDITS]


@pytest.mark.nightly
def test_a_client_without_dones_gets_its_share_only(victim: Lab) -> None:
    read_without_dones(victim)


@on("client")
def leave() -> None:
    """The client goes away with memory exposed."""
    client = Client()
    for number in range(3):
        client.exposed(number, 1 << 18)
    assert client.values("exposed_pages") == [3 * 64]
    client.connection.close()
    until("no exposed memory", lambda: not totals()["exposed_pages"])


@pytest.mark.nightly
def test_a_client_that_leaves_leaves_nothing(victim: Lab) -> None:
    leave(victim)


@on("client")
def connect_without_reads() -> None:
    client = Client(reads=0)
    assert client.agreed == 0
    assert client.answers()


@pytest.mark.nightly
def test_a_client_that_reads_nothing_gets_version_1(victim: Lab) -> None:
    connect_without_reads(victim)
