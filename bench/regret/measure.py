# SPDX-License-Identifier: Apache-2.0
"""Simulated sweeps: what they recommend, by racing and by measuring all, held against the truth.

Prints the table of docs/dev/how-it-was-measured.md.
"""

import multiprocessing
import statistics

from unit.sweep.surfaces import EVEN, HALF, SURFACES, Noise, Outcome, Shape, outcome, sweep

UNLIKE = {"tcp": 0.002, "rdma": 0.03}
OUTLIERS = 0.03
FIRST_SEED = 50_000
"""The thresholds of choice.py were chosen with the seeds below."""
CONDITIONS: tuple[tuple[Noise, float, Shape], ...] = (
    *((noise, 0.0, EVEN) for noise in (0.002, UNLIKE, 0.03, 0.08)),
    *((noise, OUTLIERS, EVEN) for noise in (0.03, 0.08)),
    *((0.002, 0.0, Shape(cells, times)) for cells in (1, 2, HALF) for times in (2.0, 5.0, 20.0)),
    (0.002, 0.0, Shape(tails=True)),
    (0.03, 0.0, Shape(tails=True)),
    (0.002, 0.0, Shape(drift=0.002)),
    (0.03, 0.0, Shape(drift=0.03)),
)
HEAD = (
    *("surface", "noise", "outliers", "shape", "mode", "mean regret", "p95"),
    *("best kept", "tied", "marked", "mean trials"),
)
Row = tuple[str, str, Noise, float, Shape, int]


def row(of: Row) -> tuple[str, ...]:
    """A row of the table."""
    name, mode, noise, outliers, shape, seeds = of
    surface = SURFACES[name]()
    counts, outcomes = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        trials = sweep(surface, mode, noise, seed, outliers, shape=shape)
        counts.append(len(trials))
        outcomes.append(outcome(surface, trials))
    regrets = sorted(each.regret for each in outcomes)
    return (
        *(name, _spread(noise), f"{outliers:.0%}" if outliers else "none"),
        *(str(shape) or "even", mode),
        f"{statistics.fmean(regrets):.2%}",
        f"{regrets[int(0.95 * len(regrets))]:.2%}",
        *(f"{_mean(outcomes, field):.0%}" for field in ("kept", "tied", "marked")),
        f"{statistics.fmean(counts):.0f}",
    )


def _mean(outcomes: list[Outcome], field: str) -> float:
    return statistics.fmean(getattr(each, field) for each in outcomes)


def _spread(noise: Noise) -> str:
    if isinstance(noise, float):
        return f"{noise:.1%}"
    return ", ".join(f"{name} {relative:.1%}" for name, relative in noise.items())


def main(seeds: int = 2000) -> None:
    """Simulate sweeps: print a row for each surface, noise and mode."""
    print(f"| {' | '.join(HEAD)} |")
    print("|---" * len(HEAD) + "|")
    wanted = [
        (name, mode, *condition, seeds)
        for name in SURFACES
        for condition in CONDITIONS
        for mode in ("racing", "exhaustive")
    ]
    with multiprocessing.Pool() as processes:
        for line in processes.imap(row, wanted):
            print(f"| {' | '.join(line)} |", flush=True)
