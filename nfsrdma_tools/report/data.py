# SPDX-License-Identifier: Apache-2.0
"""The data of a report: a study, its points and its missing cells.

Throughput is in MB/s (10^6 bytes per second, as in the 2003 paper), CPU in percent of all CPUs of
the host or in milliseconds of CPU per MiB moved, the reader's own time in milliseconds per MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nfsrdma_tools.report.fleet import Fleet
from nfsrdma_tools.sweep.choice import Choice
from nfsrdma_tools.sweep.cpu_breakdown import Spending
from nfsrdma_tools.sweep.plan import Cell, Plan

__all__ = ["Missing", "Point", "Spread", "Study"]


@dataclass(frozen=True)
class Spread:
    """The mean of several runs, with the lowest and the highest value."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        known = list(values)
        low, high = min(known), max(known)
        # rounding may put the mean of equal values slightly below them
        return cls(min(max(sum(known) / len(known), low), high), low, high)

    @property
    def relative(self) -> float:
        """The difference of highest and lowest, as a share of the mean."""
        return (self.high - self.low) / self.mean if self.mean else 0.0


@dataclass(frozen=True)
class Point:
    """A measured cell; ``ceiling`` is rsize / round trip in MB/s.

    ``spent`` comes from its probe sets; ``cpu_of_host`` and ``reader_of_host`` are ``cpu`` and
    ``reader`` without the time of an emulated NIC; None without probe sets.

    ``variant`` names its values on further axes ("nconnect 4, sunrpc.x=1"), "" without any;
    ``common`` the same without the personality, which only transport nfsrdma has.
    """

    cell: Cell
    runs: int
    throughput: Spread
    cpu: Spread | None = None
    cpu_per_mib: Spread | None = None
    reader: Spread | None = None
    round_trip_ms: float | None = None
    ceiling: float | None = None
    unstable: bool = False
    best: bool = False
    tied: bool = False
    pareto: bool = False
    verified: bool = False
    variant: str = ""
    common: str = ""
    spent: Spending | None = None
    cpu_of_host: Spread | None = None
    reader_of_host: Spread | None = None


@dataclass(frozen=True)
class Missing:
    """A cell without a result or with failed runs, and the reason."""

    cell: Cell
    reason: str
    offered: bool = True


@dataclass(frozen=True)
class Study:
    """A sweep: its plan, conditions and results."""

    plan: Plan
    conditions: Mapping[str, str]
    date: str
    points: tuple[Point, ...]
    missing: tuple[Missing, ...] = ()
    choices: tuple[Choice, ...] = ()
    wire: float | None = None
    fleet: Fleet | None = None
    """The results per host; None if it ran on one host."""

    @property
    def visible_wire(self) -> float:
        """The link rate if a result comes near it, else 0.0."""
        top = max(point.throughput.high for point in self.points)
        return self.wire if self.wire and top > 0.4 * self.wire else 0.0

    @property
    def emulated(self) -> bool:
        """Whether probe sets measured the time of an emulated NIC."""
        return any(point.spent and point.spent.emulated for point in self.points)

    @property
    def transports(self) -> list[str]:
        """Transports with points, in the order of the plan."""
        there = {point.cell.transport for point in self.points}
        return [name for name in self.plan.transports if name in there]

    @property
    def variants(self) -> list[str]:
        """Values on further axes, in a fixed order; [""] without any."""
        return _variants(self.points)

    def variants_of(self, transport: str) -> list[str]:
        """The same of one transport."""
        return _variants(self.of(transport))

    def side_by_side(self, points: Iterable[Point]) -> dict[str, list[Point]]:
        """Points by variant; transports without personalities are beside each personality."""
        found = list(points)
        leading = [p for p in found if p.cell.personality] or found
        return {
            variant: [p for p in found if variant == p.variant or _is_beside(p, variant, leading)]
            for variant in _variants(leading)
        }

    def point(self, cell: Cell) -> Point:
        """The point of a cell."""
        return next(point for point in self.points if point.cell == cell)

    def of(self, transport: str, variant: str | None = None) -> list[Point]:
        """The points of a transport (and variant), sorted."""
        mine = (p for p in self.points if p.cell.transport == transport)
        return sorted((p for p in mine if variant in (None, p.variant)), key=lambda p: p.cell)


def _variants(points: Iterable[Point]) -> list[str]:
    return list(dict.fromkeys(p.variant for p in sorted(points, key=lambda p: p.cell)))


def _is_beside(point: Point, variant: str, leading: Iterable[Point]) -> bool:
    common = {p.common for p in leading if p.variant == variant}
    return not point.cell.personality and point.variant in common
