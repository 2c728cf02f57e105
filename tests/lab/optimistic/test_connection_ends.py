# SPDX-License-Identifier: Apache-2.0
"""Ends of connections whose card refuses to end them: memory returns with proof only.

On the kernel with KASAN (``--kernel debug``), a report fails the test, too.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import counts_listeners
from testbed.hostile import PORT, SERVER, argv_of, bring, program
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import set_to
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
        bring(lab, "client")
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


def test_a_connection_ends_whose_waiting_calls_hold_data_for_which_others_wait(
    cards: Lab,
) -> None:
    """Nobody waits for the memory of its Replies but itself."""
    # a client has 1 MiB and its floor for data, and as much for Replies: some Calls are answered,
    # the others hold so much that the largest WRITE waits
    size, calls = 32 * KIB, 48
    words = ("/run/held_data", str(size), str(calls), *argv_of("held_data", SERVER, PORT))
    found = on(cards, "read-write", "held_data", *words)
    assert found["sent"] == calls + 1
    assert found["ended"]
    assert found["answered"]
    assert found["fenced"] == 1
    nothing_in_use(found)


DELAY = """
cd /sys/kernel/debug/nfsrdma_card
for card in card0 card1; do echo $1 > $card/completion_delay; done
"""
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
        said = program(cards, "client", "long_reply", SERVER, PORT, "long", "65536")
    finally:
        cards.run("server", "sh", "-ec", DELAY, "sh", "0")
        cards.run("server", "rm", "-r", "/export/long")
    # the card is as late to say that a Reply was too long: a connection more may end
    first, *ends, answer, again = said["found"]["65536"]
    assert (first, answer, again) == ("same", "chunk", "same")
    assert set(ends) == {"ended"}
