# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol: they get the answer that is due, or lose their connection."""

from hostile.calls import CASES
from hostile.replies import TRICKS
from peers import hostile_client, hostile_server, listener_stops, races

from nfsrdma_tools.lab.lab import Lab

SEED = "tests"


def test_a_server_that_answers_as_it_likes(module_pair: Lab) -> None:
    said = hostile_server(module_pair, SEED, 250)
    assert sum(said["by_hand"].values()) == len(TRICKS) > 200
    assert sum(said["all"].values()) == len(TRICKS) + 250


def test_a_client_that_sends_what_it_likes(module_pair: Lab) -> None:
    said = hostile_client(module_pair, SEED, 250)
    assert len(CASES) >= len(said["by_hand"]) > 250
    assert said["reached"] > 30


def test_connections_that_come_and_go(module_pair: Lab) -> None:
    races(module_pair, SEED, 50)
    listener_stops(module_pair, SEED, 100, 2)
