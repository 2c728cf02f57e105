# SPDX-License-Identifier: Apache-2.0
"""Owners of labs that are killed, slow or interrupted, with real processes and locks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import paths, supervisor
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.nodes import read_state
from nfsrdma_tools.lock import try_file_lock

NAME = "x"
# an owner: ready as soon as the file "go" exists
OWNER = """#!{python}
import json, os, sys, time
from pathlib import Path
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lock import try_file_lock
from nfsrdma_tools.identity import of_this_process
folder = paths.lab_dir("x")
folder.mkdir(exist_ok=True)
def save(phase):
    state = {{"phase": phase, "owner": of_this_process()}}
    (folder / "draft").write_text(json.dumps(state))
    (folder / "draft").rename(folder / "state.json")
with try_file_lock(paths.lab_lock("x")):
    save("starting")
    while not Path("{go}").exists():
        time.sleep(0.01)
    save("ready")
    time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def program(labs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The owner as the interpreter that ``up`` starts."""
    file = labs / "owner"
    file.write_text(OWNER.format(python=sys.executable, go=labs / "go"))
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setattr(supervisor, "prepare", lambda *_: None)
    return file


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"])
    yield process
    process.kill()
    process.wait()


def state(pid: int, start: str = "1") -> None:
    paths.lab_dir(NAME).mkdir(exist_ok=True)
    text = json.dumps({"phase": "ready", "pid": pid, "owner": f"{pid}-{start}"})
    (paths.lab_dir(NAME) / "state.json").write_text(text)


def clock(monkeypatch: pytest.MonkeyPatch, step: Callable[[int], None]) -> None:
    """Six minutes pass between two looks at the lab."""
    looks: list[float] = [0.0]

    def sleep(_: float) -> None:
        looks.append(looks[-1] + 360)
        step(len(looks))
        time.sleep(0.01)

    fake = SimpleNamespace(sleep=sleep, monotonic=lambda: looks[-1])
    monkeypatch.setattr(supervisor, "time", fake)


def test_the_state_of_a_killed_owner_is_not_that_of_the_next_one(program: Path, labs: Path) -> None:
    (labs / "go").touch()
    owner = subprocess.Popen([program])
    while read_state(NAME).get("phase") != "ready":
        assert owner.poll() is None
    owner.kill()
    # also while it is a zombie
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    with try_file_lock(paths.lab_lock(NAME)) as mine:
        assert mine
        assert read_state(NAME) == {"phase": "starting"}
        owner.wait()
        assert read_state(NAME) == {"phase": "starting"}
    assert read_state(NAME) == {}


def test_down_does_not_signal_a_process_that_got_the_pid_of_an_owner(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state(other.pid)
    clock(monkeypatch, lambda _: None)
    with try_file_lock(paths.lab_lock(NAME)), pytest.raises(UserError, match="is still up"):
        supervisor.down(NAME)
    assert other.poll() is None


def test_down_ends_the_owner_of_a_lab(program: Path, labs: Path) -> None:
    (labs / "go").touch()
    supervisor.up(LabConfig(NAME), lambda _: None)
    supervisor.down(NAME)
    assert read_state(NAME) == {}


def test_down_of_a_lab_that_begins_to_start_waits_for_its_owner(
    program: Path, labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[subprocess.Popen[bytes]] = []

    def step(looks: int) -> None:
        if looks == 2:
            lock.__exit__(None, None, None)
            owners.append(subprocess.Popen([program]))
            while "owner" not in read_state(NAME):
                assert owners[0].poll() is None

    lock = try_file_lock(paths.lab_lock(NAME))
    lock.__enter__()
    clock(monkeypatch, step)
    monkeypatch.setattr(supervisor, "_SECONDS", 1 << 30)
    supervisor.down(NAME)
    assert owners[0].wait() == -signal.SIGTERM


def pid_of(identity: str) -> int:
    return int(identity.partition("-")[0])


def test_a_boot_may_take_longer_than_five_minutes(
    program: Path, labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, lambda looks: (labs / "go").touch() if looks == 4 else None)
    found = supervisor.up(LabConfig(NAME), lambda _: None)
    assert found["phase"] == "ready"
    os.kill(pid_of(found["owner"]), signal.SIGKILL)


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("x")])
def test_an_interrupted_start_leaves_no_supervisor(
    error: BaseException, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def step(_: int) -> None:
        if owner := read_state(NAME).get("owner"):
            pids.append(pid_of(owner))
            raise error

    clock(monkeypatch, step)
    with pytest.raises((KeyboardInterrupt, UserError)):
        supervisor.up(LabConfig(NAME), lambda _: None)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_supervisor_that_fails_is_reported(
    labs: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text("#!/bin/sh\necho 'no disk is free' >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"^the lab failed to start: no disk is free$"):
        supervisor.up(LabConfig(NAME), lambda _: None)
