# SPDX-License-Identifier: Apache-2.0
"""Made-up throughput surfaces on the quick preset's grid, sweeps over them, and their outcomes."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nfsrdma_tools.sweep.choice import Race, choose, unstable
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import CpuUsage, Transfer, Trial

Surface = dict[Cell, float]
PLAN = Plan("server:/export", uid="p")

# MB/s over a 1 Gb/s wire with a round trip of 100 us, soft-RoCE, Linux 6.12, read-ahead 0 1 4 16
_MEASURED = {
    ("tcp", 8): (17.9, 53.5, 85.2, 95.4),
    ("tcp", 32): (17.9, 119.1, 120.8, 120.8),
    ("tcp", 128): (17.9, 120.8, 121.3, 121.2),
    ("tcp", 512): (17.9, 121.4, 121.3, 121.25),
    ("rdma", 8): (13.3, 33.1, 48.3, 52.8),
    ("rdma", 32): (13.3, 77.2, 93.1, 98.9),
    ("rdma", 128): (13.3, 116.1, 119.85, 113.7),
    ("rdma", 512): (13.3, 119.65, 120.0, 114.2),
}


def measured() -> Surface:
    return {
        Cell(transport, size << 10, ahead): speed
        for (transport, size), row in _MEASURED.items()
        for ahead, speed in zip((0, 1, 4, 16), row, strict=True)
    }


def peak(widths: float, tcp: tuple[float, int, int], rdma: tuple[float, int, int]) -> Surface:
    """One optimum per transport: (MB/s, rsize in KiB, read-ahead), falling off around it."""
    tops = {"tcp": tcp, "rdma": rdma}

    def speed(cell: Cell) -> float:
        top, size, ahead = tops[cell.transport]
        sizes = math.log2(cell.rsize / 1024 / size) / widths
        aheads = math.log2((cell.read_ahead + 0.5) / (ahead + 0.5)) / widths
        return top * math.exp(-(sizes**2) - aheads**2)

    return {cell: speed(cell) for cell in PLAN.cells()}


def flat() -> Surface:
    return {cell: 120.0 - index / 100 for index, cell in enumerate(PLAN.cells())}


# the 2003 paper's figures 15 and 16 peak at 256 KB and 4 or 8 ahead, 60 and 102 MB/s
SURFACES: dict[str, Callable[[], Surface]] = {
    "measured": measured,
    "paper2003": lambda: peak(4, (60, 256, 4), (102, 256, 8)),
    "sharp": lambda: peak(1.8, (94.2, 128, 4), (102, 128, 1)),
    "flat": flat,
}


Noise = float | Mapping[str, float]
"""Relative standard deviation of a run's throughput: of all runs, or by transport."""


@dataclass(frozen=True)
class Shape:
    """What a machine's noise looks like besides its size.

    The ``noisy`` fastest cells (HALF: half of the cells, by chance) spread ``factor`` times as much
    as the others.  ``tails``: Student's t with 3 degrees of freedom, of the same deviation, in
    place of the normal distribution.  ``drift``: relative amplitude of a slow wave over the trials.
    """

    noisy: int = 0
    factor: float = 1.0
    tails: bool = False
    drift: float = 0.0

    def __str__(self) -> str:
        cells = {0: "", 1: "best cell", 2: "two best cells"}.get(self.noisy, "half of the cells")
        parts = [f"{cells} x{self.factor:g}" if cells else "", "t, 3 degrees" * self.tails]
        return ", ".join(filter(None, [*parts, f"drift {self.drift:.1%}" * bool(self.drift)]))


EVEN = Shape()
HALF = 16
_PERIOD = 60
"""Trials of a period of the drift."""


def _rough(surface: Surface, shape: Shape, seed: int) -> set[Cell]:
    ranked = sorted(surface, key=lambda cell: -surface[cell])
    if shape.noisy < HALF:
        return set(ranked[: shape.noisy])
    return set(random.Random(seed).sample(ranked, HALF))  # noqa: S311 - no secret


def _draw(luck: random.Random, shape: Shape) -> float:
    """A deviation of mean 0 and variance 1."""
    value = luck.gauss(0, 1)
    # the variance of t with 3 degrees of freedom is 3
    return value / math.sqrt(luck.gammavariate(1.5, 2)) if shape.tails else value


def sweep(
    surface: Surface,
    mode: str,
    noise: Noise,
    seed: int,
    outliers: float = 0,
    order: str = "random",
    shape: Shape = EVEN,
) -> list[Trial]:
    """Run a whole sweep over ``surface``; an outlier loses 15 to 50 % of its throughput."""
    race, trials = Race(replace(PLAN, mode=mode, seed=seed, order=order)), list[Trial]()
    luck = random.Random(seed)  # noqa: S311 - no secret
    rough = _rough(surface, shape, seed)
    while step := race.next():
        cell, run = step
        spread = noise if isinstance(noise, float) else noise[cell.transport]
        spread *= shape.factor if cell in rough else 1
        speed = surface[cell] * max(0.1, 1 + spread * _draw(luck, shape))
        speed *= 1 + shape.drift * math.sin(2 * math.pi * len(trials) / _PERIOD)
        speed *= luck.uniform(0.5, 0.85) if luck.random() < outliers else 1
        trials.append(
            Trial("p", cell, run, len(trials), transfer=Transfer(0, 1, speed), cpu=CpuUsage(1))
        )
        race.add(trials[-1])
    return trials


@dataclass(frozen=True)
class Outcome:
    """A simulated sweep's choice among the cells of a transport, or of all, and the truth.

    ``regret``: how much slower the winner really is than the really fastest cell.  ``kept``: the
    really fastest cell is the winner or tied with it.  ``tied``: the share of the other cells that
    are tied with the winner.  ``marked``: the share of the repeated cells that are unstable.
    """

    regret: float
    kept: bool
    tied: float
    marked: float


def outcome(surface: Surface, trials: Sequence[Trial], transport: str = "") -> Outcome:
    """Outcome of a sweep over ``surface``."""
    speeds = {cell: v for cell, v in surface.items() if transport in ("", cell.transport)}
    choice = choose(trials, transport)
    assert choice
    best = max(speeds, key=lambda cell: speeds[cell])
    repeated = {t.cell for t in trials if t.run > 1 and t.cell in speeds}
    marked = repeated & {each.cell for each in unstable(trials)}
    return Outcome(
        regret=1 - speeds[choice.winner.cell] / speeds[best],
        kept=best in {each.cell for each in (choice.winner, *choice.tied)},
        tied=len(choice.tied) / (len(speeds) - 1),
        marked=len(marked) / len(repeated),
    )
