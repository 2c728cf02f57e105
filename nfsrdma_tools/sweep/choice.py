# SPDX-License-Identifier: Apache-2.0
"""The recommendation of a sweep: the winner, cells tied with it, and CPU time per byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nfsrdma_tools.sweep.significance import UNSTEADY, Noises, Summary, by_transport, gap, summaries
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["Choice", "choose", "unstable"]


@dataclass(frozen=True)
class Choice:
    """The recommendation for one transport, or over all transports (``transport`` is empty).

    ``tied`` are the cells without a significant difference to the winner, fastest first: with 95 %
    confidence the fastest cell is the winner or one of them (significance.py).  ``front`` is the
    Pareto front: no other cell needs less CPU time per byte without being slower.  It begins with
    the winner, fastest first.  ``noise`` is the relative spread of a run, by transport.
    """

    transport: str
    winner: Summary
    tied: tuple[Summary, ...]
    front: tuple[Summary, ...]
    noise: Noises


def choose(trials: Iterable[Trial], transport: str = "") -> Choice | None:
    """The choice among the successful trials of one transport or of all; None without any."""
    everything = summaries(trials)
    cells = [s for s in everything if transport in ("", s.cell.transport)]
    if not cells:
        return None
    ranked = sorted(cells, key=lambda s: (-s.throughput, s.cpu_per_byte, s.cell.key))
    noise = by_transport(everything)
    winner, *others = ranked
    tied = tuple(s for s in others if gap(s, winner) <= noise.bound(s, winner, len(others)))
    return Choice(transport, winner, tied, _front(ranked), noise)


def unstable(trials: Iterable[Trial]) -> tuple[Summary, ...]:
    """Cells whose mean is unreliable: its relative standard error is above UNSTEADY."""
    return tuple(s for s in summaries(trials) if s.error > UNSTEADY)


def _front(ranked: list[Summary]) -> tuple[Summary, ...]:
    front: list[Summary] = []
    for cell in ranked:
        if not front or cell.cpu_per_byte < front[-1].cpu_per_byte:
            front.append(cell)
    return tuple(front)
