# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol: they get the answer that is due, or lose their connection.

``make campaign NAME=hostile`` sends more of what is made at random, from a number on (``--first``).
With ``--threadless 65536``, the server answers READs of at most 65,536 bytes from its page cache.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import SEED, attacked, listener_stops, raced, tricked
from testbed.kernel_events import recorded
from testbed.mounts import set_to
from testbed.peers.calls import CASES
from testbed.peers.replies import TRICKS

# where an earlier run ended; hand-made messages come before number 0
FROM = int(os.environ.get("FROM", "0"))
THREADLESS = os.environ.get("THREADLESS")


@pytest.fixture
def numbers(long: bool) -> range:
    """Numbers of the messages made at random: MESSAGES, or 10,000 with --long, or 30."""
    messages = int(os.environ.get("MESSAGES") or (10_000 if long else 30))
    return range(FROM, max(FROM, messages))


@pytest.fixture
def connections(long: bool) -> int:
    """How many connections a race makes."""
    return 200 if long else 20


@contextmanager
def threadless(lab: Lab) -> Iterator[None]:
    """Have the server answer READs of up to THREADLESS bytes from its page cache, if it is set."""
    if not THREADLESS:
        yield
        return
    set_to(lab, "server", "server_threadless", THREADLESS)
    try:
        with recorded(lab, "server", {"nfsrdma/nfsrdma_svc_threadless/enable": "1"}) as lines:
            yield
    finally:
        set_to(lab, "server", "server_threadless", "0")
    results = Counter(line.split()[-1] for line in lines if "nfsrdma_svc_threadless:" in line)
    print(f"READs that were looked up: {dict(results)}")
    assert results["hit"] > 0


def test_a_server_that_answers_as_it_likes(both_ours: Lab, numbers: range) -> None:
    verdict = tricked(both_ours, SEED, numbers)
    tricks = len(TRICKS) if not FROM else 0
    assert len(TRICKS) > 200
    assert sum(verdict.by_hand.values()) == tricks
    assert sum(verdict.all.values()) == tricks + len(numbers)
    print(verdict.all)


@pytest.mark.nightly
def test_a_server_that_answers_the_library_as_it_likes(both_ours: Lab, numbers: range) -> None:
    """The same replies to a user-space client, and the same outcomes."""
    verdict = tricked(both_ours, SEED, numbers, library=True)
    tricks = sum(trick.on != "session" for trick in TRICKS.values()) if not FROM else 0
    assert sum(verdict.by_hand.values()) == tricks
    assert sum(verdict.all.values()) == tricks + len(numbers)
    print(verdict.all)


def test_a_client_that_sends_what_it_likes(both_ours: Lab, numbers: range) -> None:
    with threadless(both_ours):
        outcomes = attacked(both_ours, SEED, numbers)
    assert len(CASES) > 200
    assert FROM or len(outcomes.by_hand) == len(CASES)
    assert FROM or outcomes.guesses > 30
    assert outcomes.mutants == len(numbers)
    print(outcomes.answers)


def test_the_table_tells_servers_apart(module_pair: Lab) -> None:
    """The kernel's server deviates where it is known to, so the table sees what it looks for."""
    # it gets no messages that are made at random
    outcomes = attacked(module_pair, SEED, range(0), "cut to")
    words = {word for words in outcomes.by_hand.values() for word in words}
    # threads of nfsd may answer the two calls behind a short message before the message
    assert "chunk" in words <= {"chunk", "dropped"}


@pytest.mark.nightly
def test_connections_that_come_and_go(both_ours: Lab, connections: int) -> None:
    print(raced(both_ours, SEED, connections))


@pytest.mark.nightly
def test_a_listener_that_stops_under_load(both_ours: Lab, connections: int) -> None:
    print(listener_stops(both_ours, SEED, connections // 25))
