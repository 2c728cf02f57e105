# SPDX-License-Identifier: Apache-2.0
"""Lend a lab that many tests share: it runs for a while, and a broken one is brought up anew."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab

__all__ = ["FAILED", "lent", "running"]

# of a test's item: whether a phase of the test failed; tests/lab/conftest.py sets it
FAILED = pytest.StashKey[bool]()


@contextlib.contextmanager
def running(lab: Lab) -> Iterator[None]:
    """Let a lab run for as long as the block lasts: two idle machines cost a third of a core."""
    lab.resume()
    try:
        yield
    finally:
        lab.pause()


def lent(lab: Lab, restart: Callable[[], None], request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab for a test; one that the test broke is brought up anew for the next."""
    yield lab
    if request.node.stash.get(FAILED, False):
        # what it left is not worth a second complaint
        restart()
        return
    try:
        lab.check()
    except BaseException:
        restart()
        raise
