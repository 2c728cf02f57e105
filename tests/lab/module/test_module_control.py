# SPDX-License-Identifier: Apache-2.0
"""Mistakes that a module makes on purpose are seen; so silence of the others means something."""

from pathlib import Path

import pytest

from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules, leaks

pytestmark = pytest.mark.checking

SOURCE = Path(__file__).parent / "wrong"
THERE = "/run/wrong.ko"
# what a console has to say; KASAN tells of one mistake, lockdep of none after another's
SAID = {
    "dma_mapping": "check_unmap",
    "sleep_in_atomic": "BUG: sleeping function called from invalid context",
    "lock_order": "WARNING: possible circular locking dependency detected",
    "out_of_bounds": "BUG: KASAN: slab-out-of-bounds in out_of_bounds",
    "use_after_free": "BUG: KASAN: slab-use-after-free in use_after_free",
    "unordered": r"BUG: KCSAN: data-race in count \[nfsrdma\] / count \[nfsrdma\]",
}
FOUND_BY = {
    "debug": {*SAID} - {"unordered"},
    "kcsan": {"sleep_in_atomic", "lock_order", "unordered"},
}


@pytest.fixture
def spoilt(pair: Lab) -> Lab:
    """A pair whose client has the module; what it does to the machine stays in it."""
    kernel_modules.place(pair, SOURCE, THERE, "client")
    return pair


def make(lab: Lab, mistake: str) -> None:
    # a report may come a little later
    lab.run("client", "sh", "-c", f"insmod {THERE} what={mistake}; sleep 2")


def test_a_module_that_does_nothing_wrong_is_not_reported(spoilt: Lab) -> None:
    make(spoilt, "nothing")
    spoilt.run("client", "rmmod", "nfsrdma")


def test_a_leak_is_found(spoilt: Lab) -> None:
    if spoilt.config.kernel != "debug":
        pytest.skip(f"{spoilt.config.kernel} has no kmemleak; missed: leaks")
    leaks.check(spoilt)
    make(spoilt, "leak")
    with pytest.raises(AssertionError, match=r"leak\+\w+/\w+ \[nfsrdma\]"):
        leaks.check(spoilt)
    spoilt.restart()


@pytest.mark.parametrize("mistake", SAID)
def test_a_mistake_is_reported(spoilt: Lab, mistake: str) -> None:
    if mistake not in FOUND_BY[spoilt.config.kernel]:
        pytest.skip(f"{spoilt.config.kernel} does not look for it; missed: {mistake}")
    with pytest.raises(KernelReportError, match=SAID[mistake]):
        make(spoilt, mistake)
    spoilt.restart()
