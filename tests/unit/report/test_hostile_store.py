# SPDX-License-Identifier: Apache-2.0
"""Stores and folders that others wrote: one line, no link followed, memory bounded."""

import json
import resource
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from unit.sweep.trials_made import trial_of

from nfsrdma_tools.cli import capture
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.report import build
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store

PLAN = Plan("server:/export", uid="p", rsizes=(8192, 32768), read_aheads=(0, 1))
LIMIT = 256 << 20


def store(path: Path) -> Path:
    with Store(path) as opened:
        opened.add_plan(PLAN)
        uid = opened.add_environment({"host": "a"})
        for order, cell in enumerate(PLAN.cells()):
            opened.add_trial(
                trial_of("p", cell, 1, order, environment=uid, throughput=9.0 + order,
                         bytes=1 << 20, duration_ns=10**9, began="2026-01-02T03:04:05+00:00")
            )  # fmt: skip
    return path


def changed(path: Path, column: str, value: object) -> Path:
    db = sqlite3.connect(store(path))
    with db:
        db.execute(f'UPDATE trials SET "{column}" = ? WHERE rowid = 1', (value,))  # noqa: S608 - names of this file
    db.close()
    return path


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("began", "x", "x"),
        ("throughput", 0.0, "expected more than 0"),
        ("throughput", float("inf"), "found inf"),
        ("throughput", -1.0, "found -1"),
        ("throughput", "fast", "fast"),
        ("busy_ns", -5, "busy_ns"),
        ("rdma", "[1]", "expected a mapping"),
        ("rdma", '{"recvs": "x"}', "expected numbers"),
        ("cell", '{"axes":[],"nconnect":1,"read_ahead":0,"rsize":"8k","transport":"tcp"}', "8k"),
        ("cell", "[]", "damaged"),
    ],
)
def test_a_trial_that_nobody_measured_is_one_line(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    path = changed(tmp_path / "s.db", column, value)
    with pytest.raises(UserError) as error:
        build.build(path, tmp_path / "report")
    assert message in f"{error.value} {error.value.hint}"
    assert "\n" not in str(error.value)


def test_the_grid_has_a_limit() -> None:
    with pytest.raises(UserError, match=r"12000 cells \(2 transports x 2 rsizes x 3000 read-ah"):
        replace(PLAN, read_aheads=tuple(range(3000)))


def test_a_small_store_with_a_huge_grid_ends_in_one_line(tmp_path: Path) -> None:
    data = PLAN.to_json() | {
        "rsizes": [8192] * 3000,
        "read_aheads": [1] * 3000,
        "nconnects": [1] * 300,
    }
    text = json.dumps(data)
    assert len(text) < 64 << 10
    path = store(tmp_path / "s.db")
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE plans SET plan = ?", (text,))
    db.close()
    done = subprocess.run(
        [sys.executable, "-m", "nfsrdma_tools", "report", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)),
    )
    assert done.returncode != 0
    assert "5400000000 cells" in done.stderr and "Traceback" not in done.stderr


def test_a_report_replaces_links_and_does_not_follow_them(tmp_path: Path) -> None:
    path, out, victim = store(tmp_path / "s.db"), tmp_path / "report", tmp_path / "victim"
    names = {file.name for file in build.build(path, out).files}
    victim.write_text("kept")
    for name in names:
        (out / name).unlink()
        (out / name).symlink_to(victim)
    build.build(path, out)
    assert victim.read_text() == "kept"
    assert {file.name for file in out.iterdir()} == names
    assert not any(file.is_symlink() for file in out.iterdir())


def test_a_capture_does_not_follow_a_link(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "trace.pcapng"
    victim.write_text("kept")
    link.symlink_to(victim)
    with (
        pytest.raises(UserError, match="cannot write"),
        capture._target(str(link)),
    ):
        pass
    assert victim.read_text() == "kept"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("", "not JSON at line 1, column 1"),
        ("{}", "'target' is missing"),
        ("[]", "another type"),
        ("null", "another type"),
        ('{"target": "s:/e", "zqskey": 1}', "unknown key 'zqskey'"),
        ('{"target": "s:/e", "runs": "x"}', "another type"),
        ('{"target": "s:/e", "transports": []}', "no transports"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_a_damaged_plan_is_one_line_with_the_name_of_the_store(
    tmp_path: Path, plan: str, message: str
) -> None:
    path = store(tmp_path / "s.db")
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE plans SET plan = ?", (plan,))
    db.close()
    with pytest.raises(UserError) as error:
        build.build(path, tmp_path / "report")
    text = str(error.value)
    assert text.startswith(f"{path}: ") and text.endswith("the store is damaged)")
    assert message in text
    assert error.value.status == 1
    assert not any(word in text for word in ("__", "NoneType", "object has", "argument", "\n"))
