# SPDX-License-Identifier: Apache-2.0
"""READs that bypass nfsd, beside what nfsd would have checked: listeners and withdrawn access.

Threadless reads are on, and so is the personality optimistic where a test names it.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.cached_reads import (
    Record,
    check_withdrawn_meanwhile,
    counts_listeners,
    nothing_broke,
    nothing_in_use,
    on,
)
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import set_to
from testbed.scripts import NODES, bring_programs, called

PERSONALITIES = ("read-write", "optimistic")
PLACES = ("file system", "mount", "parent", "file")
# seconds of the guest after which no grant from before a listener may be left: the server looks for
# listeners each second, and grants expire after 60 otherwise
ENDED = 20


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; the server answers READs without a thread."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "bypass") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "client", "server_threadless", "65536")
        on(lab, "make_disk")
        bring_programs(lab)
        yield lab


def choose(lab: Lab, personality: str) -> None:
    for name in ("personality", "server_personalities"):
        set_to(lab, "client", name, personality)


# --- permission listeners ---


def listened(lab: Lab, personality: str, kind: str, places: tuple[str, ...]) -> dict[str, Any]:
    choose(lab, personality)
    found: dict[str, Any] = called(lab, "bypass", "listens", kind, "60", *places)
    assert {each["personality"] for each in found["state"]} == {personality}
    for place, heard in found["places"].items():
        about = f"{personality}, {place}: {heard}"
        # no READ without a thread; of grants, those that end at once
        assert personality == "optimistic" or heard["after"]["passed"] == 0, about
        assert heard["after"]["seconds"] < ENDED, about
        # what the listener decided is what the reader got
        assert heard["passed"] == 0, about
        assert heard["got"].get("EPERM", 0) == heard["denied"] > 0, about
        assert sum(heard["got"].values()) == 60, about
        assert heard["allowed"] + heard["denied"] == 60, about
        assert heard["same"], about
    assert found["places"].keys() == set(places)
    nothing_broke(found)
    nothing_in_use(found)
    return found


def has_listeners(lab: Lab) -> None:
    if lab.config.kernel in CHECKING:
        pytest.skip(f"kernel {lab.config.kernel} has no fanotify; missed: permission listeners")


@pytest.mark.parametrize(
    ("personality", "places"),
    [
        ("read-write", ("mount",)),
        ("optimistic", ("parent",)),
        *(
            pytest.param(name, PLACES, marks=pytest.mark.nightly, id=f"{name}-all")
            for name in PERSONALITIES
        ),
    ],
)
def test_no_read_passes_a_listener_by(
    cards: Lab, personality: str, places: tuple[str, ...]
) -> None:
    """The listener denies each second READ (FAN_ACCESS_PERM)."""
    has_listeners(cards)
    listened(cards, personality, "each second", places)


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_no_read_passes_a_listener_for_ranges_by(cards: Lab, personality: str) -> None:
    """The listener denies offsets in the second half of a file (FAN_PRE_ACCESS)."""
    has_listeners(cards)
    if not called(cards, "bypass", "pre_access"):
        pytest.skip(f"kernel {cards.config.kernel} has no FAN_PRE_ACCESS; missed: ranges")
    found = listened(cards, personality, "second half", ("file system",))
    (heard,) = found["places"].values()
    assert heard["got"] == {"data of half 0": 30, "EPERM": 30}


# --- access that is withdrawn ---


@pytest.mark.parametrize(("before", "after"), [("0", "10"), ("-10", "0"), ("-10", "20")])
def test_a_step_of_the_clock_hides_no_withdrawn_access(cards: Lab, before: str, after: str) -> None:
    """The clock steps before or after access ends, while nfsd waits for a disk."""
    choose(cards, "optimistic")
    check_withdrawn_meanwhile(cards, before, after)


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="no module is built: root mounts the image")
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_no_read_succeeds_when_access_has_ended(
    cards: Lab, long: bool, personality: str, record_property: Record
) -> None:
    """An ACL of another NFS client ends it, which fsnotify does not report.

    Each threadless read compares ctime. Of READs by reference, a worker of the server compares it
    each second. A module of the tests (``delays``) delays nfsd between its steps, where access may
    end.
    """
    choose(cards, personality)
    there = "/run/nfsrdma_delays.ko"
    kernel_modules.place(cards, NODES / "delays", there, "client")
    ends = "soon" if personality == "optimistic" else "at once"
    found = called(cards, "bypass", "withdrawals", there, "120" if long else "8", "40", ends)
    record_property("withdrawals", found)
    assert found["functions"] > 5, found
    assert found["delays"] > found["tries"] >= 40, found
    # some READs came too late, and some in time
    assert found["raced"].keys() == {"data", "EACCES"}, found
    assert found["later"].keys() == {"EACCES"}, found
    nothing_in_use(found)
