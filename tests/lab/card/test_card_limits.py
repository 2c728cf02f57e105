# SPDX-License-Identifier: Apache-2.0
"""Our module over cards with the limits and behaviours of drivers: its use of them, and faults."""

import ctypes
import mmap
import os
import re
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import card_profiles
import pytest

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from testbed.killed_tasks import killed
from testbed.labs import OURS, cards_lab, choose, counts_listeners, serve
from testbed.node import modelled
from testbed.node.files import opened
from testbed.node.grants import EXPORT, MIB, made, mounted_export
from testbed.node.mounts import connections, counters, mounted, parameters
from testbed.node.programs import call, until
from testbed.remote import on

pytestmark = pytest.mark.nightly

# the counter of READs that go the way of a personality, and of those that cannot
WAYS = {
    "read-write": "write_chunks",
    "cached": "cache_hits",
    "padded": "padded_replies",
    "read-read": "fetches",
    "pre-posted": "lane_calls",
    "optimistic": "optimistic_reads",
}
FALLBACKS = {"pre-posted": "lane_fallbacks", "optimistic": "optimistic_misses"}
PROFILES, DRIVERS = card_profiles.read(), card_profiles.drivers()
FAULTY = ("irdma-roce", "bnxt")
# not mlx5, without a reserved key: the RDMA core warns of the region that it makes instead
STOPPED = ("mlx4", *FAULTY)
PAGE = 4096
# what is shorter than a chunk has to be
PADDED = 15
READS = 8
FEW = 4
# more refusals than a connection asks for
ALWAYS = 1 << 30
GIVEN_UP = re.compile(r"device (\S+) ends, and has not destroyed (\d+) memory .* and (\d+) pages")


@pytest.fixture(scope="module")
def lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; our module at both ends."""
    with cards_lab(pytestconfig, "limits") as lab:
        serve(lab, "server", OURS)
        yield lab


become = on("client", timeout=1800)(modelled.become)
profiles = on("client")(modelled.profiles)


@contextmanager
def used(lab: Lab, profile: str, personality: str) -> Iterator[None]:
    """The cards have a profile, and connections a personality, for as long as the block lasts."""
    if personality == "optimistic":
        counts_listeners(lab.config.kernel)
    wanted = [profile] * len(modelled.CARDS)
    if profiles(lab) != wanted:
        assert become(lab, profile) == wanted
        lab.set_link(str(lab.config.wire))
    choose(lab, personality)
    try:
        yield
    finally:
        choose(lab, "read-write")


def constant(file: str, name: str) -> int:
    """A constant of our module."""
    text = (card_profiles.FOLDER.parent / file).read_text()
    found = re.search(rf"^#define {name}\s+(\d+)", text, re.MULTILINE)
    assert found, name
    return int(found[1])


@on("client")
def largest_read() -> int:
    """Pages of the largest READ that nfsd answers, which its memory limits."""
    return min(MIB, int(Path("/proc/fs/nfsd/max_block_size").read_text())) // PAGE


def limit_of(profile: str, personality: str, largest: int) -> int:
    """Pages of the largest READ of a personality, if none of its pages follows another."""
    card = PROFILES[profile]
    if personality == "optimistic":
        return min(card["send_sge"], card["read_sge"])
    if personality == "pre-posted":
        spare = constant("personality/preposted.h", "NFR_LANE_SPARE_SGES")
        messages = constant("personality/preposted.h", "NFR_LANE_MESSAGES")
        return min(messages * (min(card["send_sge"], card["recv_sge"]) - spare), largest)
    if personality == "padded":
        spare = constant("server/personality/padded.c", "NFR_SVC_PADDED_SPARE")
        return min(card["send_sge"] - spare, PADDED)
    return largest


def scattered(count: int) -> list[memoryview]:
    """Pages of this process, none of which follows another in memory."""
    room = mmap.mmap(-1, 8 * count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_NOHUGEPAGE)
    room[:] = b"." * len(room)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room)) // PAGE
    with opened(Path("/proc/self/pagemap")) as file:
        frames = array("Q", os.pread(file, 8 * 8 * count, 8 * start))
    even = [at for at, frame in enumerate(frames) if not frame & 1]
    assert len(even) >= count
    return [memoryview(room)[at * PAGE :][:PAGE] for at in even[:count]]


def counts(folder: Path) -> dict[str, int]:
    """Counters of the client, and the READs of its mount."""
    numbers = {"cache_hits": 0, "disconnects": 0}
    for row in connections():
        for name in numbers:
            numbers[name] += int(row.get(name, 0))
    reads = mountstats.read(folder).operations["READ"].operations
    return {**counters(), **numbers, "reads": reads}


@contextmanager
def direct(personality: str, most: int) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """A mount whose READs go the way of a personality, and a function that reads pages directly."""
    data, room = made(EXPORT / "limits", 7), scattered(most)
    with mounted_export("vers=3,rsize=1048576") as folder:

        def read(size: int) -> None:
            for page in room[:size]:
                page[:] = bytes(PAGE)
            assert os.preadv(file, room[:size], 0) == size * PAGE
            assert b"".join(room[:size]) == data[: size * PAGE], f"{size} pages differ"

        def goes() -> bool:
            before = counts(folder)[WAYS[personality]]
            read(FEW)
            return counts(folder)[WAYS[personality]] > before

        with opened(folder / "limits", os.O_RDONLY | os.O_DIRECT) as file:
            until(f"a READ that is {personality}", goes)
            assert {row["personality"] for row in connections()} == {personality}
            yield folder, read


@on("client", timeout=900)
def reads_of(personality: str, sizes: list[int]) -> list[dict[str, int]]:
    """Read numbers of pages directly; returns the client's counters after each number."""
    results = []
    largest = parameters(padded_max=16 * PAGE)
    with largest, direct(personality, max(sizes)) as (folder, read):
        for size in sizes:
            # the first READ of a size registers its memory
            read(size)
            before = counts(folder)
            for _ in range(READS):
                read(size)
            now = counts(folder)
            results.append({name: now[name] - before[name] for name in now})
    return results


