# SPDX-License-Identifier: Apache-2.0
"""The report of several hosts."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from unit.report.test_report import HOSTILE, page, plan, trial
from unit.report.test_report import store as one_store

from nfsrdma_tools.report import build, fleet, study
from nfsrdma_tools.sweep.fleet import Fleet
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.server_cpu import Sample
from nfsrdma_tools.sweep.store import Store, merge

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
RATES = {"client1": 60.0, "client2": 40.0, "client3": 20.0}


def small(**changes: object) -> Plan:
    return plan(transports=("rdma",), rsizes=(131072,), read_aheads=(4,), **changes)


def one_host(path: Path, host: str, steps: dict[int, float], **facts: str) -> Path:
    """The store of a host: ``steps`` has its rate by the number of clients in the round."""
    with Store(path) as made:
        uid = made.add_environment({"host": host, "clock synchronised": "yes", **facts})
        for clients, rate in steps.items():
            mine = small(uid=f"{uid}-{clients}")
            made.add_plan(mine)
            at = NOON + timedelta(seconds=100 * clients, milliseconds=10)
            began = at.isoformat(timespec="milliseconds")
            made.add_trial(
                trial(mine, mine.cells()[0], 1, environment=uid, started=began, began=began,
                      throughput=rate, bytes=round(rate * 10e6), duration_ns=10**10,
                      wall_ns=11 * 10**9)
            )  # fmt: skip
    return path


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Rounds of one, two and three clients: 100, 190 and 192 MB/s together."""
    stores = [
        one_host(tmp_path / "1.db", "client1", {1: 100.0, 2: 95.0, 3: 80.0}),
        one_host(tmp_path / "2.db", "client2", {2: 95.0, 3: 72.0}),
        one_host(tmp_path / "3.db", "client3", {3: 40.0}),
    ]
    at = NOON.timestamp()
    load = [Sample(at, 0.0), Sample(at + 1000, 1500.0)]
    merge(tmp_path / "all.db", stores, {"server": load})
    return tmp_path / "all.db"


def loaded(path: Path) -> Fleet:
    with Store(path, read_only=True) as store:
        group = study.load(store).fleet
    assert group
    return group


def test_rounds_have_aggregate_fairness_and_server_cpu(merged: Path) -> None:
    group = loaded(merged)
    assert group.names == ["client1", "client2", "client3"]
    assert [(c.clients, c.rounds, c.aggregate) for c in group.round_means] == [
        (1, 1, 100.0), (2, 1, 190.0), (3, 1, 192.0),
    ]  # fmt: skip
    assert group.round_means[2].fairness == pytest.approx(192**2 / (3 * (80**2 + 72**2 + 40**2)))
    assert group.round_means[2].rates == {"client1": 80.0, "client2": 72.0, "client3": 40.0}
    assert group.round_means[2].server == pytest.approx(1.5)
    assert group.round_means[2].server_per_client == pytest.approx(0.5)
    assert list(group.enough.values()) == [2]
    assert group.unsynchronised == ()


def test_the_report_uses_the_newest_sweep_of_each_host(merged: Path) -> None:
    with Store(merged, read_only=True) as store:
        made = study.load(store)
    (point,) = made.points
    # all on the scale of the newest sweep's host
    assert point.runs == 3
    assert point.throughput.low == pytest.approx(40.0)
    assert point.throughput.high == pytest.approx(40.0)
    assert sorted(made.conditions["host"].split(" / ")) == ["client1", "client2", "client3"]


def test_the_page_lists_the_hosts(merged: Path, tmp_path: Path) -> None:
    made = build.build(merged, tmp_path / "out")
    text = " ".join(page(made).texts)
    for word in (
        "client3",
        "With more than 2 clients, each further client adds less than 5%",
        "fairness",
        "client1 80",
    ):
        assert word in text
    assert (tmp_path / "out/fleet-aggregate.png").stat().st_size > 5000
    again = build.build(merged, tmp_path / "again")
    assert made.files[0].read_bytes() == again.files[0].read_bytes()


def test_the_common_choice_may_be_slower_on_a_host(tmp_path: Path) -> None:
    grid = plan(transports=("tcp",), rsizes=(8192, 131072), read_aheads=(1,))
    small_is_best = {"a": (50.0, 100.0), "b": (40.0, 30.0)}
    stores = []
    for host, rates in small_is_best.items():
        stores.append(tmp_path / f"{host}.db")
        with Store(stores[-1]) as made:
            mine = replace(grid, uid=host)
            made.add_plan(mine)
            uid = made.add_environment({"host": host})
            for cell, rate in zip(mine.cells(), rates, strict=True):
                made.add_trial(trial(mine, cell, 1, environment=uid, throughput=rate))
    merge(tmp_path / "all.db", stores)
    group = loaded(tmp_path / "all.db")
    assert [(h.name, h.best.cell.rsize, h.loss) for h in group.hosts] == [
        ("a", 131072, 0.0), ("b", 8192, 0.25),
    ]  # fmt: skip
    assert (group.round_means, group.unsynchronised) == ((), ("a", "b"))
    report = build.build(tmp_path / "all.db", tmp_path / "out")
    assert "No two hosts" in " ".join(page(report).texts)


def test_one_host_has_no_fleet_section(tmp_path: Path) -> None:
    path = one_store(tmp_path / "s.db", plan(), {"host": "alone"})
    with Store(path, read_only=True) as store:
        made = study.load(store)
    assert made.fleet is None
    assert fleet.sections(made) == []
    assert fleet.draw(made) is None


def test_host_names_are_escaped(tmp_path: Path) -> None:
    first = one_host(tmp_path / "1.db", HOSTILE, {2: 10.0})
    other = one_host(tmp_path / "2.db", "b", {2: 10.0})
    merge(tmp_path / "all.db", [first, other])
    made = build.build(tmp_path / "all.db", tmp_path / "out")
    assert "script" not in page(made).tags
    assert "<script" not in made.files[0].read_text()


def test_results_merge_and_report_on_the_command_line(merged: Path, tmp_path: Path) -> None:
    def nfsrdma(*words: object) -> str:
        argv = (sys.executable, "-m", "nfsrdma_tools", *map(str, words))
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    samples = tmp_path / "load.txt"
    samples.write_text('{"time": 1.0, "busy_s": 2.0}\n{"time": 2.0, "busy_s": 2.')
    output = nfsrdma(
        "results", "merge", tmp_path / "new.db", merged, "--server-cpu", f"other={samples}"
    )
    assert output.strip().endswith("6 trials (6 new) of client1, client2, client3")
    facts = json.loads(nfsrdma("report", merged, "--output", tmp_path / "out", "--json"))
    assert [row["aggregate"] for row in facts["fleet"]["at_once"]] == [100.0, 190.0, 192.0]
    assert facts["fleet"]["hosts"][0]["host"] == "client1"
