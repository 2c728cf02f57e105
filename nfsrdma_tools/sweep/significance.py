# SPDX-License-Identifier: Apache-2.0
"""Statistics of several runs per cell: mean, spread, and when two cells differ significantly.

The relative spread is pooled over the cells of a transport, because few runs per cell give a poor
estimate; a cell whose own runs spread more has its own.  No transport is judged by another's
spread.  Two cells differ when their relative gap exceeds a bound on it.  Until three repeats of
their transports have been made the spread is unknown, and no gap below ``PRIOR`` counts as a
difference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Trial

__all__ = [
    "KNOWN_AT",
    "PRIOR",
    "UNSTEADY",
    "Noise",
    "Noises",
    "Summaries",
    "Summary",
    "by_transport",
    "existing",
    "gap",
    "maximum",
    "pooled",
    "quantile",
    "summaries",
]

PRIOR = 0.20
"""Relative gap that counts as a difference while the noise is unknown."""
KNOWN_AT = 3
"""Repeats (degrees of freedom) from which on the noise is known."""
UNSTEADY = 0.02
"""Relative standard error above which a mean is unreliable."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """One cell over its successful runs.

    ``throughput`` is the mean in MB/s, ``spread`` the standard deviation divided by it (0 for a
    single run), ``cpu_share`` the mean share of all CPUs, ``cpu_per_byte`` busy ns per byte.
    """

    cell: Cell
    runs: int
    throughput: float
    spread: float
    cpu_share: float
    cpu_per_byte: float

    @property
    def error(self) -> float:
        """Relative standard error of the mean, from the cell's own runs."""
        return self.spread / math.sqrt(self.runs)


@dataclass(frozen=True)
class Noise:
    """The relative spread of one run, and the degrees of freedom of that estimate."""

    relative: float
    degrees: int

    @property
    def known(self) -> bool:
        """Whether there are enough repeats to trust it."""
        return self.degrees >= KNOWN_AT


@dataclass(frozen=True)
class Noises:
    """The noise of each transport's runs: RDMA's may be a multiple of TCP's."""

    of: Mapping[str, Noise]

    def bound(self, summary: Summary, best: Summary, rivals: int = 1) -> float:
        """The relative gap below which ``summary`` is not significantly slower than ``best``.

        ``rivals`` cells are compared with the best one.  With CONFIDENCE, the cell that is really
        the fastest is not among those counted as slower: Hsu's multiple comparisons with
        the best (1984), one-sided.  The quantile is that of Dunnett's test for
        uncorrelated comparisons, which is conservative.  A cell with its own noise has the few
        degrees of freedom of its own runs (Welch): its bad luck is the same in all of its
        comparisons, so they count as one.
        """
        if not self._known(summary, best):
            return PRIOR
        parts = self._variances(summary, best)
        degrees = self.of_cell(summary).degrees, self.of_cell(best).degrees
        own = quantile(_degrees(parts, degrees), CONFIDENCE)
        common = maximum(self._common(summary, best, parts), rivals, CONFIDENCE)
        return max(own, common) * _root(parts)

    def bound_in_race(self, summary: Summary, best: Summary) -> float:
        """The relative gap below which ``summary`` alone may be as fast: the transports' degrees.

        A race may be wrong here: the cell returns when the noise turns out larger.
        """
        if not self._known(summary, best):
            return PRIOR
        parts = self._variances(summary, best)
        return quantile(self._common(summary, best, parts), CONFIDENCE) * _root(parts)

    def _variances(self, summary: Summary, best: Summary) -> tuple[float, float]:
        """The relative variances of both means."""
        mine, its = self.of_cell(summary), self.of_cell(best)
        return mine.relative**2 / summary.runs, its.relative**2 / best.runs

    def _known(self, summary: Summary, best: Summary) -> bool:
        return self.of[summary.cell.transport].known and self.of[best.cell.transport].known

    def _common(self, summary: Summary, best: Summary, parts: tuple[float, float]) -> int:
        """Degrees of freedom of the transports' spreads."""
        mine, its = self.of[summary.cell.transport], self.of[best.cell.transport]
        return mine.degrees if mine is its else _degrees(parts, (mine.degrees, its.degrees))

    def of_cell(self, summary: Summary) -> Noise:
        """The noise of this cell: its own where that is larger than the transport's.

        A small spread of two or three runs is mostly luck, and a large one is not.
        """
        common = self.of[summary.cell.transport]
        own = Noise(summary.spread, summary.runs - 1)
        return own if own.relative > common.relative else common


def _root(variances: tuple[float, float]) -> float:
    return math.sqrt(variances[0] + variances[1])


