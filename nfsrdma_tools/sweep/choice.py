# SPDX-License-Identifier: Apache-2.0
"""Choose by the trials of a plan: the cell to measure next, and the cell to recommend.

Both are pure functions of a plan and its stored trials, so a sweep can resume.

Racing (successive elimination) spends runs on the cells that may win.  First each cell runs once,
in random order: the chart needs them all.  Then, within each transport and over all of them, only
cells run again that may still beat the best one by more than ``TARGET``, the one with the fewest
runs first.  Each step recomputes which cells are eliminated, by the noise of their own
transport, so a cell returns when the noise turns out larger.  The race ends when no other cell
may be more than ``TARGET`` better than the best one, or when those that may have the plan's number
of runs.  It makes at least three repeats of each transport, because one transport's noise says
nothing about another's.  Of larger and larger loads (LOADS), it tries the next one only where the
one before moved something.  With trials by time, a cell that may win and whose mean is unreliable
runs more often than the plan says.  docs/dev/how-it-was-measured.md has the simulated regret.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.significance import (
    KNOWN_AT,
    UNSTEADY,
    Noises,
    Summary,
    by_transport,
    gap,
    pooled,
    summaries,
)
from nfsrdma_tools.sweep.store import FAILED, NOT_OFFERED, OK, Trial

__all__ = [
    "GIVE_UP",
    "LOADS",
    "MORE",
    "MOVES",
    "TARGET",
    "Choice",
    "Comparison",
    "Difference",
    "Loss",
    "choose",
    "compare",
    "expected",
    "is_out_of_time",
    "next_cell",
    "not_tried",
    "unstable",
]

LOADS = ("jobs", "depth", "nconnect")
"""Axes whose larger values load a mount more.  A race tries the third value of such an axis only
where the second one moved more than the first, and so on."""
MOVES = 0.05
"""Relative gain of throughput below which a larger load moved nothing."""
MORE = 3
"""Factor of the plan's runs that a cell with an unreliable mean gets, if trials are by time."""
TARGET = 0.01
"""Relative gain of throughput below which another run is not worthwhile."""
GIVE_UP = 2
"""Failures after which a cell is not tried again."""


def next_cell(plan: Plan, trials: Sequence[Trial]) -> tuple[Cell, int] | None:
    """The next cell and the number of its run (from 1); None when everything is measured.

    It is None as well after the plan's minutes.
    """
    attempts = Counter(trial.cell for trial in trials)
    waiting = _waiting(plan, trials)
    if not waiting or is_out_of_time(plan, trials):
        return None
    if plan.mode == "racing" and not _unmeasured(waiting, trials):
        # the fewest runs first, then the fastest: the interval of the best cell matters most
        seen = {s.cell: s for s in summaries(trials)}
        last = trials[-1].cell.transport
        cell = min(
            waiting,
            key=lambda c: (
                _swaps(plan, last, c.transport),
                seen[c].runs,
                _group(plan, c),
                -seen[c].throughput,
                c.key,
            ),
        )
    else:
        cell = min(
            waiting,
            key=lambda c: (attempts[c], _group(plan, c), _random_order(plan.seed, attempts[c], c)),
        )
    return cell, attempts[cell] + 1


def expected(plan: Plan, trials: Sequence[Trial]) -> int:
    """Estimate of the total number of trials, from what is known now."""
    if is_out_of_time(plan, trials):
        return len(trials)
    waiting = _waiting(plan, trials)
    if plan.mode == "racing":
        # cells that a smaller load has not ruled out yet
        unmeasured = _unmeasured(_unfinished(plan, trials), trials)
        undecided = [cell for cell, state in _states(plan, trials, unmeasured) if state is None]
        begins = plan.runs > 1 and _unmeasured(waiting, trials)
        repeats = KNOWN_AT * len(plan.transports) if begins else 0
        return len(trials) + len(waiting) + len(undecided) + repeats
    good = Counter(trial.cell for trial in trials if trial.ok)
    return len(trials) + sum(plan.runs - good[cell] for cell in waiting)


def is_out_of_time(plan: Plan, trials: Sequence[Trial]) -> bool:
    """Whether these trials have taken the plan's minutes."""
    return 0 < plan.minutes * 60e9 <= sum(trial.total_ns for trial in trials)


def not_tried(plan: Plan, trials: Sequence[Trial]) -> list[Cell]:
    """The cells without a trial: the race is over, or the time, and they are not needed."""
    tried = {trial.cell for trial in trials}
    return [cell for cell in plan.cells() if cell not in tried]


def _waiting(plan: Plan, trials: Sequence[Trial]) -> list[Cell]:
    """The cells that need another run."""
    unfinished = _unfinished(plan, trials)
    if plan.mode == "exhaustive":
        return unfinished
    unmeasured = _unmeasured(unfinished, trials)
    first = [cell for cell, state in _states(plan, trials, unmeasured) if state]
    if first:
        return first
    contenders = _contenders(plan, summaries(trials))
    return [cell for cell in unfinished if cell in contenders]


