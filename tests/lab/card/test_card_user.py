# SPDX-License-Identifier: Apache-2.0
"""User-space verbs over the modelled card: programs, checks, figures, and what SIGKILL leaves."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.labs import cards_lab
from testbed.scripts import node_script

SCRIPT = node_script("card_user")
# enum ibv_wc_status
SUCCESS, LOC_PROT, REM_INV_REQ, REM_ACCESS, REM_OP = 0, 4, 9, 10, 11
LOC_ACCESS = 8
# microseconds of the CPU for a Read: posting, the timer's interrupt, polling
CPU_US = 10


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab on the instruction clock with two modelled cards and their provider."""
    with cards_lab(pytestconfig, "cardu", clock="instructions", link="none") as lab:
        yield lab


def on(lab: Lab, *words: str) -> Any:
    """The result of a function of card_user_node.py, which runs in the node."""
    output = lab.run("client", "python3", "-", *words, stdin=SCRIPT, timeout=1800).stdout
    return json.loads(output)


def figures(lab: Lab, link: str, *words: str) -> list[float]:
    """The columns that a program of perftest prints, with the cards on a link."""
    lab.set_link(link)
    try:
        found: list[float] = on(lab, "measured", *words)
    finally:
        lab.set_link("none")
    return found


def test_ibv_devinfo_shows_the_card(cards: Lab) -> None:
    found = on(cards, "devinfo")
    assert found["fw_ver"].startswith("nfsrdma_card ")
    assert found["state"] == "PORT_ACTIVE (4)"
    assert found["link_layer"] == "Ethernet"


def test_ibv_rc_pingpong_compares_its_data(cards: Lab) -> None:
    for ends in on(cards, "pingpong").values():
        for end in ends:
            assert end["code"] == 0, end
            # 100 messages in both directions
            assert f"{2 * 100 * 65536} bytes in" in end["output"]
            assert "invalid" not in end["output"]


def test_rping_compares_its_data(cards: Lab) -> None:
    found = on(cards, "rping")
    assert [end["code"] for end in found["ends"]] == [0, 0], found["ends"]
    # the server reads each message of the client, and writes it back
    counters = found["counters"]["card1"]
    assert counters["reads"] == counters["writes"] == 50
    assert counters["bytes"] >= 2 * 50 * 32768
    for card in found["counters"].values():
        assert (card["refused"], card["retries"], card["lost"]) == (0, 0, 0)


# of a Send's ends, two processes that share a CPU, each waits for the other to be woken
@pytest.mark.parametrize(
    ("program", "least"), (("ib_write_bw", 0.98), ("ib_read_bw", 0.98), ("ib_send_bw -e", 0.8))
)
def test_perftest_agrees_with_the_rate_of_the_wire(cards: Lab, program: str, least: float) -> None:
    # with 54 ms of requests posted, the card works on while other processes have the CPU
    words = ("-s", "65536", "-n", "2000", "-t", "1024", "--report_gbits")
    size, _, _, rate, _ = figures(cards, "10gbit/100us", *program.split(), *words)
    # 58 bytes of headers in each packet of 4096, 16 more for a Read or Write
    headers = 16 * 58 + (16 if program == "ib_write_bw" else 0)
    expected = 10 * size / (size + headers)
    assert expected * least < rate < expected * 1.02


def test_perftest_agrees_with_the_latency_of_the_wire(cards: Lab) -> None:
    words = ("ib_read_lat", "-s", "8", "-n", "200")
    short = figures(cards, "10gbit/20us", *words)[4]
    long = figures(cards, "10gbit/220us", *words)[4]
    # request of 74 bytes, answer of 66
    wire = (74 + 66) * 8 / 10_000
    assert 20 + wire < short < 20 + wire + CPU_US
    assert long - short == pytest.approx(200, rel=0.01)


def test_each_request_is_checked_as_for_the_kernel(cards: Lab) -> None:
    assert on(cards, "checked") == {
        "send": [SUCCESS, SUCCESS],
        "receive into read-only memory": [REM_OP, LOC_PROT],
        "write": SUCCESS,
        "read": SUCCESS,
        "key 0": LOC_PROT,
        "local key of another domain": LOC_PROT,
        "local bounds": LOC_PROT,
        "read into read-only memory": LOC_PROT,
        "remote key": REM_ACCESS,
        "remote key of another domain": REM_ACCESS,
        "remote bounds": REM_ACCESS,
        "remote rights to write": REM_ACCESS,
        "remote rights to read": REM_ACCESS,
    }


def test_a_peer_cannot_invalidate_user_memory(cards: Lab) -> None:
    assert on(cards, "uninvited") == [REM_ACCESS, LOC_ACCESS]


def test_inline_data_is_copied_at_the_post(cards: Lab) -> None:
    found = on(cards, "inline")
    assert found["statuses"] == [SUCCESS, SUCCESS]
    assert found["same"]
    # more than max_inline_data
    assert found["refused"] == ["PyverbsRDMAError"]


def test_the_card_refuses_requests_that_no_provider_writes(cards: Lab) -> None:
    found = on(cards, "requested")
    assert found["found"].pop("good") == ["", 1]
    assert len(found["found"]) == 10
    # the error, and the number of requests that the card has taken
    for name, said in found["found"].items():
        assert said == ["EINVAL", 0], name
    assert found["statuses"] == [SUCCESS, SUCCESS]


def test_overwritten_queues_break_only_their_owner(cards: Lab) -> None:
    found = on(cards, "overwritten")
    # two completion queues, and the requests of two queue pairs
    assert found == {"rings": 4, "broken": True, "rping": [0, 0]}


def test_pinned_memory_has_a_limit(cards: Lab) -> None:
    assert on(cards, "locked") == {"4096": True, str(1 << 20): False}


def test_memory_of_completion_queues_counts_as_pinned(cards: Lab) -> None:
    found = on(cards, "rings")
    assert found == {"number": 4, "start": 0, "during": 64, "end": 0}


def test_rings_of_queue_pairs_count_as_pinned(cards: Lab) -> None:
    found = on(cards, "receive_rings")
    # in the kernel: 256 receives of 40 bytes and a request; in the process: a page of requests
    assert 8 <= found["pinned"]["256"] <= 20
    assert found["pinned"]["16384"] == 0
    assert found["left"] == 0


def test_sigkill_during_a_transfer_leaves_no_object(cards: Lab) -> None:
    for found in on(cards, "killed").values():
        assert found == {"grown": True, "same": True}


def test_a_card_can_be_removed_during_a_transfer(cards: Lab) -> None:
    assert on(cards, "removed") == {"gone": True, "failed": [True, True], "rping": [0, 0]}


def test_the_module_unloads_during_a_transfer(cards: Lab) -> None:
    assert on(cards, "unloaded") == {"failed": [True, True], "rping": [0, 0]}
