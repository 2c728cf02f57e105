# SPDX-License-Identifier: Apache-2.0
"""Lost counts of probe sets: a slot was overwritten or a map was full (bpf/account.h)."""

from __future__ import annotations

from operator import sub
from typing import Any, NamedTuple

__all__ = ["Losses", "lost"]


class Losses(NamedTuple):
    """Events that were not counted, or not to their end (enum loss).

    ``rpcs``, memory ``regions``, Calls whose ``credits`` are unknown, read-ahead ``windows``.
    """

    rpcs: int = 0
    regions: int = 0
    credits: int = 0
    windows: int = 0

    def __sub__(self, other: tuple[int, ...]) -> Losses:
        """The increase since ``other``."""
        return Losses(*map(sub, self, other))

    def __str__(self) -> str:
        """As text, without zeros."""
        names = ("RPCs", "regions", "Calls' credits", "read-ahead windows")
        return ", ".join(f"{n} {name}" for n, name in zip(self, names, strict=True) if n)


def lost(session: Any) -> Losses:
    """The lost counts of all probe sets since the session began."""
    return Losses(*(sum(cpus) for _, cpus in session.table("losses").items()))
