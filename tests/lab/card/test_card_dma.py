# SPDX-License-Identifier: Apache-2.0
"""Cards whose addresses the DMA layer makes: mapped directly, bounced, or by a strict IOMMU."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.optimistic.killed import kill_one, list_on

from nfsrdma_tools.host.module.devices import devices
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.machine import IDLE_FUNCTION
from testbed import kernel_modules
from testbed.killed_tasks import killed
from testbed.labs import OURS, THEIRS, cards_lab, choose, counts_listeners, serve
from testbed.module_data import WAYS, around, carried
from testbed.node import modelled
from testbed.node.grants import BLOCK, EXPORT, Reader, made, mounted_export, scattered, seeded
from testbed.node.mounts import HERE, SERVER, connections, counters, mounted, parameters
from testbed.node.programs import call, until
from testbed.remote import on

VERBS = Path(__file__).with_name("card_verbs")
pytestmark = pytest.mark.nightly

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="no verbs module: only root can build it")
# how the node's kernel makes addresses; without an IOMMU, none of a mapping that has ended faults
FORMS = ("direct", "swiotlb", "iommu")
UNBOUNCED = ("direct", "iommu")
PERSONALITIES = ("read-write", "cached", "padded", "read-read", "pre-posted", "optimistic")
# around a page, several, and the largest; what fits inline is added
SIZES = around(4096, 17 * 4096, 1 << 20)
LONG_SIZES = around(1024, 4096, 17 * 4096, 128 << 10, 1 << 20)
FEW = ("buffered", "direct-skewed")
DEBUGFS = Path("/sys/kernel/debug/nfsrdma_card")
DRIVER = Path("/sys/bus/pci/drivers/nfsrdma_card")


@pytest.fixture(scope="module", params=FORMS)
def cards(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A solo lab with two modelled cards that do DMA in one of the forms."""
    with cards_lab(pytestconfig, f"dma-{request.param}", dma=request.param) as lab:
        yield lab
        nothing_faulted(lab)


@pytest.fixture(scope="module")
def ours(cards: Lab) -> Iterator[Lab]:
    """The lab with our module at both ends."""
    serve(cards, "server", OURS)
    yield cards
    serve(cards, "server", THEIRS)


@on("client")
def nothing_faulted() -> None:
    """The IOMMU, or the card in its place, has found memory behind each address."""
    lines = call("dmesg").splitlines()
    assert [line for line in lines if "DMA fault" in line or "DMAR: [DMA" in line] == []


@on("client")
def functions() -> dict[str, str]:
    """The function that each card uses."""
    return {card: (DEBUGFS / card / "dma").read_text().strip() for card in modelled.CARDS}


def test_cards_use_the_idle_function(cards: Lab) -> None:
    assert functions(cards) == dict.fromkeys(modelled.CARDS, IDLE_FUNCTION)


# --- verbs ---


@pytest.fixture(scope="module")
def verbs(cards: Lab) -> Lab:
    """The lab with card_verbs.ko in the node."""
    kernel_modules.place(cards, VERBS, "/run/card_verbs.ko", "client")
    return cards


@on("client", timeout=1800)
def failures(*parameters: str) -> dict[str, str]:
    """Run the cases of card_verbs.ko: the expectation that failed, by case.

    The console hides the card's report of an access that was planted.
    """
    call("dmesg", "-n", "1" if parameters else "4")
    try:
        return modelled.failures(*parameters)
    finally:
        call("dmesg", "-n", "4")


@ROOT
@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_verbs_complete_with_the_status_of_the_specification(verbs: Lab) -> None:
    """No case syncs its memory, so that none can do with bounce buffers."""
    assert failures(verbs) == {}


@on("client")
def faults(card: str) -> int:
    return modelled.counters(card)["dma_faults"]


@on("client")
def forget_reports() -> int:
    """Clear the kernel's log; returns the number of faults in it."""
    return call("dmesg", "--read-clear").count("DMA fault")


