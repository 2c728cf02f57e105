# SPDX-License-Identifier: Apache-2.0
"""Personality padded: data of some pages moves in messages, and begins with a page.

Over modelled cards, with client and server in one kernel, and our module on both ends.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from wire import rdma5666
from wire.rdma5666 import RDMA_MSGP
from wire.rpcrdma import Header, Read, Segment

from nfsrdma_tools.lab.lab import Lab
from testbed.module_data import around, carried
from testbed.mounts import HERE, connections, mounted, set_parameters
from testbed.node.programs import until
from testbed.peers import rpc
from testbed.peers.padded_client import CREDITS, Client, write_call
from testbed.peers.peer import GoneError
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
from testbed.tracing import sums, tracing

MOST = 65536


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Iterator[Lab]:
    """A solo lab whose mounts and server are padded."""
    with agreed(lab, "padded"):
        yield lab


@pytest.mark.parametrize("most", (8192, pytest.param(16384, marks=pytest.mark.nightly), MOST))
def test_small_data_needs_no_chunk(lab: Lab, most: int) -> None:
    """Data up to the limit moves in messages, and more than that in chunks of version 1."""
    script = f"""
for size in 8192 {most} {most * 2}; do
	dd if=/dev/urandom of={HERE}/small bs=$size count=9 oflag=direct status=none
	dd if={HERE}/small of=/run/small bs=$size count=9 iflag=direct status=none
	cmp /run/small /export/small
	cd /sys/kernel/debug/nfsrdma
	cat */counters | grep -E '^(padded_calls|padded_replies|read_chunks|write_chunks) '
done
"""
    # larger data goes in a chunk even if it fits inline
    with set_parameters(lab, padded_max=most, server_memory=64), mounted(lab, "vers=3,noac"):
        assert in_effect(lab) == [["padded"]] * 2
        (sizes,) = {(row["padded_send"], row["padded_recv"]) for row in connections(lab)}
        assert sizes == (str(most), str(max(most, 8192)))
        lines = lab.run("client", "sh", "-ec", script, timeout=LIMIT).stdout.split()
        lab.run("client", "rm", "/export/small", "/run/small")
    counts = [dict(zip(lines[n : n + 8 : 2], map(int, lines[n + 1 : n + 8 : 2]), strict=True))
              for n in (0, 8, 16)]  # fmt: skip
    small, large, larger = counts
    at_limit = 9 if most == MOST else 0
    # min_chunk is 64 KiB
    assert small["padded_calls"] == small["padded_replies"] == 9
    assert large["padded_calls"] == large["padded_replies"] == 18 - at_limit
    assert (large["read_chunks"], large["write_chunks"]) == (at_limit, at_limit)
    assert larger["padded_calls"] == large["padded_calls"]
    nothing_left(lab)


@pytest.mark.parametrize("options", VERSIONS)
@pytest.mark.parametrize("most", (16384, pytest.param(32768, marks=pytest.mark.nightly)))
def test_data_is_equal(lab: Lab, options: str, most: int) -> None:
    with set_parameters(lab, padded_max=most, server_memory=64):
        carried(lab, options, around(1024, 4096, 8192, most, 3 * most, 1 << 17), 5666)
        with mounted(lab, options):
            lab.run("client", "sh", "-ec", f"""
head -c 16777216 /dev/urandom > /export/much
for size in 4096 {most} 3000 20000; do
	dd if={HERE}/much of=/run/much bs=$size status=none
	cmp /export/much /run/much
	dd if=/run/much of={HERE}/other bs=$size status=none
	cmp /export/other /run/much
	echo 3 > /proc/sys/vm/drop_caches
done
rm /export/much /export/other /run/much
""", timeout=LIMIT * 3)  # fmt: skip
            bad, failed = counted(lab, "nfsrdma", "bad_replies", "failed_marshals")
    assert (bad, failed) == (0, 0)
    nothing_left(lab)


PROBED = (
    *("rpcs", "calls_inline", "calls_padded"),
    *("replies_padded", "replies_inline", "read_segments"),
)


@pytest.mark.nightly
def test_the_probe_counts_messages_with_padding(lab: Lab) -> None:
    """Neither as inline messages nor as chunks."""
    with (
        set_parameters(lab, padded_max=16384, server_memory=64),
        mounted(lab, "vers=3,noac"),
        tracing(lab, "client", "chunks"),
    ):
        lab.run("client", "sh", "-ec", f"""
