# SPDX-License-Identifier: Apache-2.0
"""What accounts could not count: a slot was taken by another, a map was full (bpf/account.h)."""

from __future__ import annotations

from operator import sub
from typing import Any, NamedTuple

__all__ = ["Losses", "lost"]


class Losses(NamedTuple):
    """What was not counted, or not to its end (enum loss).

    ``rpcs``, memory ``regions``, Calls whose ``credits`` are unknown, ``windows`` read ahead.
    """

    rpcs: int = 0
    regions: int = 0
    credits: int = 0
    windows: int = 0

    def __sub__(self, other: tuple[int, ...]) -> Losses:
        """What was added since."""
        return Losses(*map(sub, self, other))

    def __str__(self) -> str:
        """In words, those that there were."""
        names = ("RPCs", "regions", "Calls' credits", "read-ahead windows")
        return ", ".join(f"{n} {name}" for n, name in zip(self, names, strict=True) if n)


def lost(session: Any) -> Losses:
    """What was lost since the session began, by all of its accounts."""
    return Losses(*(sum(cpus) for _, cpus in session.table("losses").items()))
