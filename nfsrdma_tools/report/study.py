# SPDX-License-Identifier: Apache-2.0
"""The data of a report: a study, its points, missing cells and conditions, read from a store.

Throughput is in MB/s (10^6 bytes per second, as in the 2003 paper), CPU in percent of all CPUs of
the host or in milliseconds of CPU per MiB moved, the reader's own time in milliseconds per MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.sweep import fleet
from nfsrdma_tools.sweep.choice import Choice, Today, against_today, choose, unstable
from nfsrdma_tools.sweep.cpu_breakdown import Spending, spending
from nfsrdma_tools.sweep.fleet import Fleet
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import NOT_OFFERED, Store, Trial

__all__ = [
    "CARD", "SOFT_ROCE", "Missing", "Point", "Spread", "Study", "clock_note", "emulation", "is_lab",
    "load", "machine", "merged", "wire_speed",
]  # fmt: skip

CARD, SOFT_ROCE = "modelled card", "soft-RoCE"
_HARDWARE = ("mlx5_ib", "irdma")


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
    file_size: int = 0
    """Bytes of the file; the largest one of several hosts."""
    read_again: bool = False
    """Whether trials read the file more than once."""
    today: Today | None = None
    """The mount that the plan's host had before the sweep; None without figures of one."""

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
        all_points = list(points)
        leading = [p for p in all_points if p.cell.personality] or all_points
        return {
            variant: [
                p for p in all_points if variant == p.variant or _is_beside(p, variant, leading)
            ]
            for variant in _variants(leading)
        }

    @property
    def buffered(self) -> tuple[Point, ...]:
        """The points without O_DIRECT reads that are beside buffered ones; all if these lack."""
        return tuple(p for p in self.points if not p.cell.direct) or self.points

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


def load(store: Store, uid: str = "") -> Study:
    """Load a plan (default: the newest) as a study, with the results of other hosts.

    Raises UserError if there is no such plan, or if it has no results.
    """
    plan = store.plan(uid)
    trials = fleet.pooled(store, plan)
    good = [trial for trial in trials if trial.ok and not trial.cell.as_mounted]
    if not good:
        raise UserError(f"{store.path}: none of {len(trials)} trials has a result",
                        _first_reason(trials))  # fmt: skip
    _check_drawn(plan, good)
    facts = merged(store.environments(), good)
    judged = fleet.comparable(store, plan, good)
    return Study(
        plan=plan,
        conditions=facts,
        date=_days(good),
        points=_points(plan, judged),
        missing=_missing(trials),
        choices=_choices(plan, judged),
        wire=wire_speed(facts),
        fleet=fleet.load(store, plan, good),
        file_size=max(trial.file_size for trial in good),
        read_again=any(trial.transfer.bytes > trial.file_size > 0 for trial in good),
        today=against_today([trial for trial in trials if trial.plan == plan.uid]),
    )


# what figures have room for; a store of some hundred KiB may have more
_MOST_CELLS, _MOST_AHEADS, _MOST_VARIANTS, _LONGEST_NAME = 1000, 32, 36, 300


def _check_drawn(plan: Plan, trials: Sequence[Trial]) -> None:
    """UserError if the trials are not of the plan, or are of more cells than a report draws."""
    cells = {trial.cell for trial in trials}
    foreign = next(iter(sorted(cells.difference(plan.cells()))), None)
    if foreign:
        message = (
            f"a trial is of a cell that the plan does not have: {str(foreign)[:_LONGEST_NAME]}"
        )
        raise UserError(printable(message), "the store is damaged; give another file")
    longest = max(len(str(cell)) for cell in cells)
    if longest > _LONGEST_NAME:
        message = f"a cell has a name of {longest} characters, a report prints {_LONGEST_NAME}"
        raise UserError(message, "name fewer axes; nfsrdma results export has all of them")
    counts = {
        "cells": (len(cells), _MOST_CELLS),
        "read-aheads": (len({cell.read_ahead for cell in cells}), _MOST_AHEADS),
        "sets of axes": (len({_variant(plan, cell, cell.axes) for cell in cells}), _MOST_VARIANTS),
    }
    for name, (count, most) in counts.items():
        if count > most:
            message = f"the plan has {count} measured {name}, a report draws at most {most}"
            raise UserError(message, "use nfsrdma results export")


def _first_reason(trials: Sequence[Trial]) -> str:
    return next((f"first reason: {t.reason}" for t in trials if t.reason), "run the sweep")


def _days(trials: Sequence[Trial]) -> str:
    days = sorted({trial.started[:10] for trial in trials if trial.started})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "on an unknown day"


def _choices(plan: Plan, good: Sequence[Trial]) -> tuple[Choice, ...]:
    choices = [choose(good, transport) for transport in plan.transports]
    return tuple(choice for choice in choices if choice)


def _points(plan: Plan, good: Sequence[Trial]) -> tuple[Point, ...]:
    choices = _choices(plan, good)
    best = {choice.winner.cell for choice in choices}
    tied = {summary.cell for choice in choices for summary in choice.tied}
    front = {summary.cell for choice in choices for summary in choice.front}
    restless = {summary.cell for summary in unstable(good)}
    runs: dict[Cell, list[Trial]] = {}
    for trial in good:
        runs.setdefault(trial.cell, []).append(trial)
    return tuple(
        replace(_point(plan, runs[cell]), best=cell in best, tied=cell in tied,
                pareto=cell in front, unstable=cell in restless)
        for cell in sorted(runs, key=lambda c: (plan.transports.index(c.transport), c))
    )  # fmt: skip


