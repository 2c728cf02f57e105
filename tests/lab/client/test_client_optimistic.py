# SPDX-License-Identifier: Apache-2.0
"""Optimistic reads and the cache of libnfsrdma, against a server of nfsrdma over modelled cards."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import counts_listeners
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import set_to
from testbed.scripts import node_script

pytestmark = pytest.mark.lab

SCRIPT = node_script("client_optimistic")


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; the server is optimistic."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "client-optimistic") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "server", "server_personalities", "optimistic")
        yield lab


def on(lab: Lab, name: str) -> Any:
    """Run the function ``name`` of client_optimistic_node.py in the node; returns its result."""
    output = lab.run("client", "python3", "-", name, stdin=SCRIPT, timeout=600).stdout
    print(name, output[:1500])
    return json.loads(output)


def test_bytes_read_by_reference_are_right(cards: Lab) -> None:
    found = on(cards, "reads")
    assert found["wrong"] == 0
    assert found["granted"] == [True] * 4
    # others cross an extent, or are longer than what the file has there
    assert found["alone"] > 100
    assert found["together"] > 500
    assert found["doorbells"] < found["together"] / 2
    assert (found["refused"], found["connects"]) == (0, 1)


def test_a_read_after_a_change_sees_it(cards: Lab) -> None:
    found = on(cards, "changes")
    stats = found.pop("stats")
    assert found == {
        "written": [True, True], "truncated": [True, True], "grown": [True, True],
        "punched": [True, True], "removed": [True, "gone"],
    }  # fmt: skip
    assert stats["revocations"] >= len(found)


def test_both_connections_come_back_after_a_restart(cards: Lab) -> None:
    found = on(cards, "restarted")
    assert found == {"first": True, "same": True, "second": True, "connects": 2}


def test_a_server_that_grants_nothing_answers_by_rpc(cards: Lab) -> None:
    set_to(cards, "server", "server_personalities", "")
    try:
        found = on(cards, "by_rpc")
    finally:
        set_to(cards, "server", "server_personalities", "optimistic")
    assert found == {"same": True, "personalities": [], "by_reference": 0, "no_second": True}


def test_the_cache_is_consistent_from_close_to_open(cards: Lab) -> None:
    found = on(cards, "cached")
    assert found == dict.fromkeys(("first", "again", "changed", "own", "hits"), True)
