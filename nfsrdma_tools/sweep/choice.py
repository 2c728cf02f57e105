# SPDX-License-Identifier: Apache-2.0
"""Choose by the trials of a plan: the cell to measure next, and the cell to recommend.

Both depend only on a plan and its stored trials, so a sweep can resume.

Racing (successive elimination) spends runs on the cells that may win.  First each cell runs once,
in random order: the chart needs them all.  Then, within each transport and over all of them, only
cells run again that may still beat the best one by more than ``TARGET``, the one with the fewest
runs first.  Each step recomputes which cells are eliminated, by the noise of their own transport,
or by their own where that is larger, so a cell returns when the noise turns out larger.  The race
ends when no other cell may be more than ``TARGET`` better than the best one, or when those that may
have the plan's number of runs.  It makes at least three repeats of each transport, because one
transport's noise says nothing about another's.  A cell within ``CLOSE`` of the best one does not
leave the race by a single run: one run shows no noise of its own.  Of larger and larger loads
(LOADS), it tries the next one only where the one before moved something.  With trials by time, a
cell that may win and whose mean is unreliable runs more often than the plan says.
docs/dev/how-it-was-measured.md has the simulated regret.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.significance import (
    KNOWN_AT,
    UNSTEADY,
    Noises,
    Summaries,
    Summary,
    by_transport,
    existing,
    gap,
    pooled,
    summaries,
)
from nfsrdma_tools.sweep.store import FAILED, NOT_OFFERED, OK, Trial

__all__ = [
    "CLOSE",
    "GIVE_UP",
    "LOADS",
    "MORE",
    "MOVES",
    "TARGET",
    "Choice",
    "Comparison",
    "Difference",
    "Loss",
    "Race",
    "Today",
    "against_today",
    "choose",
    "compare",
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
CLOSE = 0.10
"""Relative gap to the best cell within which a cell is slower by two runs or more, not by one."""
GIVE_UP = 2
"""Failures after which a cell is not tried again."""


class Race:
    """The state of a plan's sweep: what its trials say, and the cell to measure next.

    Adding a trial costs the same for the first one and the thousandth.
    """

    def __init__(self, plan: Plan, trials: Iterable[Trial] = ()) -> None:
        self.plan = plan
        self.trials = 0
        self._cells = plan.cells()
        self._existing = plan.existing_cells()
        self._existing_failed = False
        self._summaries = Summaries()
        self._attempts: Counter[Cell] = Counter()
        self._seen: Counter[tuple[Cell, str]] = Counter()
        self._total_ns = 0
        self._last = ""
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Add the next trial."""
        self.trials += 1
        self._summaries.add(trial)
        self._attempts[trial.cell] += 1
        self._seen[trial.cell, trial.status] += 1
        self._total_ns += trial.total_ns
        self._existing_failed |= trial.cell.as_mounted and not trial.ok
        self._last = trial.cell.transport

    def next(self) -> tuple[Cell, int] | None:
        """The next cell and the number of its run (from 1); None when everything is measured.

        It is None as well after the plan's minutes.  The existing mount comes first, with each
        load; then it has as many runs as the best cell, with that cell's load.
        """
        if self.is_out_of_time:
            return None
        if today := self._of_existing():
            return today[0], self._attempts[today[0]] + 1
        waiting = self._waiting()
        if not waiting:
            return None
        cell = min(waiting, key=self._rank_of_race if self._repeats(waiting) else self._rank)
        return cell, self._attempts[cell] + 1

    def expected(self) -> int:
        """Estimate of the total number of trials, from what is known now."""
        if self.is_out_of_time:
            return self.trials
        plan, waiting = self.plan, self._waiting()
        measured = self.trials + self._of_existing_left(bool(waiting))
        if plan.mode == "racing":
            # cells that a smaller load has not ruled out yet
            unmeasured = self._unmeasured(self._unfinished())
            undecided = [cell for cell, state in self._states(unmeasured) if state is None]
            begins = plan.runs > 1 and self._unmeasured(waiting)
            repeats = KNOWN_AT * len(plan.transports) if begins else 0
            return measured + len(waiting) + len(undecided) + repeats
        return measured + sum(plan.runs - self._seen[cell, OK] for cell in waiting)

    @property
    def is_out_of_time(self) -> bool:
        """Whether the trials have taken the plan's minutes."""
        return 0 < self.plan.minutes * 60e9 <= self._total_ns

    @property
    def not_tried(self) -> list[Cell]:
        """The cells without a trial: the race is over, or the time, and they are not needed."""
        return [cell for cell in self._cells if cell not in self._attempts]

    def _of_existing(self) -> list[Cell]:
        """The cells of the existing mount that need a run before the grid goes on."""
        if self._existing_failed:
            return []
        if new := [cell for cell in self._existing if cell not in self._attempts]:
            return new
        known = self._summaries.of.values()
        best = max(known, key=lambda s: s.throughput, default=None)
        if not best:
            return []
        runs = min(best.runs, self.plan.runs)
        same = [cell for cell in self._existing if _load(cell) == _load(best.cell)]
        return [cell for cell in same if self._attempts[cell] < runs]

    def _of_existing_left(self, waiting: bool) -> int:
        """Estimate of its trials that are left; ``waiting``: the grid is not measured yet."""
        due = self._of_existing()
        if self._existing_failed or not self._existing or not (waiting or due):
            return 0
        new = sum(cell not in self._attempts for cell in self._existing)
        most = max(self._attempts[cell] for cell in self._existing)
        return max(new + self.plan.runs - max(most, 1), len(due))

    def _repeats(self, waiting: Sequence[Cell]) -> bool:
        return self.plan.mode == "racing" and not self._unmeasured(waiting)

    def _rank_of_race(self, cell: Cell) -> tuple[bool, int, int, float]:
        """The fewest runs first, then the fastest: the best cell's interval matters most."""
        seen, plan = self._summaries.of[cell], self.plan
        swaps = _swaps(plan, self._last, cell.transport)
        return swaps, seen.runs, _group(plan, cell), -seen.throughput

    def _rank(self, cell: Cell) -> tuple[int, int, float]:
        attempts = self._attempts[cell]
        return attempts, _group(self.plan, cell), _random_order(self.plan.seed, attempts, cell)

    def _waiting(self) -> list[Cell]:
        """The cells that need another run."""
        unfinished = self._unfinished()
        if self.plan.mode == "exhaustive":
            return unfinished
        first = [cell for cell, state in self._states(self._unmeasured(unfinished)) if state]
        if first:
            return first
        contenders = _contenders(self.plan, list(self._summaries.of.values()))
        return [cell for cell in unfinished if cell in contenders]

    def _unfinished(self) -> list[Cell]:
        """The cells that may have another run."""
        seen, plan = self._seen, self.plan
        least = dict.fromkeys(self._cells, plan.runs)
        if plan.seconds and plan.mode == "racing":
            known = self._summaries.of.values()
            least |= {s.cell: MORE * plan.runs for s in known if s.error > UNSTEADY}
        return [
            cell
            for cell in self._cells
            if seen[cell, OK] < least[cell]
            and seen[cell, FAILED] < GIVE_UP
            and not seen[cell, NOT_OFFERED]
        ]

    def _states(self, cells: Sequence[Cell]) -> list[tuple[Cell, bool | None]]:
        """Whether each of these unmeasured cells is worth a first run; None: not known yet."""
        plan, known = self.plan, self._summaries.of
        values = {"jobs": plan.jobs, "depth": plan.depths, "nconnect": plan.nconnects}
        waiting = set(cells)

        @functools.cache
        def state(cell: Cell) -> bool | None:
            moves = [moved(cell, name) for name in LOADS]
            return False if False in moves else None if None in moves else True

        def moved(cell: Cell, name: str) -> bool | None:
            smaller = sorted(value for value in values[name] if value < getattr(cell, name))[-2:]
            if len(smaller) < 2:
                return True
            pair = [_with_load(cell, name, value) for value in smaller]
            if all(other in known for other in pair):
                return known[pair[1]].throughput > (1 + MOVES) * known[pair[0]].throughput
            missing = [other for other in pair if other not in known]
            dead = any(other not in waiting or state(other) is False for other in missing)
            return False if dead else None

        return [(cell, state(cell)) for cell in cells]

    def _unmeasured(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if cell not in self._summaries.of]


