# SPDX-License-Identifier: Apache-2.0
"""The mount of its target that a host has already: found, measured first, and compared with."""

import json
import sqlite3
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from unit.files_made import write_all
from unit.sweep.trials_made import trial_of

from nfsrdma_tools.cli import results
from nfsrdma_tools.cli import sweep as cli_sweep
from nfsrdma_tools.cli.sweep_view import conclusion
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.report import build
from nfsrdma_tools.sweep import existing, fleet
from nfsrdma_tools.sweep.choice import Race, against_today, choose
from nfsrdma_tools.sweep.plan import Cell, ExistingMount, Plan
from nfsrdma_tools.sweep.store import FAILED, Store, StoreError, Trial
from nfsrdma_tools.sweep.trial import Bench, request_for
from nfsrdma_tools.undo import journal

KIB = 1024
MOUNT = ExistingMount("/mnt/data", "rdma", "4.1", 1 << 20, 512 * KIB, 2, 128)
PLAN = Plan("server:/export", uid="p", rsizes=(64 * KIB, 256 * KIB), read_aheads=(1, 4),
            jobs=(1, 4), runs=3, existing=MOUNT)  # fmt: skip
ONE, FOUR = PLAN.existing_cells()

INFO = (
    "40 25 0:40 / /mnt/other rw - nfs4 server:/other rw,vers=4.2,rsize=65536,wsize=65536,"
    "proto=tcp,addr=192.0.2.1\n"
    "41 25 0:41 / /mnt/data rw - nfs4 server:/export rw,vers=4.1,rsize=1048576,wsize=524288,"
    "proto=rdma6,nconnect=2,addr=2001:db8::1\n"
    "42 25 0:42 / /mnt/again rw - nfs4 server:/export rw,vers=4.1,rsize=4096,wsize=4096,"
    "proto=rdma6,nconnect=2,addr=2001:db8::1\n"
)


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    stats = ""
    for name, source in (("other", "other"), ("data", "export"), ("again", "export")):
        stats += f"device server:/{source} mounted on /mnt/{name} with fstype nfs4 statvers=1.1\n"
        stats += "\txprt:\trdma 0 0 1 0 0 9 9 0\n"
    files = {
        "proc/self/mountinfo": INFO,
        "proc/self/mountstats": stats,
        "proc/modules": "rpcrdma 1 2 - Live 0x0\n",
        **{f"sys/class/bdi/0:{n}/read_ahead_kb": "128\n" for n in (40, 41, 42)},
    }
    write_all(tmp_path, files)
    return Machine(tmp_path, recording=Recording())


def test_the_existing_mount_has_the_values_in_effect(host: Machine) -> None:
    assert existing.find("server:/export", host) == MOUNT
    assert existing.find("server:/nowhere", host) is None


@pytest.mark.parametrize(
    ("text", "other"),
    [("vers=4.1", "vers=2"), ("proto=rdma6", "proto=udp"), ("rsize=1048576,", "")],
)
def test_a_mount_that_a_sweep_cannot_request_is_left_out(
    host: Machine, text: str, other: str
) -> None:
    (host.root / "proc/self/mountinfo").write_text(INFO.splitlines()[1].replace(text, other) + "\n")
    assert existing.find("server:/export", host) is None


def test_only_a_host_by_itself_has_an_existing_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, existing=None)
    monkeypatch.setattr(existing, "find", lambda target: MOUNT)
    monkeypatch.setattr("nfsrdma_tools.sweep.conditions.lab_facts", dict)
    assert cli_sweep._with_existing(plan) == PLAN
    monkeypatch.setattr("nfsrdma_tools.sweep.conditions.lab_facts", lambda: {"lab clock": "wall"})
    assert cli_sweep._with_existing(plan) == plan


