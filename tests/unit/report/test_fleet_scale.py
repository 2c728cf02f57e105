# SPDX-License-Identifier: Apache-2.0
"""Two hosts, one ten times as fast, whose races measured different cells."""

import statistics
from dataclasses import replace
from pathlib import Path

from unit.sweep.surfaces import PLAN, SURFACES, sweep
from unit.sweep.trials_made import with_columns

from nfsrdma_tools.report import study
from nfsrdma_tools.sweep import fleet
from nfsrdma_tools.sweep.choice import choose
from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Store

SEEDS = range(12)


def merged(path: Path, seed: int) -> Store:
    store = Store(path / f"{seed}.db")
    for host, factor in (("slow", 1.0), ("fast", 10.0)):
        mine = replace(PLAN, uid=host, seed=seed)
        store.add_plan(mine)
        uid = store.add_environment({"host": host})
        runs = sweep(SURFACES["measured"](), "racing", 0.03, 2 * seed + (host == "fast"))
        for run in runs:
            store.add_trial(
                with_columns(
                    run, plan=host, environment=uid, throughput=factor * run.transfer.throughput
                )
            )
    return store


def loss(cell: Cell) -> float:
    surface = SURFACES["measured"]()
    return 1 - surface[cell] / max(surface.values())


def test_the_recommendation_of_two_hosts_is_no_worse_than_that_of_one(tmp_path: Path) -> None:
    alone, together = [], []
    for seed in SEEDS:
        with merged(tmp_path, seed) as store:
            own = [choose(store.trials(plan)) for plan in store.plans()]
            both = study.load(store).choices
        alone += [loss(choice.winner.cell) for choice in own if choice]
        together.append(loss(max(both, key=lambda c: c.winner.throughput).winner.cell))
    assert statistics.fmean(together) <= statistics.fmean(alone) + 0.002
    assert max(together) <= 0.02


def test_hosts_without_a_common_cell_are_not_compared(tmp_path: Path) -> None:
    with merged(tmp_path, 1) as store:
        plan = store.plan("fast")
        trials = [
            t
            for t in fleet.pooled(store, plan)
            if (t.cell.transport == "tcp") == (t.plan == "fast")
        ]
        assert {t.plan for t in fleet.comparable(store, plan, trials)} == {"fast"}