def _contenders(plan: Plan, cells: list[Summary]) -> set[Cell]:
    noise = by_transport(cells)
    scopes = [[s for s in cells if s.cell.transport == name] for name in plan.transports]
    racing = [_in_the_race(scope, noise) for scope in (cells, *scopes) if scope]
    measuring_noise = [_fastest(scope)[:KNOWN_AT] for scope in scopes if not pooled(scope).known]
    # a winner whose own figure is unreliable
    leaders = [_fastest(scope)[:1] for scope in scopes if scope and plan.seconds]
    unsteady = [[s for s in leader if s.error > UNSTEADY] for leader in leaders]
    doubtful = [_doubtful(scope, noise) for scope in (cells, *scopes) if scope]
    return {s.cell for group in (*racing, *measuring_noise, *unsteady, *doubtful) for s in group}


def _doubtful(scope: list[Summary], noise: Noises) -> list[Summary]:
    """Cells that are close to the best one, not tied with it, and whose figure may be bad luck.

    One run shows no spread.  Two runs show little of it, so a cell whose runs differ more than its
    transport's has another one.
    """
    best, others = _fastest(scope)[0], len(scope) - 1
    near = [s for s in scope if gap(s, best) < CLOSE]
    doubtful = [s for s in near if s.runs == 1 or s.spread > noise.of[s.cell.transport].relative]
    return [s for s in doubtful if gap(s, best) > noise.bound(s, best, max(others, 1))]


