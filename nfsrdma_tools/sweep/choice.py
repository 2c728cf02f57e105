# SPDX-License-Identifier: Apache-2.0
"""What a sweep recommends: the winner, who is tied with it, and what throughput costs in CPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from nfsrdma_tools.sweep.record import Trial
from nfsrdma_tools.sweep.spread import Noise, Summary, gap, pooled, summaries

__all__ = ["Choice", "choose", "unstable"]


@dataclass(frozen=True)
class Choice:
    """The recommendation for one transport, or over all (``transport`` is empty).

    ``tied`` cannot be told apart from the winner by their runs (one-sided 95 % t-bound on the
    pooled spread), fastest first.  ``front`` is the Pareto front: no other cell moves a byte for
    less CPU without being slower; fastest first, the winner leads it.  ``noise`` is the pooled
    relative spread of a run.
    """

    transport: str
    winner: Summary
    tied: tuple[Summary, ...]
    front: tuple[Summary, ...]
    noise: Noise


def choose(trials: Iterable[Trial], transport: str = "") -> Choice | None:
    """The choice among the good trials, of one transport or of all; None when there are none."""
    everything = summaries(trials)
    cells = [s for s in everything if transport in ("", s.cell.transport)]
    if not cells:
        return None
    ranked = sorted(cells, key=lambda s: (-s.throughput, s.cpu_per_byte, s.cell.key))
    noise = pooled(everything)
    winner, *others = ranked
    tied = tuple(s for s in others if gap(s, winner) <= noise.bound(s, winner))
    return Choice(transport, winner, tied, _front(ranked), noise)


def unstable(trials: Iterable[Trial]) -> tuple[Summary, ...]:
    """Cells whose runs differ more than is usual (the median) for their transport."""
    repeated = [s for s in summaries(trials) if s.runs > 1]
    usual = {
        name: statistics.median(s.spread for s in repeated if s.cell.transport == name)
        for name in {s.cell.transport for s in repeated}
    }
    return tuple(s for s in repeated if s.spread > usual[s.cell.transport])


def _front(ranked: list[Summary]) -> tuple[Summary, ...]:
    front: list[Summary] = []
    for cell in ranked:
        if not front or cell.cpu_per_byte < front[-1].cpu_per_byte:
            front.append(cell)
    return tuple(front)
