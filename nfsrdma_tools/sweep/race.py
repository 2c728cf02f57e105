# SPDX-License-Identifier: Apache-2.0
"""Which trial is next: a pure function of a plan and its stored trials, so resuming is free.

Racing (successive elimination) spends runs where the decision is.  First each cell runs once, in
random order: the chart needs them all.  Then, within each transport and over all of them, only
cells run again that may still beat the best one by more than ``TARGET``, the one with the fewest
runs first.  Who is out is worked out anew each time, so a cell comes back when the noise turns
out larger.  The race ends when nobody is left who might be more than ``TARGET`` better, or when
those who are left have the plan's number of runs.  At least three repeats are made, because
without them nobody knows the noise.  docs/how-it-was-measured.md has the simulated regret.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence

from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.record import FAILED, NOT_OFFERED, OK, Trial
from nfsrdma_tools.sweep.spread import KNOWN_AT, Summary, gap, pooled, summaries

__all__ = ["GIVE_UP", "TARGET", "expected", "next_cell"]

TARGET = 0.01
"""Relative throughput that is not worth another run."""
GIVE_UP = 2
"""Failures after which a cell is left alone."""


def next_cell(plan: Plan, trials: Sequence[Trial]) -> tuple[Cell, int] | None:
    """The cell to run next and the number of its run (from 1); None when all is measured."""
    attempts = Counter(trial.cell for trial in trials)
    waiting = _waiting(plan, trials)
    if not waiting:
        return None
    if plan.mode == "racing" and not _unmeasured(waiting, trials):
        # the fewest runs first, and of these the fastest: the best one's interval counts most
        seen = {s.cell: s for s in summaries(trials)}
        cell = min(
            waiting, key=lambda c: (seen[c].runs, _group(plan, c), -seen[c].throughput, c.key)
        )
    else:
        cell = min(
            waiting, key=lambda c: (attempts[c], _group(plan, c), _place(plan.seed, attempts[c], c))
        )
    return cell, attempts[cell] + 1


def expected(plan: Plan, trials: Sequence[Trial]) -> int:
    """How many trials there will be in all, as far as can be told now."""
    waiting = _waiting(plan, trials)
    if plan.mode == "racing":
        repeats = KNOWN_AT if plan.runs > 1 and _unmeasured(waiting, trials) else 0
        return len(trials) + len(waiting) + repeats
    good = Counter(trial.cell for trial in trials if trial.ok)
    return len(trials) + sum(plan.runs - good[cell] for cell in waiting)


def _waiting(plan: Plan, trials: Sequence[Trial]) -> list[Cell]:
    """The cells that want another run."""
    seen = Counter((trial.cell, trial.status) for trial in trials)
    unfinished = [
        cell
        for cell in plan.cells()
        if seen[cell, OK] < plan.runs
        and seen[cell, FAILED] < GIVE_UP
        and not seen[cell, NOT_OFFERED]
    ]
    if plan.mode == "exhaustive":
        return unfinished
    contenders = _contenders(plan, summaries(trials))
    return _unmeasured(unfinished, trials) or [c for c in unfinished if c in contenders]


def _unmeasured(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Cell]:
    measured = {trial.cell for trial in trials if trial.ok}
    return [cell for cell in cells if cell not in measured]


def _contenders(plan: Plan, cells: list[Summary]) -> set[Cell]:
    scopes = [[s for s in cells if s.cell.transport == name] for name in plan.transports]
    return {cell for scope in [cells, *scopes] if scope for cell in _in_the_race(scope, cells)}


def _in_the_race(scope: list[Summary], cells: list[Summary]) -> set[Cell]:
    noise = pooled(cells)
    ranked = sorted(scope, key=lambda s: s.throughput, reverse=True)
    best = ranked[0]
    left = [s for s in ranked if gap(s, best) < noise.bound(s, best) - TARGET or s is best]
    if not noise.known:
        left = max(left, ranked[:KNOWN_AT], key=len)
    if left == [best] and best.runs > 1:
        return set()
    return {s.cell for s in left}


def _group(plan: Plan, cell: Cell) -> int:
    return plan.transports.index(cell.transport) if plan.order == "grouped" else 0


@functools.cache
def _place(seed: int, attempt: int, cell: Cell) -> float:
    # a random order of its own for each pass, the same in every process
    return random.Random(f"{seed} {attempt} {cell.key}").random()  # noqa: S311 - no secret
