# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.sweep.surfaces import measured
from unit.sweep.trials_made import with_columns

from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.sweep import progress, runner
from nfsrdma_tools.sweep import trial as trials
from nfsrdma_tools.sweep.choice import choose
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.progress import (
    Event,
    Finished,
    Planned,
    Step,
    TrialDone,
    follow,
    from_line,
    to_facts,
)
from nfsrdma_tools.sweep.runner import Options, sweep
from nfsrdma_tools.sweep.store import DiskFullError, Store, Trial
from nfsrdma_tools.sweep.trial import Bench
from nfsrdma_tools.undo import Remove, Write, journal

PLAN = Plan("server:/export", uid="p")
SURFACE = measured()


@contextlib.contextmanager
def no_file(bench: Bench, store: Store, keep: bool) -> Iterator[None]:
    (bench.directory / "file").touch()
    try:
        yield
    finally:
        (bench.directory / "file").unlink()


def fake(bench: Bench, trial: Trial, check_data: bool) -> Trial:
    assert (bench.directory / "file").exists()
    speed = SURFACE[trial.cell] * (1 + trial.run / 10000)
    return with_columns(trial, throughput=speed, verified=check_data, environment=bench.environment)


OPTIONS = Options(probes=False, measure=fake, prepare=no_file)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    with Store(tmp_path / "s.db") as opened:
        yield opened
    assert not list((tmp_path / "state").iterdir()), "something was left behind"


def test_a_whole_sweep(store: Store) -> None:
    first, file, several, *trials, last = sweep(PLAN, store, OPTIONS)
    assert isinstance(first, Planned) and isinstance(file, Step) and isinstance(several, Step)
    assert file.what == "making and reading the 32M test file once over tcp and rdma"
    assert several.what == "38 trials"
    assert min(file.seconds, several.seconds) > 0
    assert (first.plan, first.done, first.expected) == (PLAN, 0, 38)
    assert all(isinstance(event, TrialDone) for event in trials)
    assert [event.trial for event in trials if isinstance(event, TrialDone)] == store.trials(PLAN)
    assert last == Finished("p", len(trials))
    assert [trial.order for trial in store.trials()] == list(range(len(trials)))
    assert {t.cell for t in store.trials() if t.verified} == set(PLAN.cells())
    assert {t.run for t in store.trials() if t.verified} == {1}
    assert store.environments()[store.trials()[0].environment]["kernel"]


