# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol over the modelled card, with our module on both ends."""

from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import attacked, tricked
from testbed.labs import OURS, cards_lab, serve
from testbed.peers.calls import CASES
from testbed.peers.replies import TRICKS

# test_hostile_peers.py sends the same messages over soft-RoCE each time
pytestmark = pytest.mark.nightly
SEED = "8166"


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards, their provider, and our module."""
    with cards_lab(pytestconfig, "cardh") as lab:
        serve(lab, "server", OURS)
        yield lab


def test_a_server_that_answers_as_it_likes(cards: Lab) -> None:
    assert sum(tricked(cards, SEED, range(30)).all.values()) == len(TRICKS) + 30


def test_a_client_that_sends_what_it_likes(cards: Lab) -> None:
    outcomes = attacked(cards, SEED, range(30))
    assert len(outcomes.by_hand) == len(CASES)
    assert outcomes.mutants == 30