dd if=/dev/urandom of={HERE}/probed bs=8k count=7 oflag=direct status=none
dd if={HERE}/probed of=/dev/null bs=8k count=7 iflag=direct status=none
""")  # fmt: skip

        def probed(procedure: str) -> dict[str, int]:
            return sums(lab, "client", *PROBED, mount=HERE, procedure=procedure)

        until("as many READs as were done", lambda: probed("READ")["rpcs"] >= 7, 300, 0.5)
        reads, writes = probed("READ"), probed("WRITE")
        lab.run("client", "rm", f"{HERE}/probed")
    assert reads == dict(zip(PROBED, (7, 7, 0, 7, 0, 0), strict=True))
    assert writes == dict(zip(PROBED, (7, 0, 7, 0, 7, 0), strict=True))


def test_receives_are_bounded(lab: Lab) -> None:
    """Connections beyond the limit of the server are read-write."""
    with (
        set_parameters(lab, padded_max=16384, server_memory=4),
        mounted(lab, "vers=4.2,nconnect=3"),
    ):
        compare(lab, 4 << 20)
        sides = in_effect(lab)
    assert sides == [["padded", "read-write", "read-write"]] * 2
    nothing_left(lab)


# --- a client that breaks the rules ---


@pytest.fixture(scope="module")
def files(lab: Lab) -> Iterator[Lab]:
    """Files on the server that hostile clients may damage."""
    with hostile_files(lab):
        yield lab


@pytest.fixture
def victim(files: Lab) -> Iterator[Lab]:
    """The server, which serves others afterwards."""
    yield files
    serves_others(files)


SIZE, ALIGN, THRESH = 8192, 1024, 4096


@on("client")
def write_and_read() -> None:
    client, data = Client(), os.urandom(SIZE)
    assert client.agreed & 0xFF == 2
    odd_data = os.urandom(4097)
    for xid, content in ((7, data), (8, odd_data)):
        body = write_call(client, len(content), xid=xid)
        client.raw(rdma5666.call(xid, body, len(body), content))
        assert client.word() == "ok"
    assert contents("written")[:SIZE] == odd_data + data[4097:]
    # RDMA_MSGP, but where there is little data
    reads = ((SIZE, 0, RDMA_MSGP), (16384, 4096, RDMA_MSGP), (5000, 777, RDMA_MSGP), (100, 3, 0))
    for size, at, proc in reads:
        client.read(9, size, at, Segment(0, size, 0))
        head, body, content = client.take()
        place = rpc.read_data(body)
        assert place is not None
        assert head.proc == proc
        assert (content or rpc.split(body, place)[1]) == contents("data")[at : at + size]
    # behind the end of the file
    client.read(10, SIZE, 1 << 30, Segment(0, SIZE, 0))
    assert client.word() == "ok"
    names = ("padded_calls", "padded_replies", "padded_bytes", "read_chunks", "write_chunks")
    moved = 8192 + 4097 + 8192 + 16384 + 5000
    assert client.values(*names) == [2, 3, moved, 0, 0]
    assert client.lives()


def test_the_server_answers_as_the_documentation_says(victim: Lab) -> None:
    write_and_read(victim)


@on("client")
def contradict() -> None:
    before = contents("written")
    first = Client()
    body, data = write_call(first), bytes(SIZE)
    at, segment = len(body), Segment(0, SIZE, len(body))
    head = Header(7, CREDITS, RDMA_MSGP, (Read(at, (segment,)),))

    def with_padding(
        align: int = ALIGN, thresh: int = THRESH, position: int = at, **numbers: int
    ) -> bytes:
        reads = (Read(position, (replace(segment, **numbers),)),)
        return rdma5666.whole(replace(head, reads=reads), body, data, align, thresh)

    def listed(**lists: Any) -> bytes:
        return rdma5666.whole(replace(head, **lists), body, data, ALIGN, THRESH)

    sound = with_padding()
    words = rpc.words
    messages = {
        "threshold above the data": with_padding(thresh=SIZE + 1),
        "alignment of 512": with_padding(align=512),
        "alignment of 2048": with_padding(align=2048),
        "alignment of 1020": with_padding(align=1020),
        "alignment inside the header": sound[:16] + words(32) + sound[20:],
        "alignment behind the message": sound[:16] + words(1 << 20) + sound[20:],
        "alignment of 4 GiB": sound[:16] + words(0xFFFFFFFC) + sound[20:],
        "data longer than the message": with_padding(length=SIZE + 1),
        "data much longer": with_padding(length=0xFFFFFFFF),
        "data shorter than the message": with_padding(length=SIZE - 4),
        "no data": with_padding(length=0, thresh=0),
        "a key": with_padding(handle=7),
        "an RPC message longer than the padding": with_padding(offset=ALIGN),
        "an RPC message of 4 GiB": with_padding(offset=1 << 32),
        "no RPC message": with_padding(offset=0, position=0),
        "an RPC message of 4 bytes": with_padding(offset=4, position=4),
        "position in the RPC header": with_padding(position=8),
        "position zero": with_padding(position=0),
        "position behind the RPC message": with_padding(position=at + 4),
        "position far behind": with_padding(position=0xFFFFFFFC),
        "position inside a word": with_padding(position=at - 2),
        "two segments": listed(reads=(Read(at, (segment, segment)),)),
        "two chunks": listed(reads=(Read(at - 4, (segment,)), Read(at, (segment,)))),
        "a Write list": listed(reads=(), writes=((segment,),)),
        "both lists": listed(writes=((segment,),)),
        "a Reply chunk": listed(reply=(segment,)),
        "no list": words(7, 1, CREDITS, 2, ALIGN, THRESH),
        "another xid": rdma5666.call(8, body, at, data),
        "a reply": rdma5666.call(7, words(7, 1, 0, 0, 0, 0) + bytes(40), 40, data),
    }
    assert len(messages) > 25
    for name, message in messages.items():
        client = Client()
        client.raw(message)
        assert (client.word(), client.lives()) == ("chunk", True), name
        client.connection.close()
    assert contents("written") == before


@pytest.mark.nightly
def test_contradictions_are_refused_and_change_nothing(victim: Lab) -> None:
    contradict(victim)


@on("client")
def state_other_sizes() -> None:
    client = Client()
    for size, word in ((65536, "rpc"), (4096, "ok")):
        body = write_call(client, announced=size)
        client.raw(rdma5666.call(7, body, len(body), bytes(SIZE)))
        assert (client.word(), client.lives()) == (word, True), size
    null = rpc.call(7, rpc.NULL)
    client.raw(rdma5666.call(7, null, len(null), bytes(SIZE)))
    assert (client.word(), client.lives()) == ("ok", True)


@pytest.mark.nightly
def test_what_the_rpc_says_of_its_data_is_checked(victim: Lab) -> None:
    state_other_sizes(victim)


@on("client")
def send_60000_bytes() -> None:
    client = Client()
    body = write_call(client, 60000)
    with suppress(GoneError):
        client.raw(rdma5666.call(7, body, len(body), bytes(60000)))
    client.connection.host.wait(lambda: bool(client.connection.ended), 20)


@pytest.mark.nightly
def test_a_message_longer_than_a_receive_ends_its_connection(victim: Lab) -> None:
    send_60000_bytes(victim)


@on("client")
def offer_without_use() -> None:
    segment = Segment(0, SIZE, 0)
    cases: dict[str, tuple[int, tuple[Segment, ...], dict[str, Any]]] = {
        "less than the READ": (SIZE, (replace(segment, length=4096),), {}),
        "nothing": (SIZE, (replace(segment, length=0),), {}),
        "more than a message": (1 << 18, (replace(segment, length=1 << 18),), {}),
        "more than its own receives": (32768, (replace(segment, length=32768),), {}),
        "4 GiB, for a small READ": (SIZE, (replace(segment, length=0xFFFFFFFF),), {}),
        "a Reply chunk as well": (SIZE, (segment,), {"reply": (replace(segment, handle=9),)}),
        "two segments": (SIZE, (segment, segment), {}),
    }
    others = {
        # two segments are memory of version 1, under a key that does not exist
        "two segments": ("ended", False),
        # what is offered is a limit, and the data is within it
        "4 GiB, for a small READ": ("ok", True),
    }
    for name, (size, chunks, lists) in cases.items():
        client = Client()
        client.read(7, size, 0, *chunks, **lists)
        assert (client.word(), client.lives()) == others.get(name, ("chunk", True)), name
        client.connection.close()


@pytest.mark.nightly
def test_offers_without_use_are_refused(victim: Lab) -> None:
    offer_without_use(victim)


@on("client")
def send_padding_without_the_personality() -> None:
    client = Client(capabilities=0)
    assert client.agreed == 0
    body = write_call(client)
    client.raw(rdma5666.call(7, body, len(body), bytes(SIZE))[:4000])
    assert (client.word(), client.lives()) == ("chunk", True)


@pytest.mark.nightly
def test_others_cannot_use_padding(victim: Lab) -> None:
    send_padding_without_the_personality(victim)
