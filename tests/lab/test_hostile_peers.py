# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol: they get the answer that is due, or lose their connection.

``make hostile MESSAGES=10000 SEED=...`` sends more of what is made at random.
"""

import os

from hostile.calls import CASES
from hostile.replies import TRICKS
from peers import hostile_client, hostile_server, listener_stops, races

from nfsrdma_tools.lab.lab import Lab

MESSAGES = int(os.environ.get("MESSAGES", "250"))
SEED = os.environ.get("SEED", "8166")
CONNECTIONS = 200 if MESSAGES > 1000 else 50


def test_a_server_that_answers_as_it_likes(module_pair: Lab) -> None:
    said = hostile_server(module_pair, SEED, MESSAGES)
    assert sum(said["by_hand"].values()) == len(TRICKS) > 200
    assert sum(said["all"].values()) == len(TRICKS) + MESSAGES
    print(said["all"], said["bystander"])


def test_a_client_that_sends_what_it_likes(module_pair: Lab) -> None:
    said = hostile_client(module_pair, SEED, MESSAGES)
    assert len(CASES) >= len(said["by_hand"]) > 250
    assert said["reached"] > 30
    print(said["mutants"], said["bystander"])


def test_connections_that_come_and_go(module_pair: Lab) -> None:
    print(races(module_pair, SEED, CONNECTIONS))
    print(listener_stops(module_pair, SEED, CONNECTIONS * 2, CONNECTIONS // 25))
