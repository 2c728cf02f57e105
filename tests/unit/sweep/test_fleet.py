# SPDX-License-Identifier: Apache-2.0
"""Several hosts: merged stores, and rounds in which hosts read at once."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.cpu_time import CpuCounters
from nfsrdma_tools.sweep import fleet, server_cpu
from nfsrdma_tools.sweep.fleet import Round, RoundMeans, enough, jain, round_means, rounds
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.server_cpu import Sample
from nfsrdma_tools.sweep.store import Store, StoreError, Trial, environment_uid, merge

CELL, OTHER = Cell("rdma", 131072, 4), Cell("tcp", 131072, 4)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTS = {"ea": "a", "eb": "b", "ec": "c"}


def trial(
    host: str, second: float, *, lasts: float = 10, megabytes: int = 1000, idle: float = 1,
    **more: Any,
) -> Trial:  # fmt: skip
    """A trial that reads for ``lasts`` seconds; fio runs ``idle`` seconds longer."""
    began = (NOON + timedelta(seconds=second)).isoformat(timespec="milliseconds")
    made = trial_of(
        f"p{host}", CELL, 1, 0, environment=f"e{host}", started=began, began=began,
        duration_ns=round(lasts * 1e9), wall_ns=round((lasts + idle) * 1e9),
        bytes=megabytes * 10**6, throughput=megabytes / lasts,
    )  # fmt: skip
    return with_columns(made, **more)


def test_jains_index_of_known_values() -> None:
    known = {(100, 100, 100): 1, (100, 0, 0, 0): 0.25, (30, 10): 0.8, (0, 0): 1}
    assert {rates: jain(list(rates)) for rates in known} == pytest.approx(known)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=9))
def test_jains_index_has_bounds(rates: list[float]) -> None:
    assert 1 / len(rates) - 1e-9 <= jain(rates) <= 1 + 1e-9


def test_clients_that_read_at_once_are_one_round() -> None:
    (at_once,) = rounds([trial("a", 0), trial("b", 1, megabytes=500)], HOSTS)
    assert (at_once.rates, at_once.aggregate) == ({"a": 100, "b": 50}, 150)
    # 1500 MB from the start of a, 0 s, to the end of b, 12 s
    assert at_once.least == pytest.approx(125)
    assert at_once.fairness == pytest.approx(0.9)


def test_consecutive_trials_are_separate_rounds() -> None:
    separate = rounds([trial("a", 0), trial("b", 11)], HOSTS)
    assert [r.rates for r in separate] == [{"a": 100}, {"b": 100}]


@pytest.mark.parametrize(("apart", "together"), [(3.9, True), (4.1, False)])
def test_a_round_needs_half_of_the_time_in_common(apart: float, together: bool) -> None:
    # each certainly reads from 1 s to 10 s after its start: of 10 s, 9 s less ``apart`` are common
    common = rounds([trial("a", 0), trial("b", apart)], HOSTS)
    assert [r.clients for r in common] == ([2] if together else [])


def test_the_idle_time_of_fio_is_not_common_time() -> None:
    # fio ran 8 s longer than the read, which may lie anywhere in these 18 s
    assert rounds([trial("a", 0, idle=8), trial("b", 0, idle=8)], HOSTS) == []


def test_another_cell_at_the_same_time_excludes_the_round() -> None:
    disturbed = [trial("a", 0), trial("b", 0), trial("c", 1, cell=OTHER)]
    assert rounds(disturbed, HOSTS) == []
    late = [trial("a", 0), trial("b", 0), trial("c", 9, cell=OTHER, lasts=1)]
    assert [r.clients for r in rounds(late, HOSTS)] == [2]


def test_failed_trials_and_those_without_host_or_time_are_no_rounds() -> None:
    for unusable in (
        trial("a", 0, status="failed"), trial("a", 0, began=""), trial("a", 0, duration_ns=0),
        trial("a", 0, environment="unknown"),
    ):  # fmt: skip
        assert rounds([unusable], HOSTS) == []


def test_means_by_number_of_clients() -> None:
    alone = [trial("a", 0), trial("a", 20, megabytes=900)]
    both = [trial("a", 40, megabytes=800), trial("b", 40, megabytes=400)]
    of_one, of_two = round_means(rounds([*both, *alone], HOSTS))
    assert (of_one.clients, of_one.rounds, of_one.aggregate) == (1, 2, 95)
    assert (of_two.clients, of_two.rounds, of_two.aggregate) == (2, 1, 120)


def means(clients: int, aggregate: float) -> RoundMeans:
    return RoundMeans(CELL, clients, 1, aggregate, aggregate, 1.0, None)


@pytest.mark.parametrize(
    ("aggregates", "expected"),
    [
        ({1: 100, 2: 190, 3: 195}, 2), ({1: 100, 2: 104}, 1), ({1: 100, 2: 106, 3: 112}, None),
        ({1: 100, 2: 90}, 1), ({1: 100, 4: 114}, 1), ({3: 100}, None),
    ],
)  # fmt: skip
def test_how_many_clients_are_enough(aggregates: dict[int, float], expected: int | None) -> None:
    assert enough([means(*pair) for pair in aggregates.items()]) == expected


def test_the_cpu_time_of_the_server_is_that_of_the_common_time() -> None:
    # one CPU busy until second 5, two from there on
    at = NOON.timestamp()
    samples = [Sample(at - 5, 0), Sample(at + 5, 10), Sample(at + 15, 30)]
    (at_once,) = rounds([trial("a", 0, idle=0), trial("b", 0, idle=0)], HOSTS, samples)
    assert at_once.server == pytest.approx(1.5)
    (both,) = round_means([at_once])
    assert both.server_per_client == pytest.approx(0.75)


def test_a_server_that_was_not_watched_all_the_time_is_unknown() -> None:
    samples = [Sample(10, 0), Sample(20, 5)]
    assert server_cpu.busy(samples, 12, 18) == pytest.approx(0.5)
    for some, *ends in ((samples, 9, 18), (samples, 12, 21), ([], 1, 2),
                        ([Sample(10, 5), Sample(20, 1)], 12, 18)):  # fmt: skip
        assert server_cpu.busy(some, *ends) is None


def test_samples_are_read_to_the_last_whole_line() -> None:
    whole = [Sample(1.5, 2), Sample(2.5, 3.25)]
    printed = [json.dumps({"schema_version": 1, **server_cpu.to_facts(sample)}) for sample in whole]
    assert server_cpu.read([f"{line}\n" for line in printed] + [printed[0][:-5]]) == whole
    for bad in ("{}\n", "[1.5, 2]\n", '{"time": 1, "busy_s": "x"}\n', "[1]\n", '["x", 1]\n', "x\n"):
        with pytest.raises(UserError, match="not samples"):
            server_cpu.read([bad])


def test_watching_gives_a_sample_now_and_one_per_interval() -> None:
    begin = time.time()
    samples = list(server_cpu.watch(4, 0.02))
    assert len(samples) == 4 and samples == sorted(samples)
    # times are rounded to 1 ms
    assert samples[-1].at - begin >= 0.059


def test_a_cpu_that_comes_online_adds_no_days(monkeypatch: pytest.MonkeyPatch) -> None:
    day = 86_400 * 10**9
    read = [CpuCounters(day, {0: day})] * 2 + [CpuCounters(day + 2 * 10**9, {0: day, 1: 5})]
    monkeypatch.setattr("nfsrdma_tools.host.cpu_time.snapshot", lambda: read.pop(0))
    samples = server_cpu.watch(3600, 0.0)
    assert -next(samples).busy + next(samples).busy == 2.0


def a_store(path: Path, host: str, *, plan: str = "", trials: int = 2, rate: float = 100) -> Path:
    facts = {"host": host, "kernel": "6.12"}
    with Store(path) as made:
        made.add_plan(Plan("server:/export", uid=plan or f"p{host}"))
        made.add_environment(facts)
        for run in range(trials):
            made.add_trial(
                trial(host, 20 * run, run=run, environment=environment_uid(facts),
                      plan=plan or f"p{host}", throughput=rate)
            )  # fmt: skip
    return path


def content(path: Path) -> object:
    with Store(path, read_only=True) as store:
        return store.plans(), store.environments(), store.trials(), store.loads()


def test_merging_keeps_everything_and_is_idempotent(tmp_path: Path) -> None:
    stores = [a_store(tmp_path / f"{host}.db", host) for host in "ab"]
    out = tmp_path / "all.db"
    first = merge(out, stores, {"server": [Sample(1, 2)]})
    assert (first.plans, first.trials, first.new, first.hosts) == (2, 4, 4, ("a", "b"))
    before = content(out)
    again = merge(out, [*stores, out], {"server": [Sample(1, 2)]})
    assert (again.trials, again.new) == (4, 0)
    assert content(out) == before
    with Store(out, read_only=True) as store:
        assert {t.plan for t in store.trials()} == {"pa", "pb"}
        assert store.loads() == {"server": (Sample(1, 2),)}


def test_merging_adds_samples_of_a_server(tmp_path: Path) -> None:
    source, out = a_store(tmp_path / "a.db", "a"), tmp_path / "all.db"
    merge(out, [source], {"server": [Sample(2, 2), Sample(1, 1)]})
    merge(out, [source], {"server": [Sample(3, 3), Sample(2, 2)]})
    with Store(out, read_only=True) as store:
        assert store.loads()["server"] == (Sample(1, 1), Sample(2, 2), Sample(3, 3))


def refused(out: Path, stores: list[Path], words: str) -> None:
    before = out.read_bytes() if out.exists() else None
    with pytest.raises(StoreError, match=words):
        merge(out, stores)
    assert (out.read_bytes() if out.exists() else None) == before


def test_a_file_that_is_no_store_or_contradicts_is_refused(tmp_path: Path) -> None:
    good, out = a_store(tmp_path / "a.db", "a"), tmp_path / "all.db"
    (tmp_path / "pictures").write_bytes(b"holiday pictures " * 999)
    refused(out, [good, tmp_path / "pictures"], "not a database")
    refused(out, [good, tmp_path / "none.db"], "no store")
    other = a_store(tmp_path / "b.db", "a", rate=7)
    refused(out, [good, other], "another trial of the same name")
    merge(out, [good])
    refused(out, [other], "another trial")
    refused(tmp_path / "pictures", [good], "not a database")


def test_an_inconsistent_store_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "all.db"
    strange = a_store(tmp_path / "a.db", "a")
    with Store(strange) as store:
        store._db.execute('UPDATE environments SET facts = \'{"host":"b"}\'')
        store._db.commit()
    refused(out, [strange], "does not match its uid")
    orphan = a_store(tmp_path / "b.db", "b")
    with Store(orphan) as store:
        store._db.execute("DELETE FROM plans")
        store._db.commit()
    refused(out, [orphan], "has no plan")
    samples = a_store(tmp_path / "c.db", "c")
    with Store(samples) as store:
        store.add_load("server", [Sample(1, 1)])
        store._db.execute("UPDATE notes SET value = ?", (json.dumps([["x", {}]]),))
        store._db.commit()
    refused(out, [samples], "no sample")


def test_plans_have_the_same_grid_whatever_their_uid_seed_and_directory(tmp_path: Path) -> None:
    plan = Plan("server:/export", uid="1", seed=1, directory="/mnt/a")
    assert fleet.is_same_grid(plan, replace(plan, uid="2", seed=7, directory=""))
    assert not fleet.is_same_grid(plan, replace(plan, target="other:/export"))
    assert not fleet.is_same_grid(plan, replace(plan, runs=9))


def test_the_fairness_of_one_client_is_1() -> None:
    assert Round(CELL, {"a": 5.0}, 5.0).fairness == 1
