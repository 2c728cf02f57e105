# SPDX-License-Identifier: Apache-2.0
"""A sweep in a lab of its own: killed in the middle, resumed, and reported."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Store

SWEEP = (sys.executable, "-m", "nfsrdma_tools", "sweep")
GRID = ("--rsize", "8k,32k", "--read-ahead", "0,1", "--file-size", "4M", "--runs", "1")


@pytest.mark.main
def test_a_killed_sweep_in_a_lab_has_lost_nothing_and_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "sweep.db"
    argv = (*SWEEP, "--lab", *GRID, "--output", str(store), "--json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as sweep:
        assert sweep.stdout is not None
        events = (json.loads(line) for line in sweep.stdout)
        told = [next(e for e in events if e["event"] == "trialdone") for _ in range(3)]
        sweep.send_signal(signal.SIGKILL)
    with Store(store) as kept:
        before = kept.trials()
    # all printed trials are stored; one more may have been stored before the kill
    assert [t.cell.key for t in before][:3] == [_key(e) for e in told]
    again = (*SWEEP, "--lab", "--resume", str(store))
    done = subprocess.run(again, capture_output=True, text=True, check=True)
    assert "8 trials, 8 succeeded" in done.stdout
    with Store(store) as kept:
        after = kept.trials()
    assert after[: len(before)] == before
    assert len({t.cell for t in after}) == 8
    assert all(t.verified and t.transfer.throughput > 0 for t in after)
    clocks = {facts["lab clock"] for facts in kept_environments(store)}
    assert clocks == {"instructions"}
    report = (sys.executable, "-m", "nfsrdma_tools", "report", str(store), "--json")
    told = json.loads(subprocess.run(report, capture_output=True, check=True).stdout)
    assert (told["missing"], told["plan"]) == ([], plan(store))
    assert all(Path(figure).stat().st_size for figure in told["figures"])
    assert "throughput" in Path(told["page"]).read_text()


@pytest.mark.nightly
def test_modules_are_exchanged_in_a_lab_and_a_personality_is_an_axis(tmp_path: Path) -> None:
    store = tmp_path / "sweep.db"
    words = ("--transport", "tcp,rdma,nfsrdma", "--axis", "personality=read-write,padded")
    grid = ("--rsize", "8k", "--read-ahead", "1", "--file-size", "4M", "--runs", "2")
    argv = (*SWEEP, "--lab", *words, *grid, "--output", str(store))
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "tune apply" not in done.stdout
    with Store(store, read_only=True) as kept:
        trials = kept.trials()
    assert all(t.ok for t in trials)
    used = {(t.cell.transport, t.cell.personality) for t in trials}
    ours = {("nfsrdma", "read-write"), ("nfsrdma", "padded")}
    assert used == {("tcp", None), ("rdma", None)} | ours
    assert all(bool(t.rpc.rdma) == (t.cell.transport != "tcp") for t in trials)


def plan(store: Path) -> str:
    with Store(store, read_only=True) as kept:
        return kept.plan().uid


def kept_environments(store: Path) -> list[dict[str, str]]:
    with Store(store, read_only=True) as kept:
        return list(kept.environments().values())


def _key(event: dict[str, dict[str, Any]]) -> str:
    return Cell.from_json(event["trial"]["cell"]).key
