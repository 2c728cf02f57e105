# SPDX-License-Identifier: Apache-2.0
"""Ends of connections whose card refuses to end them: memory returns with proof only.

On the kernel with KASAN (``--kernel debug``), a report fails the test, too.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.nodes.optimistic_node import (
    SLOW,
    idle,
    nfsd_waits,
    parameters,
    served,
    slow_disk,
    totals,
    until,
)

from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import counts_listeners
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import set_to
from testbed.peers import long_reply_client
from testbed.peers.calls import GOOD_PRIVATE
from testbed.peers.holders import CHUNK, SILENT, asking, reading, send, writing
from testbed.peers.peer import Host, Wish
from testbed.peers.site import handles
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from testbed.remote import on as on_node
from testbed.scripts import bring_programs, called

KIB = 1 << 10
# the time after which the client ends the connection of a late READ, in seconds
PATIENCE = 3
# more refusals than an end of a connection asks for
STUCK = 8


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards and their provider; our module at both ends."""
    with cards_lab(pytestconfig, "ends") as lab:
        serve(lab, "server", OURS)
        bring_programs(lab)
        yield lab


def on(lab: Lab, personality: str, *words: str | int) -> Any:
    """The result of a function of ends_node.py, which runs in the node."""
    if personality == "optimistic":
        counts_listeners(lab.config.kernel)
    for name in ("personality", "server_personalities"):
        set_to(lab, "client", name, personality)
    print(personality)
    return called(lab, "ends", *map(str, words))


def nothing_in_use(found: dict[str, Any]) -> None:
    assert set(found["server"].values()) == {0}


