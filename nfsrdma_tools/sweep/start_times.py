# SPDX-License-Identifier: Apache-2.0
"""Start times of runs on several hosts that measure at once; the hosts share only the time of day.

Run n of each host starts n intervals after the same moment.  A host that is late starts its next
run immediately, until it is back in step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nfsrdma_tools.errors import UsageError

__all__ = ["IMMEDIATELY", "Rhythm"]

_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Rhythm:
    """First start in seconds since 1970, ``seconds`` from run to run; 0 seconds: no waiting."""

    start: float = 0.0
    seconds: float = 0.0

    @classmethod
    def checked(cls, start: float, seconds: float) -> Rhythm:
        """The rhythm of these values; UsageError when they are out of range or not numbers."""
        if not 0 < seconds <= _HOUR:
            raise UsageError(f"the interval is {seconds:g} s", "the range is above 0, up to 3600 s")
        # the comparison is also false for NaN
        if not 0 <= start <= time.time() + _DAY:
            what = f"the start time {start:g} is before 1970 or more than a day ahead"
            raise UsageError(what, "give Unix time: date +%s prints it")
        return cls(start, seconds)

    def begins(self, number: int) -> float:
        """Start of run ``number`` (the first is 0), in seconds since 1970."""
        return self.start + number * self.seconds

    def wait(self, number: int) -> None:
        """Wait for the start of run ``number``; return immediately when it has passed."""
        while self.seconds and (left := self.begins(number) - time.time()) > 0:
            # short steps: the time of day may be set while this waits
            time.sleep(min(left, 1.0))


IMMEDIATELY = Rhythm()
"""No waiting."""
