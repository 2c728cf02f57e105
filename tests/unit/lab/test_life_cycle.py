# SPDX-License-Identifier: Apache-2.0
"""Folders of labs, and their owners: killed, slow or interrupted, with real processes and locks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import lab, paths
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.nodes import read_state
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

NAME = "x"
# an owner: ready as soon as the file "go" exists
OWNER = """#!{python}
import json, os, sys, time
from pathlib import Path
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lock import file_lock
from nfsrdma_tools.identity import of_this_process
folder = paths.lab_dir("x")
folder.mkdir(exist_ok=True)
def save(phase):
    state = {{"phase": phase, "owner": of_this_process()}}
    (folder / "draft").write_text(json.dumps(state))
    (folder / "draft").rename(folder / "state.json")
with file_lock(paths.lab_lock("x")):
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
    monkeypatch.setattr(lab, "prepare", lambda *_: None)
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
    monkeypatch.setattr(lab, "time", fake)


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
        lab.down(NAME)
    assert other.poll() is None


def test_down_ends_the_owner_of_a_lab(program: Path, labs: Path) -> None:
    (labs / "go").touch()
    lab.up(LabConfig(NAME), lambda _: None)
    lab.down(NAME)
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
    monkeypatch.setattr(lab, "_STOP_SECONDS", 1 << 30)
    lab.down(NAME)
    assert owners[0].wait() == -signal.SIGTERM


def pid_of(identity: str) -> int:
    return int(identity.partition("-")[0])


def test_a_boot_may_take_longer_than_five_minutes(
    program: Path, labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, lambda looks: (labs / "go").touch() if looks == 4 else None)
    lab_state = lab.up(LabConfig(NAME), lambda _: None)
    assert lab_state["phase"] == "ready"
    os.kill(pid_of(lab_state["owner"]), signal.SIGKILL)


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
        lab.up(LabConfig(NAME), lambda _: None)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_supervisor_that_fails_is_reported(
    labs: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text("#!/bin/sh\necho 'no disk is free' >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"^the lab failed to start: no disk is free$"):
        lab.up(LabConfig(NAME), lambda _: None)


def test_what_killed_owners_left_goes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("dead", "alive", "elsewhere"):
        for folder in (paths.lab_dir(name), paths.disks_dir() / name):
            paths.create_lab_folder(folder)
            (folder / "disk").write_bytes(bytes(8192))
    # brought up with another XDG_RUNTIME_DIR
    shutil.rmtree(paths.lab_dir("elsewhere"))
    with (
        try_file_lock(paths.lab_lock("alive")) as alive,
        try_folder_lock(paths.disks_dir() / "elsewhere") as elsewhere,
    ):
        assert alive
        assert elsewhere
        assert lab.remove_stale_labs() >= 8192
        assert lab.remove_stale_labs() == 0
        assert sorted(path.name for path in paths.disks_dir().iterdir()) == ["alive", "elsewhere"]
        assert sorted(path.name for path in paths.labs_dir().iterdir()) == ["alive", "alive.lock"]
    assert lab.remove_stale_labs() >= 8192
    assert list(paths.labs_dir().iterdir()) == []


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "home/thesis").mkdir(parents=True)
    (tmp_path / "home/thesis/text").write_text("kept")
    return tmp_path


def test_a_link_in_place_of_the_labs_is_refused(homes: Path) -> None:
    """Anyone can make the name first in /tmp."""
    (homes / "nfsrdma-labs").symlink_to(homes / "home")
    for use in (paths.labs_dir, lab.remove_stale_labs, lambda: paths.lab_lock("x")):
        with pytest.raises(UserError, match=r"nfsrdma-labs: expected a directory .*found lrwx"):
            use()
    assert (homes / "home/thesis/text").read_text() == "kept"
    (homes / "nfsrdma-labs").unlink()
    (homes / "nfsrdma-labs").symlink_to(homes / "nothing")
    with pytest.raises(UserError, match="found lrwx"):
        paths.labs_dir()


def test_a_folder_of_labs_that_others_reach_is_refused(homes: Path) -> None:
    labs = paths.labs_dir()
    assert labs.stat().st_mode & 0o777 == 0o700
    labs.chmod(0o750)
    with pytest.raises(UserError, match="found drwxr-x---"):
        paths.labs_dir()
    labs.chmod(0o700)
    homes.chmod(0o777)
    with pytest.raises(UserError, match="found drwxrwxrwx"):
        paths.labs_dir()
    homes.chmod(0o1777)
    assert paths.labs_dir() == labs
    paths.cache_dir().chmod(0o777)
    with pytest.raises(UserError, match=r"found drwxrwxrwx .*set XDG_CACHE_HOME"):
        paths.cache_dir()


def test_the_cache_may_be_a_link_to_a_folder(homes: Path) -> None:
    (homes / "cache").mkdir()
    (homes / "cache/nfsrdma").symlink_to(homes / "home")
    assert paths.cache_dir() == homes / "cache/nfsrdma"
    (homes / "home").rename(homes / "away")
    with pytest.raises(UserError, match="found lrwx"):
        paths.cache_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_folder_of_labs_of_another_user_is_refused(homes: Path) -> None:
    for folder in (paths.labs_dir(), homes, paths.cache_dir()):
        os.chown(folder, 1000, 1000)
        with pytest.raises(UserError, match="of uid 1000"):
            lab.remove_stale_labs()
        os.chown(folder, 0, 0)
    assert lab.remove_stale_labs() == 0


def test_only_folders_of_labs_are_removed(homes: Path) -> None:
    other, link = paths.labs_dir() / "thesis", paths.disks_dir() / "link"
    paths.disks_dir().mkdir()
    shutil.copytree(homes / "home/thesis", other)
    link.symlink_to(homes / "home")
    (paths.labs_dir() / "empty").mkdir()
    assert lab.remove_stale_labs() == 0
    assert sorted(path.name for path in paths.labs_dir().iterdir()) == ["thesis"]
    assert link.is_symlink()
    for folder in (other, link):
        with pytest.raises(UserError, match="expected a folder of a lab"):
            lab.remove_folder(folder)
    assert (other / "text").read_text() == (homes / "home/thesis/text").read_text() == "kept"


def test_a_link_in_a_cache_is_removed_but_not_its_target(homes: Path) -> None:
    (homes / "link").symlink_to(homes / "home")
    lab._remove_path(homes / "link")
    assert not (homes / "link").is_symlink()
    assert (homes / "home/thesis/text").read_text() == "kept"


def test_a_folder_that_is_still_written_to_stays_a_folder_of_a_lab(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = paths.lab_dir("x")
    paths.create_lab_folder(folder)
    rmdir = Path.rmdir

    def write_while_removing(path: Path) -> None:
        (path / "console").touch()
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", write_while_removing)
    with pytest.raises(OSError, match="not empty"):
        lab.remove_folder(folder)
    monkeypatch.undo()
    assert paths.is_lab_folder(folder)
    lab.remove_folder(folder)
    assert not folder.exists()