@pytest.mark.parametrize(
    ("personality", "size"),
    [
        ("read-write", 256 * KIB),
        ("pre-posted", 256 * KIB),
        ("read-read", 256 * KIB),
        ("optimistic", 64 * KIB),
        pytest.param("cached", 256 * KIB, marks=pytest.mark.nightly),
        pytest.param("padded", 8 * KIB, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("keep", [3, pytest.param(0, marks=pytest.mark.nightly)])
def test_late_data_does_not_reach_memory_that_has_returned(
    cards: Lab, personality: str, size: int, keep: int
) -> None:
    """The client's card refuses the error state, and to destroy queue pairs and regions."""
    found = on(cards, personality, "late", personality, size, STUCK, keep, keep)
    assert not found["alive"], "the READ does not end"
    assert found["returned"] > PATIENCE, "the data was not late"
    assert found["late"], "the READ waited for the late data"
    assert found["damaged"] == 0
    assert found["same"]
    assert found["again"]
    # the client asked until its card complied
    assert found["left"]["keep_qps"] == 0
    assert found["left"]["stuck"] < STUCK
    nothing_in_use(found)


def test_a_change_waits_until_no_client_reads_old_data(cards: Lab) -> None:
    """The server's card refuses invalidations, and to destroy queue pairs and regions.

    Only the error state, which it refuses at first, ends the access.
    """
    found = on(cards, "optimistic", "writer", STUCK, 1000, 1000)
    assert (found["left"]["cut_chains"], found["left"]["stuck"]) == (0, 0)
    assert found["left"]["keep_qps"] > 0
    assert found["left"]["keep_regions"] > 0
    assert (found["old"], found["new"]) == (False, True)
    nothing_in_use(found)


@pytest.mark.parametrize("cached", ["N", "Y"])
def test_reads_pause_when_refusals_end_connections(cards: Lab, cached: str) -> None:
    """Whatever the driver says of the state of a queue pair."""
    found = on(cards, "optimistic", "refused", cached, 3)
    assert found["optimistic_pauses"] == 1
    assert 0 < found["optimistic_refused"] < 8
    nothing_in_use(found)


def test_entries_of_a_scatterlist_are_bounded(cards: Lab) -> None:
    """Swiotlb maps 256 KiB at once: 1 MiB of contiguous memory takes 8 entries."""
    found = on(cards, "read-read", "entries")
    assert found["same"]
    # the server may name the memory in several segments
    assert sum(found["counts"]) >= 8
    nothing_in_use(found)


@pytest.mark.parametrize(("size", "offset", "elements"), [(64 * KIB, 0, 1), (128 * KIB, 512, 2)])
def test_pages_that_follow_each_other_are_one_element(
    cards: Lab, size: int, offset: int, elements: int
) -> None:
    """An optimistic READ into a huge page. The longer one has 33 pages, a Read 32 elements."""
    found = on(cards, "optimistic", "elements", size, offset)
    assert found["same"]
    assert (found["optimistic"], found["counts"]) == (1, [elements])
    nothing_in_use(found)


@pytest.mark.parametrize(
    ("personality", "size"),
    [
        ("pre-posted", 256 * KIB),
        ("padded", 8 * KIB),
        pytest.param("read-write", 256 * KIB, marks=pytest.mark.nightly),
    ],
)
def test_a_reply_holds_all_its_pages_until_its_card_has_read_them(
    cards: Lab, personality: str, size: int
) -> None:
    """Pages that follow each other: one element for each Send, and a reference for each page."""
    rounds, files = 4, 64
    found = on(cards, personality, "reused", personality, size, rounds, files)
    assert found["same"] == rounds + files
    # a file has 2 MiB, in one folio: a reference that is left keeps all of it
    assert found["kept"] < files << 20
    nothing_in_use(found)


@on_node("client", timeout=900)
def hold_data(size: int, count: int) -> dict[str, int]:
    """A connection whose Calls hold their data while they wait for memory, and one beside it.

    The first connection sends READs of 1 MiB with a Read chunk of ``size`` bytes, which READ has no
    use for, and receives no Reply.  Then the other one, of the same address, sends the largest
    WRITE that the server takes.  nfsd reads no file until all data have arrived.
    """
    with slow_disk() as delay, parameters(server_ack_timeout=1, server_memory=4):
        (SLOW / "held").write_bytes(bytes(CHUNK))
        os.sync()
        with (SLOW / "held").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        delay(600_000)
        host, (handle,), before = Host(), handles(SLOW, "held"), totals()["fenced"]
        silent, other = (host.connect(wish) for wish in (SILENT, Wish(private=GOOD_PRIVATE)))
        access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
        theirs, own = silent.memory(CHUNK, access), other.memory(CHUNK, access)
        reads = [reading(handle, 1 + n, theirs, data=size) for n in range(count)]
        assert send(silent, [asking(), *reads]) == count + 1
        until("their data", lambda: served()["read_bytes"] >= size * count)
        until("a thread of nfsd that waits for the disk", nfsd_waits)
        delay(0)
        most = int(Path("/proc/fs/nfsd/max_block_size").read_text())
        other.send(writing(handle, 1, own, min(CHUNK, most)))
        host.wait(lambda: bool(other.messages) or bool(other.ended), 120, late=False)
        assert other.messages, f"the WRITE was not answered: {other.ended}"
        assert silent.ended
        for connection in (silent, other):
            connection.close()
        assert totals()["fenced"] == before + 1
    return idle()


def test_a_connection_ends_whose_waiting_calls_hold_data_for_which_others_wait(
    cards: Lab,
) -> None:
    """Nobody waits for the memory of its Replies but itself."""
    for name in ("personality", "server_personalities"):
        set_to(cards, "client", name, "read-write")
    # a client has 1 MiB and its floor for data, and as much for Replies: some Calls are answered,
    # the others hold so much that the largest WRITE waits
    nothing_in_use({"server": hold_data(cards, 32 * KIB, 48)})


DELAY = """
cd /sys/kernel/debug/nfsrdma_card
for card in card0 card1; do echo $1 > $card/completion_delay; done
"""
long_replies = on_node("client")(long_reply_client.long_replies)
LONG = """
mkdir -p /export/long/names && cd /export/long
head -c 200000 /dev/urandom > data
ln -sfn data link
"""


def test_a_client_that_leaves_with_its_reply_may_have_another_of_that_length(cards: Lab) -> None:
    """It sends no private data; the server's card reports late that the Reply has arrived."""
    cards.run("server", "sh", "-ec", LONG)
    cards.run("server", "sh", "-ec", DELAY, "sh", "20000000")
    try:
        outcomes = long_replies(cards, Path("/export/long"), [65536])
    finally:
        cards.run("server", "sh", "-ec", DELAY, "sh", "0")
        cards.run("server", "rm", "-r", "/export/long")
    # the card is as late to say that a Reply was too long: a connection more may end
    first, *ends, answer, again = outcomes.reads[65536]
    assert (first, answer, again) == ("same", "chunk", "same")
    assert set(ends) == {"ended"}