def _in_the_race(scope: list[Summary], noise: Noises) -> list[Summary]:
    best = _fastest(scope)[0]
    left = [s for s in scope if gap(s, best) < noise.bound_in_race(s, best) - TARGET or s is best]
    return [] if left == [best] and best.runs > 1 else left


def _with_load(cell: Cell, name: str, value: int) -> Cell:
    loads = {each: getattr(cell, each) for each in LOADS} | {name: value}
    return replace(cell, jobs=loads["jobs"], depth=loads["depth"], nconnect=loads["nconnect"])


def _load(cell: Cell) -> tuple[int, int, bool]:
    """The part of a cell that the application chooses, not the mount."""
    return cell.jobs, cell.depth, cell.direct


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


@dataclass(frozen=True)
class Today:
    """The existing mount, and the best cell of the grid with the same load.

    ``tied``: they do not differ significantly.
    """

    existing: Summary
    best: Summary
    tied: bool

    @property
    def gain(self) -> float:
        """What the best cell gains over the existing mount, relative; below 0 if it loses."""
        return self.best.throughput / self.existing.throughput - 1


def against_today(trials: Sequence[Trial]) -> Today | None:
    """The best cell against the mount that the host had before; None if that has no figures.

    The load is the application's, so both have the same: that of the best cell, or of the best one
    with a load that the existing mount has been measured with.
    """
    before = {_load(s.cell): s for s in existing(trials)}
    grid = summaries(trials)
    ranked = sorted(grid, key=lambda s: (-s.throughput, s.cpu_per_byte, s.cell.key))
    best = next((s for s in ranked if _load(s.cell) in before), None)
    if not best:
        return None
    today = before[_load(best.cell)]
    noise = by_transport([*grid, *before.values()])
    rivals = sum(_load(s.cell) == _load(best.cell) for s in grid)
    slow, fast = sorted((today, best), key=lambda s: s.throughput)
    return Today(today, best, gap(slow, fast) <= noise.bound(slow, fast, rivals))


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
