# SPDX-License-Identifier: Apache-2.0
"""Cards with the limits and behaviours of drivers: the instrument, and mounts over each."""

import os
from collections.abc import Iterator
from pathlib import Path

import card_profiles
import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.labs import OURS, THEIRS, cards_lab, choose, serve
from testbed.module_data import around, carried
from testbed.node import modelled
from testbed.node.programs import call
from testbed.remote import on

VERBS = Path(__file__).with_name("card_verbs")
pytestmark = pytest.mark.nightly

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="no verbs module: only root can build it")
PERSONALITIES = ("read-write", "cached", "padded", "read-read", "pre-posted", "optimistic")
PROFILES, DRIVERS = card_profiles.read(), card_profiles.drivers()
# around a page, the elements of the cards with 6, 13 and 30, and the largest
SIZES = around(4096, 6 * 4096, 13 * 4096, 30 * 4096, 1 << 20)
WAYS = ("buffered-skewed", "direct-skewed")
FIRST = "bnxt"
# long: requests of several RPCs are on their way at a time
WIRE = "1gbit/2ms"
DEBUGFS = Path("/sys/kernel/debug/nfsrdma_card")


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards, whose profile is FIRST, and a WIRE."""
    with cards_lab(pytestconfig, "profiles", link=WIRE, profile=FIRST) as lab:
        yield lab


@pytest.fixture(scope="module")
def ours(cards: Lab) -> Iterator[Lab]:
    """The lab with our module at both ends."""
    serve(cards, "server", OURS)
    yield cards
    serve(cards, "server", THEIRS)


become = on("client", timeout=1800)(modelled.become)


def use(lab: Lab, profile: str) -> None:
    """Give the cards a profile, and the wire of the lab."""
    assert become(lab, profile) == [profile] * len(modelled.CARDS)
    lab.set_link(str(lab.config.wire))


# --- links ---


@on("client")
def add(profile: str, netdev: str) -> tuple[list[str], str]:
    """Replace the first card; returns the cards' profiles, and that of cards to come."""
    call("nfsrdma", "link", "delete", "card0")
    words = ("card0", "--type", "card", "--profile", profile, "--netdev")
    call("nfsrdma", "link", "add", *words, netdev, check=netdev == "v0")
    if not (DEBUGFS / "card0").exists():
        modelled.add("card0")
    return modelled.profiles(), modelled.PROFILE.read_text().strip()


def test_a_link_is_added_with_a_profile(cards: Lab) -> None:
    """The lab's own profile is that of cards that are added later."""
    assert add(cards, "mlx4", "v0") == (["mlx4", FIRST], FIRST)
    # this one fails after the parameter is set
    assert add(cards, "mlx5", "lo") == ([FIRST, FIRST], FIRST)


# --- verbs ---


@pytest.fixture(scope="module")
def verbs(cards: Lab) -> Lab:
    """The lab with card_verbs.ko in the node."""
    kernel_modules.place(cards, VERBS, "/run/card_verbs.ko", "client")
    return cards


failures = on("client", timeout=1800)(modelled.failures)


@ROOT
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_its_limits_and_behaviours(verbs: Lab, profile: str) -> None:
    # the DMA layer has the largest segment, and a card without a function none
    expected = {name: value for name, value in PROFILES[profile].items() if name != "segment"}
    assert become(verbs, profile) == [profile] * len(modelled.CARDS)
    words = [f"{name}={value}" for name, value in expected.items()]
    assert failures(verbs, "profile=1", *words) == {}


@ROOT
def test_the_instrument_sees_the_limits_and_behaviours_of_another_profile(verbs: Lab) -> None:
    """The cards have another profile than the cases expect."""
    become(verbs, "bnxt")
    words = [f"{name}={value}" for name, value in PROFILES["model"].items() if name != "segment"]
    failed = failures(verbs, "profile=1", *words)
    become(verbs, "model")
    words = [f"{name}={value}" for name, value in PROFILES["bnxt"].items() if name != "segment"]
    failed |= failures(verbs, "profile=1", *words)
    assert len(failed) >= 9


# --- mounts ---


@pytest.mark.parametrize("profile", DRIVERS)
def test_data_of_the_kernels_module_is_equal(cards: Lab, profile: str) -> None:
    use(cards, profile)
    moved = carried(cards, "vers=4.2", SIZES, 3, WAYS)
    assert (moved.bytes > 0, moved.connects) == (True, 1)


@pytest.mark.parametrize("profile", DRIVERS)
def test_data_of_each_personality_is_equal(ours: Lab, profile: str) -> None:
    use(ours, profile)
    for seed, personality in enumerate(PERSONALITIES):
        choose(ours, personality)
        try:
            moved = carried(ours, "vers=3", SIZES, seed, WAYS)
        finally:
            choose(ours, "read-write")
        assert (moved.bytes > 0, moved.connects) == (True, 1), personality