def test_its_cells_have_the_loads_of_the_grid() -> None:
    assert [str(cell) for cell in (ONE, FOUR)] == [
        "as mounted today: rdma 1M, 128 KiB ahead, nconnect 2",
        "as mounted today: rdma 1M, 128 KiB ahead, 4 jobs, nconnect 2",
    ]
    assert replace(PLAN, existing=None).existing_cells() == ()
    assert not {ONE, FOUR} & set(PLAN.cells())
    (write,) = replace(PLAN, direction="write", jobs=(1,)).existing_cells()
    assert write.rsize == 512 * KIB
    ours = replace(MOUNT, transport="nfsrdma", personality="padded")
    (padded,) = replace(PLAN, existing=ours, jobs=(1,)).existing_cells()
    assert padded.personality == "padded"


def test_its_trial_requests_the_values_of_the_mount() -> None:
    with journal() as changes:
        request = request_for(Bench(PLAN, Path("/mnt"), changes), ONE.transport, ONE)
    assert (request.transport, request.vers, request.nconnect) == ("rdma", "4.1", 2)
    assert (request.rsize, request.wsize) == (1 << 20, None)
    assert (request.read_ahead, request.read_ahead_kb) == (None, 128)
    # a window that is no whole block counts as what it is
    assert replace(PLAN, whole_from=1 << 20, jobs=(1,)).bytes_moved(ONE) == PLAN.file_size // 8


def speed(cell: Cell) -> float:
    """The grid's best cell is twice as fast as the existing mount, at the same load."""
    if cell.as_mounted:
        return 100.0 * cell.jobs
    return (200.0 if (cell.transport, cell.rsize) == ("rdma", 256 * KIB) else 50.0) * cell.jobs


def race(plan: Plan, figure: Any = speed, broken: bool = False) -> list[Trial]:
    going, trials = Race(plan), list[Trial]()
    expected = going.expected()
    while step := going.next():
        cell, run = step
        bad = {"status": FAILED, "reason": "x"} if broken and cell.as_mounted else {}
        figures = {"throughput": figure(cell) * (1 + run / 1000), "busy_ns": 1, "bytes": 1}
        trials.append(trial_of(plan.uid, cell, run, len(trials), **(bad or figures)))
        going.add(trials[-1])
    assert going.expected() == len(trials)
    assert expected > sum(cell in {t.cell for t in trials} for cell in plan.existing_cells())
    return trials


@pytest.mark.parametrize("mode", ["racing", "exhaustive"])
def test_it_comes_first_and_runs_as_often_as_the_best_cell(mode: str) -> None:
    trials = race(replace(PLAN, mode=mode))
    assert [trial.cell for trial in trials[:2]] == [ONE, FOUR]
    runs = {cell: sum(t.cell == cell for t in trials) for cell in (ONE, FOUR)}
    best = choose(trials)
    assert best and best.winner.cell.jobs == 4
    assert runs == {ONE: 1, FOUR: min(best.winner.runs, PLAN.runs)}
    assert runs[FOUR] > 1
    # the grid's own race is the same without it
    rest = [(t.cell, t.run) for t in trials if not t.cell.as_mounted]
    assert rest == [(t.cell, t.run) for t in race(replace(PLAN, mode=mode, existing=None))]


def test_a_mount_that_fails_is_tried_once_and_ends_no_sweep() -> None:
    trials = race(PLAN, broken=True)
    assert [trial.cell for trial in trials if trial.cell.as_mounted] == [ONE]
    assert against_today(trials) is None
    assert choose(trials)


