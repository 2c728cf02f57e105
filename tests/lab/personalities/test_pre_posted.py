# SPDX-License-Identifier: Apache-2.0
"""READs on lanes (personality pre-posted): data, killed readers, restarts, hostile peers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import until
from testbed.hostile import SEED, damageable, finished, serving
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import nothing_lost, set_parameters
from testbed.peers import lane_client, lane_server
from testbed.remote import on as on_node
from testbed.scripts import node_script
from testbed.tracing import said, tracing

SCRIPT = node_script("pre_posted")
PARAMETERS = "/sys/module/nfsrdma/parameters"
VERSIONS = (
    pytest.param("vers=3", marks=pytest.mark.nightly),
    pytest.param("vers=4.0", marks=pytest.mark.nightly),
    "vers=4.2,nconnect=2",
)


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards and their provider; both ends are pre-posted."""
    with cards_lab(pytestconfig, "lanes") as lab:
        serve(lab, "server", OURS)
        for name in ("personality", "server_personalities"):
            lab.run("client", "tee", f"{PARAMETERS}/{name}", stdin=b"pre-posted")
        yield lab


def on(lab: Lab, *words: str, timeout: float = 900) -> Any:
    """The result of a function of pre_posted_node.py, which runs in the node."""
    output = lab.run("client", "python3", "-", *words, stdin=SCRIPT, timeout=timeout).stdout
    return json.loads(output)


def nothing_in_use(found: dict[str, Any]) -> None:
    assert found["server"] == {"connections": 0, "reply_pages": 0}


@pytest.mark.parametrize("options", VERSIONS)
def test_large_reads_use_lanes_and_leave_nothing(cards: Lab, options: str) -> None:
    with nothing_lost(cards, "client"):
        found = on(cards, "kinds", options)
    assert set(found["same"]) == {True}
    assert {state["personality"] for state in found["state"]} == {"pre-posted"}
    # each reader waits for its READ: after the first ones, a lane is idle
    counters = found["counters"]
    assert counters["lane_calls"] > 10 * counters["lane_fallbacks"] > 0
    assert counters["lane_bytes"] > 100 << 20
    assert (counters["bad_replies"], counters["failed_marshals"]) == (0, 0)
    assert {state["last_failure"] for state in found["state"]} == {"none"}
    nothing_in_use(found)


@pytest.mark.nightly
def test_lanes_are_as_many_as_the_parameter_allows(cards: Lab) -> None:
    with set_parameters(cards, lanes=2):
        found = on(cards, "kinds", "vers=3")
    assert set(found["same"]) == {True}
    assert [state["lanes"] for state in found["state"]] == ["2 of 2"]
    assert found["counters"]["lanes_connected"] == 2


@pytest.mark.nightly
def test_the_probe_and_status_tell_of_lanes(cards: Lab) -> None:
    with set_parameters(cards, lanes=2), tracing(cards, "client", "connections"):
        found = on(cards, "kinds", "vers=3")

        def lanes(what: str) -> int:
            return sum(row["times"] for row in said(cards, "client") if row["what"] == what)

        until(lambda: lanes("lane end") >= 2, "as many lanes ended as there were")
        assert (lanes("lane"), lanes("lane end")) == (2, 2)
        granted = [row["granted"] for row in said(cards, "client") if row["what"] == "credits"]
    # lanes, which have one credit each, do not hide those of their transport
    assert granted[-1] > 1
    assert found["counters"]["lanes_connected"] == 2
    assert ", 2 lanes; accepts " in found["status"][0]
    assert ", in effect pre-posted, lanes 2, " in found["status"][1]