def test_each_trial_is_stored_before_the_next_one_starts(store: Store) -> None:
    def counting(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        with Store(store.path, read_only=True) as other:
            assert len(other.trials()) == trial.order
        return fake(bench, trial, check_data)

    list(sweep(replace(PLAN, runs=1), store, replace(OPTIONS, measure=counting)))
    assert len(store.trials()) == 32


def test_ctrl_c_keeps_what_there_is_and_resume_goes_on(store: Store) -> None:
    def interrupted(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        if trial.order == 5:
            raise KeyboardInterrupt
        return fake(bench, trial, check_data)

    with pytest.raises(KeyboardInterrupt):
        list(sweep(PLAN, store, replace(OPTIONS, measure=interrupted)))
    before = store.trials()
    assert len(before) == 5
    planned, *_ = list(sweep(store.plan(), store, OPTIONS))
    assert isinstance(planned, Planned) and planned.done == 5
    assert store.trials()[:5] == before
    again = list(sweep(store.plan(), store, OPTIONS))
    assert again[1:] == [Finished("p", len(store.trials()))]


def test_ctrl_c_stops_a_sweep_also_if_the_mount_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UserError("its server does not answer")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    made = SimpleNamespace(mount=SimpleNamespace(directory=Path("/mnt"), device="0:50"))
    monkeypatch.setattr(trials, "mount", lambda *_: made)
    monkeypatch.setattr(trials, "unmount", fail)
    monkeypatch.setattr(trials, "run", lambda *_, **__: None)
    monkeypatch.setattr(trials, "find", lambda _: made.mount)
    monkeypatch.setattr(trials, "_read_ahead", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(sweep(PLAN, store, replace(OPTIONS, measure=trials.run_trial)))
    assert store.trials() == []


def test_three_failures_for_one_reason_stop_the_sweep(store: Store) -> None:
    def gone(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        if trial.order < 4:
            return fake(bench, trial, check_data)
        reason = f"{trial.cell.transport} port {trial.order} refused"
        return replace(trial, status="failed", reason=reason)

    with pytest.raises(UserError, match=r"3 trials in a row failed: .* refused.*--resume"):
        list(sweep(PLAN, store, replace(OPTIONS, measure=gone)))
    assert [trial.status for trial in store.trials()] == ["ok"] * 4 + ["failed"] * 3
    list(sweep(PLAN, store, OPTIONS))
    assert {t.cell for t in store.trials() if t.ok} == set(PLAN.cells())


def test_different_failures_do_not_stop_it(store: Store) -> None:
    def flaky(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        if trial.order % 2:
            return replace(trial, status="failed", reason="abcdefgh"[trial.order % 8])
        return fake(bench, trial, check_data)

    *_, last = sweep(PLAN, store, replace(OPTIONS, measure=flaky))
    assert isinstance(last, Finished)
    assert choose(store.trials())


def test_what_is_not_offered_is_asked_for_once_per_size(store: Store) -> None:
    asked = []

    def capped(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        if trial.cell.rsize > 128 << 10:
            asked.append(trial.cell)
            reason = f"rsize: requested {trial.cell.rsize}, got 131072"
            return replace(trial, status="not_offered", reason=reason)
        return fake(bench, trial, check_data)

    list(sweep(PLAN, store, replace(OPTIONS, measure=capped)))
    refused = [t for t in store.trials() if t.status == "not_offered"]
    assert (len(asked), len(refused)) == (2, 8)
    assert {t.reason for t in refused} == {"rsize: requested 524288, got 131072"}


def test_two_sweeps_on_one_mount_point(store: Store, tmp_path: Path) -> None:
    plan = replace(PLAN, directory=str(tmp_path))
    events = sweep(plan, store, OPTIONS)
    next(events)
    twin = replace(plan, uid="q", directory=f"{tmp_path}/../{tmp_path.name}")
    with pytest.raises(UserError, match="another sweep uses"):
        next(sweep(twin, store, OPTIONS))
    with pytest.raises(UserError, match="another sweep uses plan p"):
        next(sweep(replace(plan, directory=""), store, OPTIONS))
    events.close()
    with contextlib.closing(sweep(twin, store, OPTIONS)) as again:
        next(again)


def test_what_a_section_changed_is_put_back_newest_first(store: Store, tmp_path: Path) -> None:
    knob = tmp_path / "knob"
    with journal() as book:
        book.add(Remove(str(tmp_path / "outer")))
        (tmp_path / "outer").touch()
        with pytest.raises(ZeroDivisionError), book.section():
            book.add(Write(str(knob), "first"))
            book.add(Write(str(knob), "second"))
            1 / 0  # noqa: B018
        assert knob.read_text() == "first"
        assert (tmp_path / "outer").exists()
        with pytest.raises(UserError, match="cannot undo"), book.section():
            book.add(Write(str(tmp_path / "no" / "such"), "x"))
        assert book.actions == [Remove(str(tmp_path / "outer"))]


class Probes:
    """Probes that attach nothing."""

    enabled, names, summary = True, ("cpu",), "cpu"

    def __init__(self, wanted: bool) -> None:
        self.attached = 0

    def attach(self) -> None:
        self.attached += 1

    def release(self) -> None:
        assert self.attached == 1


def test_probes_are_attached_once_between_the_file_and_the_first_trial(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attached(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        assert isinstance(bench.probes, Probes) and bench.probes.attached == 1
        return fake(bench, trial, check_data)

    monkeypatch.setattr(runner, "TrialProbes", Probes)
    events = list(sweep(replace(PLAN, runs=1), store, replace(OPTIONS, measure=attached)))
    steps = [event.what for event in events if isinstance(event, Step)]
    assert [text.partition(":")[0] for text in steps[1:]] == ["compiling the probes", "32 trials"]


def test_a_reader_waits_for_the_pause(store: Store) -> None:
    pauses = set()

    def measured(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        pauses.add(bench.pause)
        return fake(bench, trial, check_data)

    options = replace(OPTIONS, measure=measured, pause=1.5)
    list(sweep(replace(PLAN, runs=1), store, options))
    assert pauses == {1.5}


def test_an_emulated_machine_takes_longer() -> None:
    emulated = {"cpu model": "QEMU TCG CPU version 2.5+"}
    for slow, fast in (
        (progress.preparing(PLAN, emulated), progress.preparing(PLAN, {})),
        (progress.attaching(["cpu"], emulated), progress.attaching(["cpu"], {})),
        (progress.measuring(PLAN, 9, emulated), progress.measuring(PLAN, 9, {})),
    ):
        assert slow.what == fast.what
        assert slow.seconds > 2 * fast.seconds > 0


def to_line(event: Event) -> str:
    return json.dumps(to_facts(event))


def test_events_survive_their_line(store: Store) -> None:
    for event in sweep(PLAN, store, OPTIONS):
        line = to_line(event)
        assert "\n" not in line
        assert from_line(line) == event
        assert from_line(json.dumps({"schema_version": 1, **to_facts(event)})) == event


@pytest.mark.parametrize(
    "line",
    ["", "hello", "[]", "null", '{"event": "party"}', '{"event": "finished"}', '{"event": []}'],
)
def test_what_is_no_event_is_one_clear_error(line: str) -> None:
    with pytest.raises(UserError, match="not an event"):
        from_line(line)


def test_a_store_elsewhere_follows_the_events(store: Store, tmp_path: Path) -> None:
    lines = [to_line(event) for event in sweep(PLAN, store, OPTIONS)]
    with Store(tmp_path / "mirror.db") as mirror:
        *_, cut_off = follow(lines[:11], mirror)
        assert isinstance(cut_off, TrialDone) and len(mirror.trials()) == 8
        again = list(follow(["", *lines], mirror))
        assert isinstance(again[-1], Finished) and len(again) == len(lines)
        assert (mirror.plan(), mirror.trials()) == (PLAN, store.trials())
        assert mirror.environments() == store.environments()


def test_what_ended_a_sweep_elsewhere_comes_before_its_half_line(
    store: Store, tmp_path: Path
) -> None:
    told = (event for event in sweep(PLAN, store, OPTIONS) if not isinstance(event, Step))
    whole = [to_line(event) for event in told][:3]

    def cut() -> Iterator[str]:
        yield from (*whole, whole[-1][:40])
        raise CommandError(["ssh"], 255, "the node is gone")

    with Store(tmp_path / "mirror.db") as mirror:
        with pytest.raises(CommandError, match="the node is gone"):
            list(follow(cut(), mirror))
        assert len(mirror.trials()) == 2
        for lines in ((*whole, "Killed"), (whole[0], "Killed", whole[1])):
            with pytest.raises(UserError, match="not an event of a sweep: 'Killed'"):
                list(follow(lines, mirror))


def test_the_file_is_as_large_as_the_time_needs(store: Store) -> None:
    def size(bench: Bench, kept: Store) -> int:
        assert not (bench.directory / "file").exists()
        return 96 << 20

    seen = set()

    def measured(bench: Bench, trial: Trial, check_data: bool) -> Trial:
        seen.add(bench.plan.file_size)
        return fake(bench, trial, check_data)

    plan = replace(PLAN, seconds=2.0, file_size=0, direct=True, rsizes=(8 << 10,), runs=1)
    options = replace(OPTIONS, size=size, measure=measured)
    first, *steps = (e for e in sweep(plan, store, options) if isinstance(e, Planned | Step))
    assert isinstance(first, Planned) and first.plan == plan
    assert [step.what for step in steps if isinstance(step, Step)] == [
        "measuring how large the test file has to be for trials of 2 s",
        "making and reading the 96M test file once over tcp and rdma",
        "2 trials of up to 2 s, after a warm-up of 0.4 s; a trial reads the file again when it is "
        "at its end (O_DIRECT)",
    ]
    assert seen == {96 << 20}
    assert store.plan() == plan


MIB = 1 << 20


def has_room(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    """The export has as much room."""
    monkeypatch.setattr(runner, "_mounted", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=mib, f_frsize=MIB))


@pytest.mark.parametrize(
    ("changes", "rate", "free", "sizes", "size"),
    [
        # 12 MB/s: the first file takes longer than a trial
        ({}, 12e6, 10**12, [64], 80),
        # 3 GB/s: 64 MiB are too short, 512 MiB, too, 4 GiB not
        ({}, 3e9, 10**12, [64, 512, 4096], 20480),
        ({"seconds": 1.0}, 3e9, 10**12, [64, 512], 3584),
        # no more than there is room for
        ({}, 3e9, 1024, [64, 512, 1024], 1024),
        # read again, so no more than needed for one pass
        ({"direct": True}, 12e9, 10**12, [64, 512, 1024], 1024),
        ({"direct": True}, 12e6, 10**12, [64], 80),
        # buffered reads end with the file
        ({"with_direct": True}, 3e9, 10**12, [64, 512, 4096], 20480),
    ],
)
def test_larger_and_larger_files_tell_the_size(
    store: Store, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], rate: float, free: int,
    sizes: list[int], size: int,
) -> None:  # fmt: skip
    """``free``, ``sizes`` and ``size`` are in MiB, ``rate`` in bytes per second."""
    made = []

    def sample(bench: Bench, kept: Store, size: int) -> float:
        made.append(size // MIB)
        return size / rate

    monkeypatch.setattr(runner, "_sample", sample)
    has_room(monkeypatch, 2 * free)
    plan = replace(PLAN, **{"seconds": 5.0, "file_size": 0, **changes})
    with journal() as changes_of_host:
        bench = Bench(plan, Path(), changes_of_host)
        store.add_plan(plan)
        file_size = runner.file_size(bench, store)
        assert (made, file_size // MIB) == (sizes, size)
        assert replace(plan, file_size=file_size).file_size == file_size
        # a resumed sweep has the same file
        assert runner.file_size(bench, store) == file_size
    assert made == sizes


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
@pytest.mark.parametrize(
    "changes",
    [{"jobs": (1, 2)}, {"direct": True}, {"with_direct": True},
     {"direction": "write", "jobs": (2,)}],
    ids=["jobs", "direct", "with_direct", "write"],
)  # fmt: skip
def test_real_files_tell_the_size_and_leave_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """A folder of this host stands for the mount."""
    monkeypatch.setattr(runner, "mounted", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(runner, "ready", lambda *_: None)
    monkeypatch.setattr(runner, "_SAMPLE", MIB)
    folder = tmp_path / "export"
    folder.mkdir()
    fields: dict[str, Any] = {"seconds": 1e-6, "file_size": 0, "rsizes": (65536,), **changes}
    plan = replace(PLAN, **fields)
    with journal() as book:
        file_size = runner.file_size(Bench(plan, folder, book), store)
    # a microsecond needs less than the least size
    assert file_size == MIB
    assert list(folder.iterdir()) == []
    assert store.noted(plan, "file .nfsrdma-sweep-1M") == ""


def test_an_error_of_the_store_ends_a_sweep_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certify tells it from a fault of the server."""
    store: Any = SimpleNamespace(path=tmp_path / "s.db")
    for name in ("_make", "_blind_run"):
        monkeypatch.setattr(runner, name, lambda *_: None)
    bench: Any = SimpleNamespace(plan=replace(PLAN, file_size=1 << 20))
    monkeypatch.setattr(runner, "_clean_up", lambda *_: "the file stays on the server")
    with pytest.raises(DiskFullError), runner.file_on_server(bench, store, keep=False):
        raise DiskFullError(store.path)


def test_an_export_without_room_is_a_clear_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_room(monkeypatch, 127)
    with journal() as changes, pytest.raises(UserError, match="less than 128M of free space"):
        runner.file_size(Bench(replace(PLAN, seconds=5.0, file_size=0), Path(), changes), store)


KILLED = """
import sys, time
from pathlib import Path
from nfsrdma_tools.sweep.runner import sweep
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.undo import Write
from unit.sweep.test_runner import OPTIONS, PLAN, fake, replace

def changing(bench, trial, check_data):
    knob = Path(sys.argv[2])
    bench.changes.add(Write(str(knob), "old"))
    knob.write_text("new")
    if trial.order == 3:
        print("ready", flush=True)
        time.sleep(60)
    bench.changes.drop(bench.changes.actions[-1])
    return fake(bench, trial, check_data)

with Store(Path(sys.argv[1])) as store:
    for event in sweep(PLAN, store, replace(OPTIONS, measure=changing)):
        pass
"""


def test_after_kill_9_resume_puts_back_and_goes_on(store: Store, tmp_path: Path) -> None:
    knob = tmp_path / "knob"
    argv = [sys.executable, "-c", KILLED, str(store.path), str(knob)]
    victim = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert victim.stdout and victim.stdout.readline() == b"ready\n"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert knob.read_text() == "new"
    assert len(store.trials()) == 3
    (left,) = (tmp_path / "state").glob("mnt-*")
    (left / "file").unlink()
    planned, *_ = list(sweep(store.plan(), store, OPTIONS))
    assert isinstance(planned, Planned) and planned.done == 3
    assert knob.read_text() == "old"


def test_the_environment_reaches_json(store: Store) -> None:
    first = json.loads(to_line(next(sweep(PLAN, store, OPTIONS))))
    assert (first["event"], first["environment"]["cpus"]) == ("planned", str(os.cpu_count()))
