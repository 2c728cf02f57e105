# SPDX-License-Identifier: Apache-2.0
"""Merge the stores of several hosts into one.

All stores are read and checked before anything is written.  Existing rows stay unchanged, so a
second merge changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.server_cpu import Sample
from nfsrdma_tools.sweep.store import Store, StoreError, environment_uid
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["Merged", "merge"]

_Key = tuple[str, Cell, int]


@dataclass(frozen=True)
class Merged:
    """The content of a store after a merge, and the number of new trials."""

    plans: int
    trials: int
    new: int
    hosts: tuple[str, ...]


@dataclass
class _Content:
    plans: dict[str, Plan] = field(default_factory=dict)
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    trials: dict[_Key, Trial] = field(default_factory=dict)
    loads: list[tuple[str, tuple[Sample, ...]]] = field(default_factory=list)

    def take(self, store: Store) -> None:
        """Add the content of a store; StoreError when it contradicts the others or itself."""
        for plan in store.plans():
            _agree(store, "plan", self.plans.setdefault(plan.uid, plan), plan)
        for uid, facts in store.environments().items():
            if environment_uid(facts) != uid:
                raise StoreError(f"{store.path}: environment {uid} does not match its uid",
                                 "the store is damaged")  # fmt: skip
            self.environments[uid] = facts
        for trial in store.trials():
            if trial.plan not in self.plans:
                raise StoreError(f"{store.path}: a trial has no plan", "the store is damaged")
            key = (trial.plan, trial.cell, trial.run)
            _agree(store, "trial", self.trials.setdefault(key, trial), trial)
        self.loads += store.loads().items()

    def in_order(self) -> tuple[list[Plan], list[Trial]]:
        """Plans by their first trial, trials by when they started."""
        trials = sorted(self.trials.values(), key=lambda t: (t.started, t.order))
        first: dict[str, int] = {}
        for place, trial in enumerate(trials):
            first.setdefault(trial.plan, place)
        known = self.plans.values()
        return sorted(known, key=lambda plan: first.get(plan.uid, -1)), trials


def merge(out: Path, stores: Iterable[Path], loads: Mapping[str, Sequence[Sample]] = {}) -> Merged:
    """Merge ``stores`` and the CPU samples ``loads`` of servers into ``out``, which may be new.

    Raises StoreError and writes nothing when a file is not a store or two stores disagree.
    """
    found = _Content()
    before = 0
    if out.exists():
        with Store(out, read_only=True) as kept:
            found.take(kept)
        before = len(found.trials)
    for path in stores:
        with Store(path, read_only=True) as store:
            found.take(store)
    plans, trials = found.in_order()
    with Store(out) as store:
        store.add_all(plans, found.environments.values(), trials)
        for host, samples in [*found.loads, *loads.items()]:
            store.add_load(host, samples)
    names = {facts.get("host", "") for facts in found.environments.values()}
    return Merged(len(plans), len(trials), len(trials) - before, tuple(sorted(names)))


def _agree(store: Store, what: str, here: object, there: object) -> None:
    if here != there:
        raise StoreError(f"{store.path} has another {what} of the same name as another store",
                         "merge copies of one sweep from one place only")  # fmt: skip
