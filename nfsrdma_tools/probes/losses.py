# SPDX-License-Identifier: Apache-2.0
"""What accounts could not count, because its slot was taken by another (bpf/account.h)."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Losses", "lost"]


class Losses(NamedTuple):
    """How many ``rpcs`` and memory ``regions`` were not counted to their end (enum loss)."""

    rpcs: int
    regions: int

    def __sub__(self, other: Losses) -> Losses:
        """What was added since."""
        return Losses(self.rpcs - other.rpcs, self.regions - other.regions)


def lost(session: Any) -> Losses:
    """What was lost since the session began, by all of its accounts."""
    return Losses(*(sum(cpus) for _, cpus in session.table("losses").items()))
