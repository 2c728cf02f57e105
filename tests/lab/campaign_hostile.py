# SPDX-License-Identifier: Apache-2.0
"""Hostile peers with MESSAGES mutated messages each way, from the seed SEED; for `make hostile`."""

import os

import pytest
from peers import hostile_client, hostile_server, listener_stops, races

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

MESSAGES = int(os.environ.get("MESSAGES", "10000"))
SEED = os.environ.get("SEED", "8166")


def test_a_server_that_answers_as_it_likes(module_pair: Lab) -> None:
    said = hostile_server(module_pair, SEED, MESSAGES)
    print(said["by_hand"], said["all"], said["bystander"])


def test_a_client_that_sends_what_it_likes(module_pair: Lab) -> None:
    said = hostile_client(module_pair, SEED, MESSAGES)
    print(said["mutants"], said["bystander"])


def test_connections_that_come_and_go(module_pair: Lab) -> None:
    print(races(module_pair, SEED, 200))
    print(listener_stops(module_pair, SEED, 300, 8))
