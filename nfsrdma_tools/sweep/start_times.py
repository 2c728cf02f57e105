# SPDX-License-Identifier: Apache-2.0
"""When runs begin, if several hosts are to read at once: they agree on nothing but the time of day.

Run n of each host begins n times so many seconds after the same moment.  A host that is late
begins at once, and is in step again as soon as it has caught up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nfsrdma_tools.errors import UserError

__all__ = ["AT_ONCE", "Rhythm"]

_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Rhythm:
    """``start`` in seconds since 1970, ``seconds`` from one run to the next; 0 is none."""

    start: float = 0.0
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Rhythm:
        """From START/SECONDS; UserError for what cannot be waited for."""
        what = f"{text!r} is no time for runs to begin"
        try:
            start, seconds = map(float, text.split("/"))
        except ValueError as error:
            how = "write START/SECONDS, START in seconds since 1970: 1790000000/30"
            raise UserError(what, how) from error
        if not 0 < seconds <= _HOUR:
            raise UserError(f"{what}: {seconds:g} seconds", "give more than 0, at most 3600")
        # also when it is not a number
        if not 0 <= start <= time.time() + _DAY:
            when = "before 1970, or in more than a day"
            raise UserError(f"{what}: it begins {when}", "give seconds since 1970")
        return cls(start, seconds)

    def begins(self, number: int) -> float:
        """When run ``number``, from 0 on, is to begin, in seconds since 1970."""
        return self.start + number * self.seconds

    def wait(self, number: int) -> None:
        """Until then; not at all when that is over, or there is no rhythm."""
        while self.seconds and (left := self.begins(number) - time.time()) > 0:
            # by short steps, since the time of day may be set meanwhile
            time.sleep(min(left, 1.0))


AT_ONCE = Rhythm()
"""No waiting."""