@pytest.mark.parametrize("personality", WAYS)
@pytest.mark.parametrize("profile", DRIVERS)
def test_a_personality_reaches_its_limit(lab: Lab, profile: str, personality: str) -> None:
    """READs within the limit go the way of the personality, and larger ones by Write chunks."""
    largest, way = largest_read(lab), WAYS[personality]
    limit = limit_of(profile, personality, largest)
    sizes = [limit] if limit == largest else [limit, limit + 1]
    with used(lab, profile, personality):
        within, *beyond = reads_of(lab, personality, sizes)
    fallback = FALLBACKS.get(personality, "")
    assert (within["reads"], within["disconnects"]) == (READS, 0)
    assert (within[way], within.get(fallback, 0)) == (READS, 0)
    if personality == "read-read":
        assert within["fetch_reads"] == READS * -(-limit // PROFILES[profile]["read_sge"])
    for larger in beyond:
        assert (larger["reads"], larger["disconnects"]) == (READS, 0)
        assert (larger[way], larger["write_chunks"]) == (0, READS)
        assert larger.get(fallback, READS) == READS


# --- faults ---


@pytest.mark.parametrize("personality", WAYS)
@pytest.mark.parametrize("profile", FAULTY)
def test_readers_and_writers_are_killed(lab: Lab, profile: str, personality: str) -> None:
    with used(lab, profile, personality):
        killed(lab, "vers=3", silent=False, seed="tests", rounds=1)


each_failure = on("client", timeout=1800)(modelled.each_failure)


@pytest.mark.parametrize("personality", ["read-write", "pre-posted", "optimistic"])
@pytest.mark.parametrize("profile", FAULTY)
def test_a_mount_survives_failures(lab: Lab, profile: str, personality: str) -> None:
    with used(lab, profile, personality):
        each_failure(lab)


def stop(seconds: float) -> None:
    """The firmware of the first card stops, for so long that Calls of the load are late."""
    modelled.order("card0", "dead", 1)
    time.sleep(seconds)


@contextmanager
def works_again() -> Iterator[None]:
    """The firmware of the first card works after the block, however that ends."""
    try:
        yield
    finally:
        # the unmount waits for the card
        if (modelled.SYSFS / "card0").exists():
            modelled.order("card0", "dead", 0)


def replace(waits: bool) -> None:
    """The first card is removed, and another one added.

    ``waits``: its driver accepts requests that it never completes, for which the removal waits:
    rdma_cm for its last message, and our module for regions if the driver destroys none.
    """
    card = modelled.SYSFS / "card0"
    modelled.order("card0", "gone", 1)
    if waits:
        time.sleep(2)
        assert card.exists()
        modelled.order("card0", "dead", 0)
    until("removal", lambda: not card.exists(), modelled.LIMIT)
    modelled.add("card0")


@on("client", timeout=1800)
def stopped(waits: bool) -> None:
    """The firmware of the client's card stops under load; it works again, or the card is replaced.

    Calls time out after 2 s.
    """
    with mounted("vers=3,timeo=20,retrans=1"), works_again():
        with modelled.load():
            stop(8)
            modelled.order("card0", "dead", 0)
        with modelled.load():
            stop(8)
            replace(waits)
        with modelled.load():
            stop(8)
            modelled.order("card0", "dead", 2)
            time.sleep(2)
            replace(waits)


@pytest.mark.parametrize("personality", ["read-write", "pre-posted", "optimistic"])
@pytest.mark.parametrize("profile", STOPPED)
def test_a_mount_survives_stopped_firmware(lab: Lab, profile: str, personality: str) -> None:
    with used(lab, profile, personality):
        stopped(lab, PROFILES[profile]["failed_post"] == 0)


@on("client", timeout=1800)
def given_up(card: str, personality: str) -> tuple[int, int]:
    """A card is removed that destroys no region and fences no queue pair; another one is added.

    Returns the regions and pages that the log names.
    """
    call("dmesg", "--clear")
    with direct(personality, FEW) as (_, read):
        for name in ("stuck", "keep_regions"):
            modelled.order(card, name, ALWAYS)
        modelled.order(card, "gone", 1)
        until("removal", lambda: not (modelled.SYSFS / card).exists(), modelled.LIMIT)
        modelled.add(card)
        read(FEW)
    found = [match.groups() for match in map(GIVEN_UP.search, call("dmesg").splitlines()) if match]
    assert {name for name, _, _ in found} == {card}
    return sum(int(regions) for _, regions, _ in found), sum(int(pages) for _, _, pages in found)


# the client's registrations, which stay valid with cached; the server's grants
@pytest.mark.parametrize(
    ("personality", "card", "least"),
    [("read-write", "card0", 0), ("cached", "card0", FEW), ("optimistic", "card1", FEW)],
)
def test_a_removal_does_not_wait_for_regions_that_the_card_keeps(
    lab: Lab, personality: str, card: str, least: int
) -> None:
    """Commands fail as those of irdma after a time-out, until a reset that follows the removal."""
    with used(lab, "irdma-roce", personality):
        regions, pages = given_up(lab, card, personality)
    assert regions > 0
    assert pages >= least