def test_the_gain_is_at_the_same_load_and_significant() -> None:
    today = against_today(race(PLAN))
    assert today and (today.existing.cell, today.best.cell.jobs) == (FOUR, 4)
    assert today.gain == pytest.approx(1.0, rel=0.01)
    assert not today.tied
    # without figures at the best cell's load: the best cell at the load that has some
    today = against_today([t for t in race(PLAN) if t.cell != FOUR])
    assert today and (today.existing.cell, today.best.cell.jobs) == (ONE, 1)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0.5, "2.00 times as fast"),
        (1.0, "no significant difference; keep the mount as it is"),
        (2.0, "0.50 times as fast"),
    ],
)
def test_the_conclusion_and_the_report_say_what_a_change_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, expected: str
) -> None:
    plan = replace(PLAN, jobs=(1,))
    path = tmp_path / "s.db"
    with Store(path) as store:
        store.add_plan(plan)
        uid = store.add_environment({"host": "a", "kernel": "6.12"})
        for trial in race(plan, lambda c: 200 * factor if c.as_mounted else speed(c)):
            store.add_trial(replace(trial, environment=uid, began="2026-11-20T12:00:00+00:00"))
    with Store(path, read_only=True) as store:
        assert store.plan() == plan
        lines = conclusion(plan, store, done=True)
        assert {t.cell for t in store.trials() if t.cell.as_mounted} == {ONE}
    at = next(i for i, line in enumerate(lines) if line.startswith("as mounted today: rdma 1M"))
    assert expected in lines[at + 1]
    assert ("keep the mount" in lines[at + 1]) == (factor >= 1)
    assert not any("as mounted" in line for line in lines[:at])
    made = build.build(path, tmp_path / "report")
    page = unescape(made.files[0].read_text())
    gain = {0.5: "+100.0 % over that", 1.0: "No significant difference", 2.0: "-50.0 % over that"}
    assert "As mounted today (/mnt/data: RDMA, kernel's module, rsize 1 MiB, nconnect 2, " in page
    assert gain[factor] in page
    # figures and table are of the grid
    assert {point.cell for point in made.study.points} <= set(plan.cells())
    results.report(path, tmp_path / "report", "", as_json=True)
    facts = json.loads(capsys.readouterr().out)["as_mounted_today"]
    figures = {"directory": "/mnt/data", "rsize": 1 << 20, "read_ahead_kb": 128}
    assert facts | figures == facts
    assert facts["gain"] == pytest.approx(1 / factor - 1, abs=0.01)
    assert facts["significant"] == (factor != 1)


def test_plans_with_and_without_an_existing_mount_are_one_grid() -> None:
    assert fleet.is_same_grid(PLAN, replace(PLAN, existing=None, uid="q"))


def test_an_older_store_has_no_existing_mount(tmp_path: Path) -> None:
    data = replace(PLAN, existing=None).to_json()
    del data["existing"]
    assert Plan.from_json(data) == replace(PLAN, existing=None)
    key = json.loads(PLAN.cells()[0].key)
    assert key.keys() == {"axes", "nconnect", "read_ahead", "rsize", "transport"}
    assert Cell.from_key(ONE.key) == ONE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transport": "udp"}, "unknown transport 'udp'"),
        ({"transport": ["rdma"]}, "unknown transport"),
        ({"rsize": 0}, "rsize: expected 1 or more, found 0"),
        ({"nconnect": "2"}, "nconnect: expected 1"),
        ({"directory": 5}, "expected a text as its directory"),
        ({"colour": "red"}, "not a plan"),
    ],
)
def test_an_existing_mount_that_no_host_has_is_one_line(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    data = PLAN.to_json()
    data["existing"] |= changes
    with Store(tmp_path / "s.db") as store:
        store.add_plan(PLAN)
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("UPDATE plans SET plan = ?", (json.dumps(data),))
    db.close()
    with Store(tmp_path / "s.db", read_only=True) as store, pytest.raises(UserError) as error:
        store.plan()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mark", [{"as_mounted": 1}, {"read_ahead_kb": -1}])
def test_a_cell_with_another_mark_is_one_line(tmp_path: Path, mark: dict[str, int]) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add_trial(trial_of("p", ONE, throughput=1.0))
        key = json.dumps(json.loads(ONE.key) | mark)
        store._db.execute("UPDATE trials SET cell = ?", (key,))
        with pytest.raises(StoreError, match="cell: "):
            store.trials()
