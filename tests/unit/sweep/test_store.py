# SPDX-License-Identifier: Apache-2.0
import contextlib
import csv
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep.plan import Cell, ExistingMount, Plan
from nfsrdma_tools.sweep.store import (
    VERSION,
    DiskFullError,
    Store,
    StoreError,
    Trial,
    as_csv,
    as_facts,
    environment_uid,
)

PLAN = Plan("server:/export", uid="p1")
TRIAL = trial_of(
    "p1", Cell("rdma", 8192, 4, 2, (("sunrpc.x", "a,b"),)), 1, 0,
    throughput=119.5, rdma={"recvs": 7}, verified=True, cpu_modes={"user": 0.25},
)  # fmt: skip


def test_gives_back_what_was_put_in(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add_plan(PLAN)
        uid = store.add_environment({"kernel": "6.12"})
        store.add_trial(TRIAL)
    with Store(tmp_path / "s.db", read_only=True) as store:
        assert store.plan() == PLAN
        assert store.trials() == [TRIAL]
        assert store.environments() == {uid: {"kernel": "6.12"}}


@given(st.text(), st.floats(allow_nan=False), st.integers(0, 2**60))
def test_json_of_a_trial_is_exact(reason: str, throughput: float, size: int) -> None:
    trial = with_columns(TRIAL, reason=reason, throughput=throughput, bytes=size)
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial


def test_adding_twice_changes_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add_plan(PLAN)
        store.add_plan(PLAN)
        store.add_trial(TRIAL)
        store.add_trial(with_columns(TRIAL, throughput=1.0))
        store.add_trial(replace(TRIAL, run=2))
        assert [(t.run, t.transfer.throughput) for t in store.trials(PLAN)] == [
            (1, 119.5),
            (2, 119.5),
        ]
        assert store.trials(Plan("other:/x")) == []


def test_notes(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert store.noted(PLAN, "file") == ""
        store.note(PLAN, "file", "made")
        assert store.noted(PLAN, "file") == "made"


def test_environments_are_named_by_their_facts() -> None:
    assert environment_uid({"a": "1", "b": "2"}) == environment_uid({"b": "2", "a": "1"})
    assert environment_uid({"a": "1"}) != environment_uid({"a": "2"})


def test_log_is_write_ahead_and_synchronous(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def refused(path: Path, *words: str, read_only: bool = False) -> None:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        Store(path, read_only=read_only)
    assert all(word in str(caught.value) for word in (path.name, *words))
    assert (path.read_bytes() if path.is_file() else None) == before


def test_not_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"holiday pictures " * 999)
    refused(path, "not a database")
    refused(path, "not a database", read_only=True)


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE plans (x)")
    db.close()
    refused(path, "not a store of nfsrdma")


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, 99])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_another_version_is_refused_and_unchanged(
    tmp_path: Path, version: int, read_only: bool
) -> None:
    path = tmp_path / "s.db"
    with Store(path) as store:
        store.add_plan(PLAN)
        store.add_trial(TRIAL)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    refused(path, f"version {VERSION}, found {version}", read_only=read_only)


def test_missing_and_unreachable(tmp_path: Path) -> None:
    refused(tmp_path / "none.db", "no store", read_only=True)
    refused(tmp_path / "no" / "folder.db", "its folder exists")
    refused(tmp_path, "unable to open")


COLUMNS = """
plan TEXT, cell TEXT, run INTEGER, order INTEGER, status TEXT, reason TEXT, environment TEXT,
started TEXT, duration_ns INTEGER, bytes INTEGER, throughput REAL, busy_ns INTEGER,
task_ns INTEGER, harness_ns INTEGER, wall_ns INTEGER, cpu_share REAL, cpu_modes TEXT, steal_s REAL,
reader_user_s REAL, reader_system_s REAL, operations INTEGER, rpc_counts TEXT, rtt_ms REAL,
queue_ms REAL, execute_ms REAL, bytes_sent INTEGER, bytes_received INTEGER, retransmits INTEGER,
ceiling REAL, rdma TEXT, verified INTEGER, cache TEXT, mount TEXT, read_ahead_kb_before INTEGER,
read_ahead_kb_after INTEGER, axes TEXT, probe_rows TEXT, began TEXT, file_size INTEGER,
total_ns INTEGER
"""


def test_a_store_of_this_version_has_these_columns(tmp_path: Path) -> None:
    """Other columns need another version: an older nfsrdma reads the store, too."""
    with Store(tmp_path / "s.db") as store:
        store.add_trial(TRIAL)
        columns = [row[1:3] for row in store._db.execute("PRAGMA table_info(trials)")]
        header, *_ = csv.reader(io.StringIO(as_csv(store)))
        (facts,) = as_facts(store)["trials"]
    assert VERSION == 5
    assert columns == [tuple(words.split()) for words in COLUMNS.split(",")]
    names = [name for name, _ in columns]
    assert list(facts) == names
    cell = ["transport", "rsize", "read_ahead", "nconnect", "axes", "jobs", "depth", "direct",
            "as_mounted", "read_ahead_kb"]  # fmt: skip
    names.remove("cell")
    assert header == [*(f"cell_{name}" for name in cell), *names]


def test_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store(path) as store:
        for run in range(200):
            store.add_trial(replace(TRIAL, run=run))
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    with pytest.raises(StoreError), Store(path, read_only=True) as store:
        store.trials()