def _degrees(variances: tuple[float, float], degrees: tuple[int, int]) -> int:
    """Degrees of freedom of a difference of two means with unequal variances (Welch)."""
    squares = sum(v**2 / d for v, d in zip(variances, degrees, strict=True))
    # by rounding it may fall below the smaller of the two, which is its least value
    return max(min(degrees), int(sum(variances) ** 2 / squares)) if squares else min(degrees)


class Summaries:
    """A summary per cell of the grid with a successful run, in order of appearance, up to date.

    Adding a trial costs the same for the first one and the thousandth.
    """

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.of: dict[Cell, Summary] = {}
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Add a trial; one that failed, or of the existing mount, changes nothing."""
        if not trial.cell.as_mounted:
            _add(self.of, trial)


def _add(known: dict[Cell, Summary], trial: Trial) -> None:
    if trial.ok:
        per_byte = trial.cpu.busy_ns / max(trial.transfer.bytes, 1)
        first = Summary(trial.cell, 0, 0.0, 0.0, 0.0, 0.0)
        before = known.get(trial.cell, first)
        throughput, share = trial.transfer.throughput, trial.cpu.cpu_share
        known[trial.cell] = _with(before, throughput, share, per_byte)


def _with(before: Summary, throughput: float, cpu_share: float, per_byte: float) -> Summary:
    """The summary with one more run: Welford (1962), which loses no digits."""
    runs = before.runs + 1
    deviation = throughput - before.throughput
    mean = before.throughput + deviation / runs
    squares = (before.spread * before.throughput) ** 2 * max(before.runs - 1, 0)
    squares += deviation * (throughput - mean)
    return Summary(
        cell=before.cell,
        runs=runs,
        throughput=mean,
        spread=math.sqrt(squares / max(runs - 1, 1)) / mean if mean else 0.0,
        cpu_share=before.cpu_share + (cpu_share - before.cpu_share) / runs,
        cpu_per_byte=before.cpu_per_byte + (per_byte - before.cpu_per_byte) / runs,
    )


def summaries(trials: Iterable[Trial]) -> list[Summary]:
    """A summary per cell of the grid with a successful run, in order of appearance."""
    return list(Summaries(trials).of.values())


def existing(trials: Iterable[Trial]) -> list[Summary]:
    """A summary per load of the existing mount with a successful run."""
    known: dict[Cell, Summary] = {}
    for trial in trials:
        if trial.cell.as_mounted:
            _add(known, trial)
    return list(known.values())


def by_transport(cells: Sequence[Summary]) -> Noises:
    """The relative spread per transport.  One transport's spread says nothing about another's."""
    names = {summary.cell.transport for summary in cells}
    return Noises({name: pooled([c for c in cells if c.cell.transport == name]) for name in names})


def pooled(cells: Sequence[Summary]) -> Noise:
    """The common relative spread of these cells."""
    degrees = sum(cell.runs - 1 for cell in cells)
    squares = sum((cell.runs - 1) * cell.spread**2 for cell in cells)
    return Noise(math.sqrt(squares / degrees) if degrees else 0.0, degrees)


def gap(summary: Summary, best: Summary) -> float:
    """Relative gap of ``summary`` to ``best``."""
    return 1 - summary.throughput / best.throughput if best.throughput else 0.0


_STEPS = 400


@functools.cache
def quantile(degrees: int, probability: float) -> float:
    """The value that Student's t with ``degrees`` (1 or more) stays below with ``probability``.

    ``probability`` is 0.5 or more.
    """
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, degrees) < probability else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


@functools.cache
def maximum(degrees: int, of: int, probability: float) -> float:
    """The quantile of the studentized maximum of ``of`` values at ``probability``.

    The values are independent.  They share one estimate of their spread, with ``degrees`` of
    freedom (1 or more).  For one value it is the quantile of Student's t.
    """
    if of == 1:
        return quantile(degrees, probability)
    low, high = 0.0, 1000.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        small = _all_below(middle, degrees, of) < probability
        low, high = (middle, high) if small else (low, middle)
    return high


def _all_below(value: float, degrees: int, of: int) -> float:
    """The integral over the estimate of the spread, 1 on average, by the midpoint rule."""
    width = (1 + 8 / math.sqrt(degrees)) / _STEPS
    constant = math.log(2 * width) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    total = 0.0
    for step in range(_STEPS):
        spread = (step + 0.5) * width
        density = math.exp(constant + (degrees - 1) * math.log(spread) - degrees * spread**2 / 2)
        total += density * (0.5 * math.erfc(-value * spread / math.sqrt(2))) ** of
    return total


def _below(angle: float, degrees: int) -> float:
    """P(T < tan(angle) * sqrt(degrees)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, odd = math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for n in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (n - 1) / n
    both = math.sin(angle) * total
    return (1 + (2 / math.pi * (angle + both) if odd else both)) / 2
