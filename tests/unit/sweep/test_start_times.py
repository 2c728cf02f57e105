# SPDX-License-Identifier: Apache-2.0
"""When runs of several hosts begin."""

import math
import time

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep.trial import IMMEDIATELY, Rhythm


class Clock:
    """A time of day that goes on while somebody sleeps."""

    def __init__(self, now: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = now
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_runs_begin_together_and_one_that_is_late_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, rhythm = Clock(1000.0, monkeypatch), Rhythm.checked(1005, 30)
    rhythm.wait(0)
    assert clock.now == 1005
    clock.now = 1040.5
    rhythm.wait(1)
    assert clock.now == 1040.5
    rhythm.wait(2)
    assert clock.now == 1065


def test_who_has_no_rhythm_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0, monkeypatch)
    IMMEDIATELY.wait(5)
    assert clock.now == 0


@pytest.mark.parametrize(
    ("start", "seconds", "why"),
    [
        *((5, 0, "is 0 s"), (5, -1, "is -1 s"), (5, 3601, "is 3601 s"), (5, math.nan, "is nan s")),
        *((start, 5, "a day") for start in (-1, math.nan, math.inf, 1e12)),
    ],
)
def test_what_cannot_be_waited_for_is_refused(start: float, seconds: float, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Rhythm.checked(start, seconds)