def _point(plan: Plan, trials: Sequence[Trial]) -> Point:
    point = Point(
        cell=trials[0].cell,
        variant=_variant(plan, trials[0].cell, trials[0].cell.axes),
        common=_variant(plan, trials[0].cell, trials[0].cell.tunables),
        runs=len(trials),
        throughput=Spread.of(t.transfer.throughput for t in trials),
        cpu=_known(100 * t.cpu.cpu_share for t in trials),
        cpu_per_mib=_known(t.cpu.busy_ns / 1e6 / _mib(t) for t in trials),
        reader=_known(1e3 * t.cpu.reader_system_s / _mib(t) for t in trials),
        round_trip_ms=_mean(t.rpc.rtt_ms for t in trials),
        ceiling=_mean(t.rpc.ceiling for t in trials),
        verified=any(t.verified for t in trials),
        spent=spending(trials, plan.direction),
    )
    return _without_nic(plan, trials, point) if point.spent and point.spent.cpu else point


def _without_nic(plan: Plan, trials: Sequence[Trial], point: Point) -> Point:
    """The point with the CPU time that remains without an emulated NIC."""
    kept = [(t, spent) for t in trials if (spent := spending([t], plan.direction))]
    return replace(
        point,
        cpu_of_host=_known(100 * t.cpu.cpu_share * (1 - spent.emulated) for t, spent in kept),
        reader_of_host=_known(
            max(1e3 * t.cpu.reader_system_s - 1e-6 * spent.called * t.rpc.operations, 0) / _mib(t)
            for t, spent in kept
        ),
    )


def _variant(plan: Plan, cell: Cell, axes: Iterable[tuple[str, str]]) -> str:
    loads = [f"jobs {cell.jobs}"] * (len(plan.jobs) > 1)
    loads += [f"depth {cell.depth}"] * (plan.direct and len(plan.depths) > 1)
    if plan.with_direct:
        loads.append(f"direct, depth {cell.depth}" if cell.direct else "buffered")
    loads += [f"nconnect {cell.nconnect}"] * (len(plan.nconnects) > 1)
    return ", ".join(loads + [f"{name}={value}" for name, value in axes])


def _mib(trial: Trial) -> float:
    return max(trial.transfer.bytes, 1) / (1 << 20)


def _known(values: Iterable[float]) -> Spread | None:
    spread = Spread.of(values)
    return spread if spread.high > 0 else None


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if value > 0]
    return sum(known) / len(known) if known else None


def _missing(trials: Sequence[Trial]) -> tuple[Missing, ...]:
    bad = {(t.cell, t.reason): t for t in trials if not t.ok}
    return tuple(
        Missing(cell, reason, offered=bad[cell, reason].status != NOT_OFFERED)
        for cell, reason in sorted(bad)
    )


def merged(
    environments: Mapping[str, Mapping[str, str]], trials: Iterable[Trial]
) -> dict[str, str]:
    """The facts of these trials' environments; all values if they differ."""
    uids = dict.fromkeys(trial.environment for trial in trials)
    facts: dict[str, dict[str, None]] = {}
    for uid in uids:
        for name, value in environments.get(uid, {}).items():
            facts.setdefault(name, {})[value] = None
    return {name: " / ".join(values) for name, values in facts.items()}


def wire_speed(facts: Mapping[str, str]) -> float | None:
    """The lab's link rate in MB/s from "1gbit/100us"; None if unlimited or unknown."""
    match = re.match(r"(\d+(?:\.\d+)?)(g|m)bit\b", facts.get("lab link", ""))
    return float(match[1]) * {"g": 125.0, "m": 0.125}[match[2]] if match else None


def is_lab(facts: Mapping[str, str]) -> bool:
    """Whether it ran in a lab."""
    return "lab clock" in facts


def emulation(facts: Mapping[str, str]) -> str:
    """The software that stands for an RDMA card: CARD, SOFT_ROCE, or "" for a real card."""
    if any(name.startswith("rdma ") and CARD in value for name, value in facts.items()):
        return CARD
    hardware = any(f"module {name}" in facts for name in _HARDWARE)
    emulated = is_lab(facts) or ("module rdma_rxe" in facts and not hardware)
    return SOFT_ROCE if emulated else ""


def clock_note(facts: Mapping[str, str]) -> str:
    """An explanation of the lab's clock; "" outside of a lab."""
    if not is_lab(facts):
        return ""
    if facts["lab clock"] == "instructions":
        return (
            "The clock counts instructions, one nanosecond each: results compare the work of "
            "kernels and repeat on any machine with this QEMU. They are not seconds of real "
            "hardware."
        )
    if facts["lab clock"] == "counted":
        return "CPU time counts instructions, one nanosecond each; elapsed time has no meaning."
    return "The clock is a virtual machine's wall clock: other load on the host changes results."


def machine(facts: Mapping[str, str]) -> str:
    """Kernel, devices, link, CPU model and clock in one line."""
    devices = [f"{name.removeprefix('rdma ')} ({value})" for name, value in facts.items()
               if name.startswith("rdma ")]  # fmt: skip
    parts = [
        f"Linux {facts['kernel']}" if "kernel" in facts else "",
        _ours(facts),
        *([emulation(facts)] if emulation(facts) else devices),
        f"link {facts['lab link']}" if "lab link" in facts else "",
        facts.get("cpu model", ""),
        f"QEMU {facts['lab qemu'].split()[0]}" if "lab qemu" in facts else "",
        f"lab clock: {facts['lab clock']}" if is_lab(facts) else "wall clock",
    ]
    return ", ".join(part for part in parts if part)


def _ours(facts: Mapping[str, str]) -> str:
    # one version has many builds: the first digits of srcversion distinguish them
    words = facts.get("module nfsrdma", "").split()
    return f"nfsrdma {words[0]} {words[1][:8]}" if len(words) > 1 else ""