@pytest.mark.parametrize("options", VERSIONS)
def test_abandoned_calls_end_their_lanes_only(cards: Lab, long: bool, options: str) -> None:
    seconds = 600 if long else 15
    with nothing_lost(cards, "client"):
        found = on(cards, "kill", options, str(seconds), timeout=seconds + 900)
    assert found["killed"] > 0
    # a signal does not end the RPCs of a READ, but a forced unmount does
    # EIO, or ERESTARTSYS of the RPC
    assert set(found["failed"]) <= {"errno 5", "errno 512"}, found
    assert found["failed"], found
    assert found["counters"]["lanes_ended"] > 0
    assert found["right"] + sum(found["failed"].values()) == found["all"]
    assert found["same"] is True
    # a READ that found no idle lane offered memory, which the server writes to after it is revoked:
    # the device of the client or the server reports that first
    reasons = {state["last_disconnect"] for state in found["state"]}
    assert reasons <= {"none", "QP access error", "disconnected by the peer"}, found
    assert found["disconnects"] <= found["counters"]["lane_fallbacks"]
    nothing_in_use(found)


@pytest.mark.parametrize("options", VERSIONS[1:])
def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool, options: str) -> None:
    times = 50 if long else 2
    with nothing_lost(cards, "client"):
        found = on(cards, "restart", options, str(times), timeout=60 * times + 900)
    assert len(found["results"]) > 0
    assert set(found["results"]) == {True}
    nothing_in_use(found)


misbehave = on_node("client", timeout=900)(lane_client.misbehave)
send_mutants = on_node("client", timeout=3600)(lane_client.mutants)
serve_lanes = on_node("server")(lane_server.serve)


def test_a_client_whose_lanes_break_the_rules(cards: Lab) -> None:
    assert len(lane_client.CASES) > 20
    with nothing_lost(cards, "server"), damageable(cards):
        assert finished(misbehave, cards) == []
        nothing_in_use({"server": on(cards, "idle")})


def test_a_server_whose_lanes_break_the_rules(cards: Lab) -> None:
    names = list(lane_server.TRICKS)
    with serving(serve_lanes, cards, 20050), nothing_lost(cards, "client"):
        found = on(cards, "tricks", "20050", str(len(names)), timeout=1800)
    wrong = [name for name, same in zip(names, found["same"], strict=True) if not same]
    assert wrong == []
    ended = dict(zip(names, found["ended"], strict=True))
    assert ended.pop("honest") == 0
    assert {name for name, count in ended.items() if not count} == set()
    # the connection that the lanes belong to is the same all the time
    assert found["disconnects"] == 0


def test_lanes_that_end_at_once_connect_less_and_less_often(cards: Lab) -> None:
    # several lanes may connect before the first of them ends
    names = list(lane_server.TRICKS)
    with (
        serving(serve_lanes, cards, 20050),
        nothing_lost(cards, "client"),
        set_parameters(cards, lanes=1),
    ):
        found = on(cards, "leaving", "20050", str(names.index("leaves")), "5")
    assert set(found["same"]) == {True}
    connected = found["counters"]["lanes_connected"]
    # the delays are 10 ms, 20 ms, and so on; a tick of 4 ms makes 8 ms of the first one
    assert connected > 1
    assert 0.008 * 2 ** (connected - 2) < found["seconds"] + 0.004
    assert found["counters"]["lane_fallbacks"] > connected


@pytest.mark.nightly
def test_a_client_that_sends_what_it_likes_on_lanes(cards: Lab, mutants: int) -> None:
    with nothing_lost(cards, "server"), damageable(cards):
        words, failures = finished(send_mutants, cards, SEED, mutants)
        assert failures == [], f"seed {SEED}"
        assert sum(words.values()) == mutants
        assert {"answered", "ended"} <= set(words)
        print(words)
        nothing_in_use({"server": on(cards, "idle")})


@pytest.mark.nightly
def test_a_server_that_answers_as_it_likes_on_lanes(cards: Lab, mutants: int) -> None:
    with serving(serve_lanes, cards, 20050, SEED, mutants), nothing_lost(cards, "client"):
        found = on(cards, "mutants", "20050", str(mutants), timeout=7200)
    assert found["wrong"] == [], f"seed {SEED}"
    assert sum(found["outcomes"].values()) == mutants
    print(found["outcomes"], found["on_lanes"], "on lanes")
    # a READ that found no lane was answered by the connection that the lanes belong to
    assert found["on_lanes"] > mutants // 2
