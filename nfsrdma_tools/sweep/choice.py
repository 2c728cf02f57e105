# SPDX-License-Identifier: Apache-2.0
"""The recommendation of a sweep, and how far two sweeps of the same cells agree."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.significance import UNSTEADY, Noises, Summary, by_transport, gap, summaries
from nfsrdma_tools.sweep.store import Trial

__all__ = ["Choice", "Comparison", "Difference", "Loss", "choose", "compare", "unstable"]


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


@dataclass(frozen=True)
class Difference:
    """One cell's mean throughput in both sweeps (MB/s), and the second's relative difference."""

    cell: Cell
    first: float
    second: float

    @property
    def relative(self) -> float:
        """Relative difference of the second to the first; negative when the second is slower."""
        return self.second / self.first - 1


@dataclass(frozen=True)
class Loss:
    """The recommendation of the second sweep, with its relative loss by the first's figures."""

    transport: str
    winner: Cell
    recommended: Cell
    loss: float


@dataclass(frozen=True)
class Comparison:
    """The cells that both sweeps have, largest difference first, and the trials of each sweep.

    ``median`` is the median absolute relative difference.  ``losses`` has an entry per transport
    and one over all transports, with an empty name.
    """

    differences: tuple[Difference, ...]
    median: float
    trials: tuple[int, int]
    losses: tuple[Loss, ...]


def compare(first: Iterable[Trial], second: Iterable[Trial]) -> Comparison:
    """Compare two sweeps cell by cell; UserError when they have no cell in common."""
    first, second = list(first), list(second)
    mine = {s.cell: s.throughput for s in summaries(first)}
    both = [
        Difference(s.cell, mine[s.cell], s.throughput) for s in summaries(second) if s.cell in mine
    ]
    if not both:
        raise UserError("the two sweeps have no cell in common", "compare sweeps of one preset")
    both.sort(key=lambda d: -abs(d.relative))
    median = statistics.median(abs(d.relative) for d in both)
    scopes = ["", *sorted({d.cell.transport for d in both})]
    losses = [loss for scope in scopes if (loss := _loss(first, second, mine, scope))]
    return Comparison(tuple(both), median, (len(first), len(second)), tuple(losses))


def _loss(
    first: list[Trial], second: list[Trial], mine: dict[Cell, float], scope: str
) -> Loss | None:
    best, other = choose(first, scope), choose(second, scope)
    if not best or not other or other.winner.cell not in mine:
        return None
    throughput = mine[other.winner.cell]
    return Loss(scope, best.winner.cell, other.winner.cell, 1 - throughput / best.winner.throughput)
