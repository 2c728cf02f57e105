# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from unit import forked
from unit.sweep.surfaces import SURFACES, sweep
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.cli import sweep as cli_sweep
from nfsrdma_tools.cli.sweep_view import Progress, conclusion
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.progress import Planned, Step, TrialDone
from nfsrdma_tools.sweep.store import Store


def nfsrdma(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"NFSRDMA_STATE": str(cwd / "state"), "PATH": "/usr/bin:/bin"}
    return forked.nfsrdma(*words, cwd=cwd, env=env)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("sweep",), 2, "the export is missing"),
        (("sweep", "server"), 2, "not an NFS target"),
        (("sweep", "s:/e", "--preset", "huge"), 2, "unknown preset 'huge'"),
        (("sweep", "s:/e", "--transport", "udp"), 2, "unknown value 'udp'"),
        (("sweep", "s:/e", "--axis", "x"), 2, "has no values"),
        (("sweep", "s:/e", "--axis", "../x=1"), 2, "not a tunable"),
        (("sweep", "s:/e", "--axis", "personality=cached"), 2, "--transport: tcp,rdma,nfsrdma"),
        (
            ("sweep", "s:/e", "--transport", "nfsrdma", "--axis", "personality=fast"),
            2,
            "unknown value 'fast' (use read-write, read-read, padded, pre-posted, cached, "
            "optimistic)",
        ),
        (("sweep", "s:/e", "--read-ahead", "-1..4"), 2, "not a number"),
        (("sweep", "s:/e", "--read-ahead", "4", "--read-ahead-kb", "4"), 2, "exclude each other"),
        (("sweep", "s:/e", "--rsize", "1M", "--read-ahead-kb", "128"), 2, "multiple of an rsize"),
        (("sweep", "s:/e", "--rsize", "4k;reboot"), 2, "not a size"),
        (("sweep", "s:/e", "--resume", "s.db"), 2, "exclude each other"),
        (("sweep", "s:/e", "--write", "--depth", "8"), 2, "--depth needs --direct"),
        (("sweep", "s:/e", "--jobs", "0"), 2, "least value of runs, nconnect, jobs, depth"),
        (("sweep", "s:/e", "--seconds", "-1"), 2, "seconds: expected 0 to 3600, found -1"),
        (("sweep", "--lab", "--lab-clock", "sundial"), 2, "clock is 'sundial'"),
        (("sweep", "--lab", "--lab-kernel", "2.4"), 2, "kernel is '2.4'"),
        (("sweep", "--lab", "--lab-link", "fast"), 2, "'fast' is not a link"),
        (("sweep", "--resume", "/etc/passwd"), 1, "not a database"),
        (("sweep", "--resume", "s.db"), 1, "no store s.db to resume"),
        (("results", "export", "none.db"), 1, "no store none.db"),
    ],
)
def test_mistakes_end_in_one_line_and_touch_nothing(
    tmp_path: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    done = nfsrdma(*words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (status, True), done
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_results_export_prints_what_is_stored(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        trials = sweep(SURFACES["measured"](), "racing", 0.001, 1)
        for trial in trials:
            store.add_trial(trial)
    exported = nfsrdma("results", "export", "s.db", cwd=tmp_path)
    assert exported.returncode == 0
    assert len(exported.stdout.splitlines()) == len(trials) + 1
    assert nfsrdma("results", "export", "s.db", "--format", "xml", cwd=tmp_path).returncode == 2
    facts = json.loads(nfsrdma("results", "export", "s.db", "-j", cwd=tmp_path).stdout)
    assert (facts["schema_version"], len(facts["trials"])) == (1, len(trials))


def test_the_conclusion_names_the_winners_and_what_is_next(tmp_path: Path) -> None:
    plan = Plan("s:/e", uid="p")
    with Store(tmp_path / "s; .db") as store:
        trials = sweep(SURFACES["sharp"](), "racing", 0.001, 1)
        for trial in trials:
            store.add_trial(trial)
        bad = replace(trials[0], run=9, status="failed", reason="gone\x1b[31m\nfor good")
        store.add_trial(bad)
        text = "\n".join(conclusion(plan, store, done=False))
    assert "best: rdma 128k, 1 ahead: 10" in text and "best over tcp: tcp 128k, 4 ahead: 9" in text
    assert "39 trials, 38 succeeded" in text and ", read_ahead_kb 128" in text
    options = "vers=4.2,proto=rdma,port=20049,rsize=131072"
    assert f"\nfstab: s:/e  /MOUNT/POINT  nfs  {options}  0 0\n" in text
    assert f"\nmount: mount -t nfs -o {options} s:/e /MOUNT/POINT\n" in text
    assert "1 failed: gone?[31m?for good" in text
    assert f"next: nfsrdma sweep --resume '{tmp_path}/s; .db'" in text


def test_progress_in_a_file_says_what_begins_and_what_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials = sweep(SURFACES["measured"](), "racing", 0.001, 1)
    now = [0.0]
    with Progress(lambda: now[0]) as view:
        view.show(Planned(Plan("s:/e", vers="3"), {"probe sets": "none: not requested"}, 4, 36))
        view.show(Step("compiling the probes: cpu", 25))
        view.show(Step("32 trials", 130))
        for done, trial in enumerate(trials[:8], 5):
            now[0] += 4
            view.show(TrialDone(trial, done, 36))
    lines = [line for line in capsys.readouterr().out.splitlines() if "MB/s" not in line]
    assert lines == [
        "probe sets: none: not requested",
        "NFS version: 3 (`nfsrdma mount` uses 4.2; --vers selects another)",
        "sweep: compiling the probes: cpu (about 25 s)",
        "sweep: 32 trials (about 2 min)",
        "sweep: 9 of 36 trials, about 2 min left",
    ]


@pytest.mark.parametrize(
    ("given", "node", "fields"),
    [
        ((None, None, None, False), False, {"seconds": 5.0, "file_size": 0}),
        ((None, None, "full", False), False, {"seconds": 5.0, "file_size": 0}),
        ((0.0, None, "full", False), False, {}),
        ((None, None, "hardware", False), False, {"seconds": 5.0, "file_size": 0}),
        ((None, None, "hardware", True), False, {}),
        ((2.0, None, None, False), False, {"seconds": 2.0, "file_size": 0}),
        # as large as the user, the paper or the lab's slow machines have it
        ((None, "4M", None, False), False, {}),
        ((2.0, "4M", None, False), False, {}),
        ((None, None, "paper2003", False), False, {}),
        ((None, None, None, True), False, {}),
        ((None, None, None, False), True, {}),
        # unless the user wants a time
        ((2.0, None, None, True), False, {"seconds": 2.0, "file_size": 0}),
        ((2.0, None, "paper2003", False), True, {"seconds": 2.0, "file_size": 0}),
    ],
)
def test_a_trial_on_hardware_is_by_time(
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[float | None, str | None, str | None, bool],
    node: bool,
    fields: dict[str, float],
) -> None:
    monkeypatch.setattr("nfsrdma_tools.sweep.conditions.lab_facts", lambda: node)
    assert cli_sweep._length(*given) == fields


@pytest.mark.parametrize(
    ("lab", "node", "name"),
    [(False, {}, "hardware"), (True, {}, "quick"), (False, {"lab clock": "wall"}, "quick")],
)
def test_the_default_preset_on_a_host_is_hardware(
    monkeypatch: pytest.MonkeyPatch, lab: bool, node: dict[str, str], name: str
) -> None:
    monkeypatch.setattr("nfsrdma_tools.sweep.conditions.lab_facts", lambda: node)
    assert cli_sweep._default_preset(lab) == name


def test_a_trial_that_reads_the_file_again_or_ends_with_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("s:/e", uid="p", seconds=5.0)
    cells = plan.cells()
    again = trial_of("p", cells[0], 1, 0, throughput=9.0, bytes=5 << 20, file_size=2 << 20,
                  duration_ns=5 * 10**9)  # fmt: skip
    short = with_columns(again, cell=cells[1], bytes=2 << 20, duration_ns=3 * 10**9)
    cut = with_columns(again, cell=cells[2], bytes=1 << 20)
    with Store(tmp_path / "s.db") as store, Progress() as view:
        for trial in (again, short, cut):
            store.add_trial(trial)
            view.show(TrialDone(trial, 1, 3))
        endings = [line.partition("CPU")[2] for line in capsys.readouterr().out.splitlines()]
        assert endings == [", 2.5 times the file", "", ""]
        text = "\n".join(conclusion(plan, store, done=True))
        assert "  1 trials are short: the file ended after 3 s or more, of 5 s; free" in text
        assert "short" not in "\n".join(conclusion(replace(plan, seconds=0.0), store, True))


def test_a_complete_sweep_says_why_it_did_not_try_cells(tmp_path: Path) -> None:
    plan = Plan("s:/e", uid="p", minutes=2.0)
    trial = trial_of("p", plan.cells()[0], 1, 0, throughput=9.0, bytes=1, total_ns=10**9)
    with Store(tmp_path / "s.db") as store:
        store.add_trial(trial)
        text = "\n".join(conclusion(plan, store, done=True))
        assert "  31 cells not tried: fewer jobs, depth, nconnect already gained" in text
        assert "not tried" not in "\n".join(conclusion(plan, store, done=False))
        store.add_trial(replace(trial, run=2, total_ns=119 * 10**9))
        text = "\n".join(conclusion(plan, store, done=True))
        assert "  31 cells not tried: the sweep ended after 2 min of trials (--minutes)" in text


def test_a_sweep_in_a_lab_is_resumed_in_one(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        for trial in sweep(SURFACES["sharp"](), "racing", 0.001, 1):
            store.add_trial(trial)
        again = ["--lab", "--lab-link=none"]
        text = "\n".join(conclusion(Plan("s:/e", uid="p"), store, False, again))
    assert "fstab" not in text
    # a lab's figures are no reason to tune this host
    assert f"next: nfsrdma report {tmp_path}/s.db" in text.splitlines()
    assert f"next: nfsrdma sweep --lab --lab-link=none --resume {tmp_path}/s.db" in text


def test_the_conclusion_compares_transports_and_names_the_full_cpu(tmp_path: Path) -> None:
    figures = {"tcp": (100.0, 8), "rdma": (150.0, 4), "nfsrdma": (150.1, 4)}
    plan = Plan("s:/e", uid="p", transports=tuple(figures), rsizes=(8192,), read_aheads=(4,))
    with Store(tmp_path / "s.db") as store:
        for run in (1, 2, 3):
            for order, (name, (speed, cost)) in enumerate(figures.items()):
                cell = Cell(name, 8192, 4)
                made = trial_of("p", cell, run, order, throughput=speed + 0.1 * run, bytes=1 << 20)
                store.add_trial(with_columns(made, busy_ns=cost << 20, cpu_share=0.99, status="ok"))
        lines = conclusion(plan, store, done=True)
    assert "nfsrdma against tcp: 1.50 times as fast, 0.50 of its CPU time per byte" in lines
    assert "nfsrdma against rdma: no significant difference" in lines
    assert "limit of the best cell: the CPU, 99% busy" in lines


@pytest.mark.parametrize(
    ("deep", "words"),
    [
        (
            150.0,
            [
                "best: rdma 64k, direct, depth 8: 150.20 MB/s, 0% CPU (3 runs, spread 0.07%)",
                "  direct against buffered: 1.50 times as fast, 0.50 of its CPU time per byte; "
                "best buffered: rdma 64k, 4 ahead (100.20), read_ahead_kb 256",
            ],
        ),
        (
            50.0,
            [
                "best: rdma 64k, 4 ahead: 100.20 MB/s, 0% CPU (3 runs, spread 0.10%), "
                "read_ahead_kb 256",
                "  buffered against direct: 2.00 times as fast, 2.00 of its CPU time per byte; "
                "best direct: rdma 64k, direct, depth 8 (50.20)",
            ],
        ),
        (
            100.0,
            [
                "best: rdma 64k, direct, depth 8: 100.20 MB/s, 0% CPU (3 runs, spread 0.10%)",
                "  direct against buffered: no significant difference; "
                "best buffered: rdma 64k, 4 ahead (100.20), read_ahead_kb 256",
            ],
        ),
    ],
)
def test_the_conclusion_says_whether_buffered_or_direct_reads_win(
    tmp_path: Path, deep: float, words: list[str]
) -> None:
    plan = Plan("s:/e", uid="p", transports=("rdma",), rsizes=(65536,), read_aheads=(0, 4),
                depths=(1, 8), with_direct=True)  # fmt: skip
    with Store(tmp_path / "s.db") as store:
        for run in (1, 2, 3):
            for order, cell in enumerate(plan.cells()):
                speed = 25.0 * cell.read_ahead if cell.read_ahead else 10.0
                speed = deep if cell.depth > 1 else speed
                made = trial_of("p", cell, run, order, throughput=speed + 0.1 * run, bytes=1 << 20)
                store.add_trial(with_columns(made, busy_ns=(4 if cell.direct else 8) << 20))
        assert conclusion(plan, store, done=True)[:2] == words


def test_depth_without_direct_measures_both_kinds() -> None:
    assert cli_sweep._has_both_kinds("1,8", direct=False, write=False)
    assert cli_sweep._has_both_kinds("1,8", direct=True, write=False) is None
    assert cli_sweep._has_both_kinds(None, direct=False, write=False) is None


def test_a_sweep_that_measured_nothing_recommends_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert conclusion(Plan("s:/e"), store, done=True) == ["0 trials, 0 succeeded"]


def test_a_sweep_with_the_version_of_mount_says_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress() as view:
        view.show(Planned(Plan("s:/e", vers="4.2"), {}, 0, 4))
    assert "NFS version" not in capsys.readouterr().out