@ROOT
@pytest.mark.parametrize("cards", ("iommu",), indirect=True)
def test_an_access_after_the_end_of_its_mapping_fails(verbs: Lab) -> None:
    """This is the instrument: the tests below rely on it."""
    nothing_faulted(verbs)
    assert failures(verbs, "unmapped=1") == {}
    assert (faults(verbs, "card0"), faults(verbs, "card1")) == (1, 3)
    assert forget_reports(verbs) == 4


# --- mounts ---


@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_data_of_the_kernels_module_is_equal(cards: Lab, long: bool) -> None:
    for seed, options in enumerate(("vers=3", "vers=4.2") if long else ("vers=4.2",)):
        assert carried(cards, options, LONG_SIZES if long else SIZES, seed, FEW).bytes > 0
    nothing_faulted(cards)


@on("client", timeout=600)
def bounced() -> tuple[bool, bool]:
    """Read a file of rpcrdma's server, and write one by Read chunks; whether each is equal."""
    data = made(EXPORT / "bounced", 8)
    with mounted("vers=3") as folder:
        read = (folder / "bounced").read_bytes()
        (folder / "written").write_bytes(data)
    return read == data, (EXPORT / "written").read_bytes() == data


@pytest.mark.parametrize("cards", ("swiotlb",), indirect=True)
def test_the_kernels_server_stores_old_data_of_bounce_buffers(cards: Lab) -> None:
    """Its nfsd stores the data of a Read chunk before it unmaps them: nothing else of it can pass.

    docs/dev/faults-of-other-software.md
    """
    assert bounced(cards) == (True, cards.config.kernel == "6.1")
    nothing_faulted(cards)


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_data_of_each_personality_is_equal(ours: Lab, personality: str, long: bool) -> None:
    choose(ours, personality)
    try:
        sizes, ways = (LONG_SIZES, WAYS) if long else (SIZES, FEW[1:])
        assert carried(ours, "vers=3", sizes, 7, ways).bytes > 0
    finally:
        choose(ours, "read-write")
    nothing_faulted(ours)


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_readers_and_writers_are_killed(ours: Lab, personality: str, long: bool) -> None:
    choose(ours, personality)
    try:
        killed(ours, "vers=3", silent=False, seed="tests", rounds=20 if long else 1)
    finally:
        choose(ours, "read-write")
    nothing_faulted(ours)


@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_readers_and_writers_of_the_kernels_module_are_killed(cards: Lab, long: bool) -> None:
    killed(cards, "vers=3", silent=False, seed="tests", rounds=20 if long else 1, ours=False)
    nothing_faulted(cards)


@on("client", timeout=3600)
def listings_killed(rounds: int) -> None:
    """Kill processes that list a folder, while another one writes and reads."""
    folder, chance = EXPORT / "listed", seeded("listings")
    folder.mkdir()
    for number in range(300):
        (folder / f"a-name-{number:0100}").touch()
    with mounted("vers=3"), modelled.load():
        for _ in range(rounds):
            kill_one(list_on, HERE / "listed", after=chance.uniform(0, 0.03))
        listed = {path.name for path in (HERE / "listed").iterdir()}
        assert listed == {path.name for path in folder.iterdir()}
    call("rm", "-r", folder)


@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_listings_of_the_kernels_module_are_killed(cards: Lab, long: bool) -> None:
    listings_killed(cards, 1000 if long else 50)
    nothing_faulted(cards)


def test_listings_of_our_module_are_killed(ours: Lab, long: bool) -> None:
    listings_killed(ours, 1000 if long else 50)
    nothing_faulted(ours)


# --- grants ---


@on("client")
def grants() -> tuple[int, int]:
    """Read a file until the server has decided about a reference to it.

    Returns the number of grants, and of READs that got none because of the server's device.
    """
    data = made(EXPORT / "granted", 5)
    with mounted_export(), Reader("granted") as reader:

        def decided() -> tuple[int, int]:
            assert reader.read() == data[:BLOCK]
            now = counters(SERVER)
            return now.get("grants", 0), now.get("refused_device", 0)

        until("a grant, or its refusal", lambda: any(decided()))
        return decided()


