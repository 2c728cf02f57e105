# SPDX-License-Identifier: Apache-2.0
"""The modelled card executes and refuses requests as a card does, and survives removal."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.labs import OURS, THEIRS, cards_lab, serve
from testbed.leaks import growth
from testbed.scripts import NODES, node_script

SCRIPT = node_script("card")
VERBS = NODES / "card_verbs"
RACES = NODES / "card_races.c"
SIZE = 8 << 20
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="no verbs module: only root can build it")


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards."""
    with cards_lab(pytestconfig, "card") as lab:
        yield lab


@pytest.fixture(scope="module", params=("rpcrdma", "nfsrdma"))
def mounts(cards: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab with the kernel's transport module, then with ours."""
    if request.param == "rpcrdma":
        yield cards
        return
    serve(cards, "server", OURS)
    yield cards
    serve(cards, "server", THEIRS)


# the kernel's module is there to compare with: its long tests run nightly
THEIRS_NIGHTLY = pytest.mark.parametrize(
    "mounts", (pytest.param("rpcrdma", marks=pytest.mark.nightly), "nfsrdma"), indirect=True
)


def on(lab: Lab, *words: str, timeout: float = 900) -> Any:
    """The result of a function of card_node.py, which runs in the node."""
    output = lab.run("client", "python3", "-", *words, stdin=SCRIPT, timeout=timeout).stdout
    return json.loads(output)


@pytest.fixture(scope="module")
def verbs(cards: Lab) -> Lab:
    """The lab with card_verbs.ko in the node."""
    kernel_modules.place(cards, VERBS, "/run/card_verbs.ko", "client")
    return cards


def failures(lab: Lab, *parameters: str) -> dict[str, str]:
    """Run the cases of card_verbs.ko: the expectation that failed, by case."""
    lab.run("client", "insmod", "/run/card_verbs.ko", *parameters, timeout=1800)
    try:
        output = lab.run("client", "cat", "/sys/kernel/debug/card_verbs").stdout
    finally:
        lab.run("client", "rmmod", "card_verbs")
    results = dict(line.split(" ", 1) for line in output.splitlines())
    assert results
    return {name: result for name, result in results.items() if result != "ok"}


@ROOT
def test_verbs_complete_with_the_status_of_the_specification(verbs: Lab) -> None:
    assert failures(verbs) == {}


@ROOT
def test_a_recoverable_card_survives_refused_requests(verbs: Lab) -> None:
    files = [f"/sys/kernel/debug/nfsrdma_card/{card}/recoverable" for card in ("card0", "card1")]
    verbs.run("client", "tee", *files, stdin=b"Y")
    try:
        assert failures(verbs, "recoverable=1") == {}
    finally:
        verbs.run("client", "tee", *files, stdin=b"N")


@pytest.fixture(scope="module")
def races(cards: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The lab with card_races in the node."""
    program = tmp_path_factory.mktemp("races") / "card_races"
    folder = module_source.find_card().folder
    argv = ("gcc", "-O2", "-Wall", "-pthread", f"-I{folder}", "-o", program, RACES)
    subprocess.run(argv, check=True)
    cards.run("client", "tee", "/run/card_races", stdin=program.read_bytes())
    cards.run("client", "chmod", "+x", "/run/card_races")
    return cards


def race(lab: Lab, *words: str) -> int:
    """The number that a case of card_races.c prints, as a user without rights."""
    argv = ("setpriv", "--reuid=nobody", "--clear-groups", "/run/card_races", *words)
    return int(lab.run("client", *argv, timeout=3600).stdout)


def test_threads_modify_one_queue_pair_at_the_same_time(races: Lab, long: bool) -> None:
    assert race(races, "reset", "20000" if long else "2000") > 0


def test_a_broken_queue_pair_reports_one_event(races: Lab) -> None:
    # and one of its completion queue
    assert race(races, "events") <= 2


def test_link_show_lists_cards(cards: Lab) -> None:
    links = json.loads(cards.run("client", "nfsrdma", "link", "show", "--json").stdout)["links"]
    found = [(x["name"], x["driver"], x["netdev"], x["state"], x["protocol"]) for x in links]
    assert found == [
        ("card0", "card", "v0", "ACTIVE", "roce"),
        ("card1", "card", "v1", "ACTIVE", "roce"),
    ]


def check_data(found: dict[str, Any]) -> None:
    """The data is equal, the server did all Reads and Writes, and no card had an error."""
    assert set(found["same"].values()) == {True}
    client, server = (found["counters"][card] for card in ("card0", "card1"))
    assert server["reads"] > 0
    assert server["writes"] > 0
    assert (client["reads"], client["writes"]) == (0, 0)
    assert server["bytes"] > len(found["same"]) * SIZE
    for card in (client, server):
        assert card["interrupts"] > 0
        quiet = ("refused", "receiver_not_ready", "retries", "lost", "cache_misses")
        assert {name: card[name] for name in quiet} == dict.fromkeys(quiet, 0)


def test_data_is_equal_and_no_card_counts_an_error(mounts: Lab) -> None:
    check_data(on(mounts, "data"))


def test_a_lost_message_is_retransmitted(mounts: Lab) -> None:
    found = on(mounts, "lost")
    assert found["same"]
    assert found["lost"] == 3
    assert found["retries"] >= 1


def test_data_is_equal_with_late_completions(mounts: Lab) -> None:
    assert on(mounts, "late")["same"]


def test_a_small_translation_cache_counts_its_misses(mounts: Lab) -> None:
    found = on(mounts, "cached")
    assert found["same"]
    # the server reads each page, and writes it
    assert found["misses"] >= 2 * SIZE // 4096


def test_threads_of_nfsd_keep_their_pages(mounts: Lab, request: pytest.FixtureRequest) -> None:
    found = on(mounts, "pages")
    data = (1 << 20) // 4096
    if "rpcrdma" in request.node.name:
        # the test would find a server that frees the pages of each Call
        assert min(found.values()) >= data
    else:
        assert max(found.values()) < data / 4


@pytest.mark.nightly
def test_deferred_calls_take_no_pages_of_other_threads(
    mounts: Lab, request: pytest.FixtureRequest
) -> None:
    found = on(mounts, "deferred", "3")
    assert found["read"]
    assert found["listed"]
    assert found["deferred"] >= 3 * 4
    if "nfsrdma" in request.node.name:
        # other Replies exchange their pages for the thread's
        assert found["held"] >= found["deferred"]


def test_lab_link_sets_rate_and_latency_of_the_cards(cards: Lab) -> None:
    script = "cd /sys/kernel/debug/nfsrdma_card/$1 && cat rate latency"
    for link, wanted in (("10gbit/25us", [10**10, 12_500]), ("none", [0, 0])):
        cards.set_link(link)
        for card in ("card0", "card1"):
            output = cards.run("client", "sh", "-c", script, "sh", card).stdout
            assert [int(word) for word in output.split()] == wanted


@THEIRS_NIGHTLY
def test_a_mount_survives_each_failure_of_its_card(mounts: Lab) -> None:
    found = on(mounts, "broken", timeout=1800)
    assert list(found) == ["break", "link_down", "gone", "deleted"]
    assert [state["same"] for state in found.values()] == [True] * 4


@THEIRS_NIGHTLY
def test_a_mount_survives_a_storm_of_failures(mounts: Lab, long: bool) -> None:
    rounds = 100 if long else 8
    found = on(mounts, "storm", str(rounds), timeout=60 * rounds + 600)
    assert found["same"]
    assert found["files"] > 0


def test_removal_of_the_network_device_removes_the_card(cards: Lab) -> None:
    assert on(cards, "unplugged") == {"second_refused": True}


def test_unloading_the_module_frees_its_memory(mounts: Lab, long: bool) -> None:
    rounds = 100 if long else 3
    found = on(mounts, "loads", str(rounds), timeout=60 * rounds + 600)
    assert [one["same"] for one in found] == [True] * rounds
    if long:
        growth([one["slabs"] for one in found[3:]])
