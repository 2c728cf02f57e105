# SPDX-License-Identifier: Apache-2.0
"""The kernel's server gives threads of nfsd their pages back, and moves the right data.

docs/dev/proposals/svcrdma-page-reuse has the patch; `make bench NAME=page-reuse` counts what it
saves.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.card.test_card import deferred, pages

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from testbed.kernel_modules import XPRTRDMA, serve_rebuilt
from testbed.killed_tasks import killed
from testbed.labs import cards_lab
from testbed.module_data import around, carried
from testbed.node.memory import meminfo
from testbed.node.mounts import HERE, drop_caches, mounted
from testbed.remote import on

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("proposals")]

PROPOSAL = Path(__file__).parents[3] / "docs/dev/proposals/svcrdma-page-reuse"
# pages of the data of `pages`
DATA = (1 << 20) // 4096
SIZES = around(4096, 17 * 4096, 1 << 20)
SERIES = 5
WAYS = ("direct", "direct-skewed", "buffered-skewed")


@pytest.fixture(scope="module")
def patched(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with modelled cards, whose rpcrdma has the patch."""
    if pytestconfig.getoption("--kernel") == "6.1":
        pytest.skip("the patch is for 6.12 and 7.2; missed: 6.1")
    with cards_lab(pytestconfig, "page-reuse") as lab:
        # else the first test would pass without the patch, too
        assert pages(lab)["read"] >= DATA
        serve_rebuilt(lab, "server", PROPOSAL, XPRTRDMA)
        yield lab


def test_a_read_allocates_no_pages_for_its_data(patched: Lab) -> None:
    assert pages(patched)["read"] < DATA / 4


@pytest.mark.parametrize("options", ("vers=3", "vers=4.2"))
def test_data_of_all_sizes_is_equal(patched: Lab, options: str) -> None:
    assert carried(patched, options, SIZES, 3, WAYS).bytes > 0


def test_deferred_calls_take_no_pages_of_other_threads(patched: Lab) -> None:
    rounds, readers = 2, 4
    calls, _ = deferred(patched, rounds)
    assert calls >= rounds * readers


def test_readers_and_writers_are_killed(patched: Lab) -> None:
    killed(patched, "vers=3", silent=False, seed="proposals", rounds=3, ours=False)


@on("client", timeout=900)
def lost(size: int, count: int, offset: int) -> tuple[int, list[int]]:
    """READs of a file of ``size`` bytes, and the bytes of memory that are gone after each series.

    Other programs, and what the kernel keeps for itself, only add to some of the series.
    """
    room, gone = mmap.mmap(-1, size), []
    with mounted(f"vers=3,rsize={1 << 20}"):
        (HERE / "lost").write_bytes(bytes(size))
        file = os.open(HERE / "lost", os.O_RDONLY | os.O_DIRECT)
        before, stats = available(), mountstats.read(HERE)
        for _ in range(SERIES):
            results = {os.preadv(file, [room], offset) for _ in range(count)}
            assert results == {max(size - offset, 0)}
            after = available()
            gone.append(before - after)
            before = after
        reads = mountstats.difference(mountstats.read(HERE), stats).operations["READ"].operations
        os.close(file)
    return reads, gone


def available() -> int:
    drop_caches()
    return meminfo("MemAvailable")


@pytest.mark.parametrize("offset", (0, 8192, 65536))
def test_no_page_is_lost(patched: Lab, offset: int) -> None:
    """Reads return all pages, half of them, or none; one lost page of each is twice the limit."""
    count = 2048
    reads, gone = lost(patched, 16 << 10, count, offset)
    print(f"offset {offset}: bytes gone after each series of {count} reads: {gone}")
    assert reads >= SERIES * count
    assert min(gone) < count * 4096 / 2
