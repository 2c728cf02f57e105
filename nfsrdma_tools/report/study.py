# SPDX-License-Identifier: Apache-2.0
"""Reads a study from a store: combines the trials of a plan by cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.report import conditions, fleet
from nfsrdma_tools.report.data import Missing, Point, Spread, Study
from nfsrdma_tools.sweep.choice import Choice, choose, unstable
from nfsrdma_tools.sweep.cpu_breakdown import spending
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial_record import NOT_OFFERED, Trial

__all__ = ["load"]


def load(store: Store, uid: str = "") -> Study:
    """Load a plan (default: the newest) as a study, with the results of other hosts.

    Raises UserError if there is no such plan, or if it has no results.
    """
    plan = store.plan(uid)
    trials = fleet.pooled(store, plan)
    good = [trial for trial in trials if trial.ok]
    if not good:
        raise UserError(f"{store.path}: none of {len(trials)} trials has a result",
                        _first_reason(trials))  # fmt: skip
    facts = conditions.merged(store.environments(), good)
    return Study(
        plan=plan,
        conditions=facts,
        date=_days(good),
        points=_points(plan, good),
        missing=_missing(trials),
        choices=_choices(plan, good),
        wire=conditions.wire_speed(facts),
        fleet=fleet.load(store, plan, good),
    )


def _first_reason(trials: Sequence[Trial]) -> str:
    return next((f"first reason: {t.reason}" for t in trials if t.reason), "run the sweep")


def _days(trials: Sequence[Trial]) -> str:
    days = sorted({trial.started[:10] for trial in trials if trial.started})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "on an unknown day"


def _choices(plan: Plan, good: Sequence[Trial]) -> tuple[Choice, ...]:
    found = [choose(good, transport) for transport in plan.transports]
    return tuple(choice for choice in found if choice)


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
        _point(plan, runs[cell], best=cell in best, tied=cell in tied,
               pareto=cell in front, unstable=cell in restless)
        for cell in sorted(runs, key=lambda c: (plan.transports.index(c.transport), c))
    )  # fmt: skip


def _point(plan: Plan, trials: Sequence[Trial], **marks: Any) -> Point:
    return Point(
        cell=trials[0].cell,
        variant=_variant(plan, trials[0].cell, trials[0].cell.axes),
        common=_variant(plan, trials[0].cell, trials[0].cell.tunables),
        runs=len(trials),
        throughput=Spread.of(t.throughput for t in trials),
        cpu=_known(100 * t.cpu_share for t in trials),
        cpu_per_mib=_known(t.busy_ns / 1e6 / _mib(t) for t in trials),
        reader=_known(1e3 * t.reader_system_s / _mib(t) for t in trials),
        round_trip_ms=_mean(t.rtt_ms for t in trials),
        ceiling=_mean(t.ceiling for t in trials),
        verified=any(t.verified for t in trials),
        **_of_accounts(plan, trials),
        **marks,
    )


def _of_accounts(plan: Plan, trials: Sequence[Trial]) -> dict[str, Any]:
    spent = spending(trials, plan.direction)
    if not spent or not spent.cpu:
        return {"spent": spent}
    kept = [(t, one) for t in trials if (one := spending([t], plan.direction))]
    return {
        "spent": spent,
        "cpu_of_host": _known(100 * t.cpu_share * (1 - one.emulated) for t, one in kept),
        "reader_of_host": _known(
            max(1e3 * t.reader_system_s - 1e-6 * one.called * t.operations, 0) / _mib(t)
            for t, one in kept
        ),
    }


def _variant(plan: Plan, cell: Cell, axes: Iterable[tuple[str, str]]) -> str:
    connections = [f"nconnect {cell.nconnect}"] * (len(plan.nconnects) > 1)
    return ", ".join(connections + [f"{name}={value}" for name, value in axes])


def _mib(trial: Trial) -> float:
    return max(trial.bytes, 1) / (1 << 20)


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