def _unfinished(plan: Plan, trials: Sequence[Trial]) -> list[Cell]:
    """The cells that may have another run."""
    seen = Counter((trial.cell, trial.status) for trial in trials)
    least = dict.fromkeys(plan.cells(), plan.runs)
    if plan.seconds and plan.mode == "racing":
        least |= {s.cell: MORE * plan.runs for s in summaries(trials) if s.error > UNSTEADY}
    return [
        cell
        for cell in plan.cells()
        if seen[cell, OK] < least[cell]
        and seen[cell, FAILED] < GIVE_UP
        and not seen[cell, NOT_OFFERED]
    ]


def _states(
    plan: Plan, trials: Sequence[Trial], cells: Sequence[Cell]
) -> list[tuple[Cell, bool | None]]:
    """Whether each of these unmeasured cells is worth a first run; None: that is not known yet."""
    speeds = {s.cell: s.throughput for s in summaries(trials)}
    values = {"jobs": plan.jobs, "depth": plan.depths, "nconnect": plan.nconnects}
    waiting = set(cells)

    @functools.cache
    def state(cell: Cell) -> bool | None:
        found = [moved(cell, name) for name in LOADS]
        return False if False in found else None if None in found else True

    def moved(cell: Cell, name: str) -> bool | None:
        smaller = sorted(value for value in values[name] if value < getattr(cell, name))[-2:]
        if len(smaller) < 2:
            return True
        changes: list[dict[str, Any]] = [{name: value} for value in smaller]
        pair = [replace(cell, **change) for change in changes]
        if all(one in speeds for one in pair):
            return speeds[pair[1]] > (1 + MOVES) * speeds[pair[0]]
        missing = [one for one in pair if one not in speeds]
        dead = any(one not in waiting or state(one) is False for one in missing)
        return False if dead else None

    return [(cell, state(cell)) for cell in cells]


def _unmeasured(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Cell]:
    measured = {trial.cell for trial in trials if trial.ok}
    return [cell for cell in cells if cell not in measured]


def _contenders(plan: Plan, cells: list[Summary]) -> set[Cell]:
    noise = by_transport(cells)
    scopes = [[s for s in cells if s.cell.transport == name] for name in plan.transports]
    racing = [_in_the_race(scope, noise) for scope in (cells, *scopes) if scope]
    measuring_noise = [_fastest(scope)[:KNOWN_AT] for scope in scopes if not pooled(scope).known]
    # a winner whose own figure is unreliable
    leaders = [_fastest(scope)[:1] for scope in scopes if scope and plan.seconds]
    unsteady = [[s for s in leader if s.error > UNSTEADY] for leader in leaders]
    return {s.cell for group in (*racing, *measuring_noise, *unsteady) for s in group}


def _in_the_race(scope: list[Summary], noise: Noises) -> list[Summary]:
    best = _fastest(scope)[0]
    left = [s for s in scope if gap(s, best) < noise.bound(s, best) - TARGET or s is best]
    return [] if left == [best] and best.runs > 1 else left


def _fastest(cells: list[Summary]) -> list[Summary]:
    return sorted(cells, key=lambda s: s.throughput, reverse=True)


def _group(plan: Plan, cell: Cell) -> int:
    return plan.transports.index(cell.transport) if plan.order == "grouped" else 0


def _swaps(plan: Plan, last: str, transport: str) -> bool:
    """Whether a trial of ``transport`` exchanges modules after one of ``last``; random: never."""
    return plan.order == "grouped" and OURS in (last, transport) and last != transport


@functools.cache
def _random_order(seed: int, attempt: int, cell: Cell) -> float:
    # each pass has its own random order, which is the same in every process
    return random.Random(f"{seed} {attempt} {cell.key}").random()  # noqa: S311 - no secret


@dataclass(frozen=True)
class Choice:
    """The recommendation for one transport, or over all transports (``transport`` is empty).

    ``tied`` are the cells without a significant difference to the winner, fastest first: with 95 %
    confidence the fastest cell is the winner or one of them (significance.py).  ``front`` is the
    Pareto front: no other cell needs less CPU time per byte without being slower.  It begins with
    the winner, fastest first.  ``noise`` is the relative spread of a run, by transport.
    ``other_kind`` is the fastest cell of the kind that the winner is not of: buffered reads, or
    O_DIRECT reads beside them; None if the plan has one kind.
    """

    transport: str
    winner: Summary
    tied: tuple[Summary, ...]
    front: tuple[Summary, ...]
    noise: Noises
    other_kind: Summary | None


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
    other_kind = next((s for s in ranked if s.cell.direct != winner.cell.direct), None)
    return Choice(transport, winner, tied, _front(ranked), noise, other_kind)


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