def test_a_device_that_reads_copies_gets_no_references(ours: Lab) -> None:
    """With bounce buffers, the device would read old data of the page cache."""
    counts_listeners(ours.config.kernel)
    choose(ours, "optimistic")
    try:
        granted, refused = grants(ours)
    finally:
        choose(ours, "read-write")
    assert (granted > 0, refused > 0) == (
        ours.config.dma != "swiotlb",
        ours.config.dma == "swiotlb",
    )


@on("client")
def limits() -> dict[str, tuple[str, ...]]:
    """The limits of each card, as the module reports them."""
    return {device.name: device.limits for device in devices()}


def test_the_limits_of_a_device_follow_from_the_form(ours: Lab) -> None:
    """With bounce buffers, it grants nothing; without an IOMMU, elements are pages."""
    assert limits(ours).keys() == modelled.CARDS.keys()
    for found in limits(ours).values():
        names = {text.split(":")[0] for text in found}
        assert ("optimistic reads" in names) == (ours.config.dma != "iommu")
        assert ("grants nothing to clients (optimistic)" in names) == (ours.config.dma == "swiotlb")


@on("client")
def depths() -> list[list[str]]:
    """Pages of a region of the smallest size: of a connection, as listed, and the least."""
    with parameters(mr_depth=16), mounted("vers=3"):
        used = [row["mr_depth"] for row in connections()]
        values = [device.values for device in devices()]
        listed = [each["region_pages"].split()[0] for each in values]
        return [used, listed, [each["region_pages_needed"] for each in values]]


def test_listed_regions_are_those_of_connections(ours: Lab) -> None:
    """Where memory bounces, a region needs more pages than the parameter's minimum."""
    used, listed, needed = map(set, depths(ours))
    assert used == listed == needed
    assert (used == {"16"}) == (ours.config.dma != "swiotlb")


# --- merging ---


@on("client")
def is_read_at_once(pages: int) -> bool:
    """Whether a READ into pages that lie apart is optimistic, once its extent is granted."""
    data, size = made(EXPORT / "merged", 6), pages * BLOCK
    with mounted_export(), Reader("merged", room=scattered(pages)) as reader:
        reader.granted()
        before = counters()["optimistic_reads"]
        assert reader.read(0, size) == data[:size]
        return counters()["optimistic_reads"] > before


@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_an_iommu_makes_one_element_of_pages_that_lie_apart(ours: Lab) -> None:
    """The card takes 32 elements at most: only an IOMMU makes fewer of 128 pages."""
    counts_listeners(ours.config.kernel)
    choose(ours, "optimistic")
    try:
        assert is_read_at_once(ours, 128) == (ours.config.dma == "iommu")
    finally:
        choose(ours, "read-write")
    nothing_faulted(ours)


# --- removal ---


def unbind() -> None:
    """Take the function from the cards, and give it back."""
    (DRIVER / "unbind").write_text(IDLE_FUNCTION)
    assert not any((modelled.SYSFS / card).exists() for card in modelled.CARDS)
    (DRIVER / "bind").write_text(IDLE_FUNCTION)
    for card in modelled.CARDS:
        modelled.add(card)


@on("client", timeout=1800)
def removed() -> None:
    """The card fails under load in each way, and its function goes; the mount recovers."""
    modelled.each_failure()
    with mounted("vers=3,timeo=50"), modelled.load():
        unbind()


@pytest.mark.parametrize("cards", UNBOUNCED, indirect=True)
def test_a_mount_of_the_kernels_module_survives_removal(cards: Lab) -> None:
    removed(cards)
    nothing_faulted(cards)


def test_a_mount_of_our_module_survives_removal(ours: Lab) -> None:
    removed(ours)
    nothing_faulted(ours)