def test_a_record_that_is_no_json_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store(path) as store:
        store.add_plan(PLAN)
        store.add_trial(TRIAL)
        store._db.execute("UPDATE trials SET cell = 'nonsense'")
        store._db.execute("UPDATE plans SET plan = '{}'")
        with pytest.raises(StoreError):
            store.trials()
        with pytest.raises(UserError, match="not a plan"):
            store.plan()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store(path).close()
    path.chmod(0o444)
    with pytest.raises(StoreError, match="cannot be written"), Store(path) as store:
        store.add_trial(TRIAL)


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DiskFullError, match=r"s\.db: its disk is full \(free space there"):
            for run in range(100):
                store.add_trial(replace(TRIAL, run=run, reason="x" * 1000))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("SQLITE_IOERR_SHMSIZE", "its disk is full (free space there, then continue with --"),
        ("SQLITE_IOERR_WRITE", "disk I/O error (see the kernel's log, and the quota"),
    ],
)
def test_an_error_of_the_disk_is_no_damaged_store(tmp_path: Path, name: str, found: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    with Store(tmp_path / "s.db") as store:
        with pytest.raises(StoreError) as caught, store._explained():
            raise error
        assert found in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"holiday pictures " * 999], ids=("empty", "no database"))
def test_a_file_that_must_be_a_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"s\.db.*store of nfsrdma"):
        Store(path, must_exist=True)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == content


WRITER = """
import os, sys
from dataclasses import replace
from pathlib import Path
from nfsrdma_tools.sweep.store import Store
from unit.sweep.test_store import PLAN, TRIAL
store = Store(Path(sys.argv[1]))
store.add_plan(PLAN)
for run in range(10**6):
    store.add_trial(replace(TRIAL, run=run))
    print(run, flush=True)
"""


@pytest.mark.parametrize("killed_after", [0, 1, 17])
def test_kill_9_loses_nothing_that_was_reported(tmp_path: Path, killed_after: int) -> None:
    path = tmp_path / "s.db"
    argv = [sys.executable, "-c", WRITER, str(path)]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert writer.stdout
    reported = -1
    while reported < killed_after:
        reported = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    reported = int(([str(reported), *writer.stdout.read().decode().split()])[-1])
    writer.wait()
    with Store(path) as store:
        runs = [trial.run for trial in store.trials()]
        assert runs == list(range(len(runs)))
        assert len(runs) in (reported + 1, reported + 2)
        assert store.plan() == PLAN


def test_export(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert as_csv(store) == "plan\r\n"
        store.add_plan(PLAN)
        store.add_trial(TRIAL)
        row = next(csv.DictReader(as_csv(store).splitlines()))
        assert (row["cell_transport"], row["cell_rsize"]) == ("rdma", "8192")
        assert row["throughput"] == "119.5"
        assert json.loads(row["rdma"]) == {"recvs": 7}
        content = json.loads(json.dumps(as_facts(store)))
        assert Plan.from_json(content["plans"][0]) == PLAN
        assert Trial.from_json(content["trials"][0]) == TRIAL


def test_a_sweep_that_never_started_hides_none_that_did(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add_plan(PLAN)
        assert store.plan() == PLAN
        store.add_trial(TRIAL)
        never = replace(PLAN, uid="p2", target="badhost:/x")
        store.add_plan(never)
        assert store.plan() == PLAN
        assert store.plan("p2") == never


KEPT = sorted((Path(__file__).parent / "stores").glob("*.db"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_store_that_an_earlier_nfsrdma_wrote_is_read(tmp_path: Path, kept: Path) -> None:
    """Stores of sweeps in a lab, and what they were exported to then: columns may be added."""
    copy = Path(shutil.copy(kept, tmp_path))
    with Store(copy, read_only=True) as store:
        found = list(csv.DictReader(io.StringIO(as_csv(store))))
    expected = list(csv.DictReader(io.StringIO(kept.with_suffix(".csv").read_text())))
    assert expected
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    assert copy.read_bytes() == kept.read_bytes()
    with Store(copy) as store:
        store.add_trial(replace(store.trials()[0], run=99))
        assert len(store.trials()) == len(expected) + 1


# of Plan in nfsrdma_tools/sweep/plan.py of the commit released.OLDEST, which refuses any other
KEYS_OF_OLDEST = {
    *("target", "directory", "transports", "rsizes", "read_aheads", "read_ahead_kbs", "nconnects"),
    *("jobs", "depths", "vers", "direction", "direct", "with_direct", "axes", "runs", "file_size"),
    *("seconds", "minutes", "block_size", "preset", "mode", "order", "seed", "verify"),
    *("whole_from", "uid"),
}


def test_programs_from_before_existing_mounts_read_the_plans_of_other_sweeps(
    tmp_path: Path,
) -> None:
    existing = ExistingMount("/mnt", "rdma", "3", 1048576, 1048576, 1, 128)
    for number, plan in enumerate((PLAN, replace(PLAN, existing=existing))):
        with Store(tmp_path / f"{number}.db") as store:
            store.add_plan(plan)
            assert store.plan() == plan
        with contextlib.closing(sqlite3.connect(tmp_path / f"{number}.db")) as base:
            ((text,),) = base.execute("SELECT plan FROM plans").fetchall()
        assert ("existing" in json.loads(text)) is bool(number)
        assert json.loads(text).keys() - KEYS_OF_OLDEST == ({"existing"} if number else set())


def test_a_store_of_this_version_is_kept() -> None:
    assert f"version-{VERSION}" in [path.stem for path in KEPT]
