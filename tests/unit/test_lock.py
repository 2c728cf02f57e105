# SPDX-License-Identifier: Apache-2.0
"""A lock has one holder, leaves no file, and is out of reach of other users."""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.state import ModuleState, module_state, server_state, tune_state
from nfsrdma_tools.lock import file_lock, holder, host_lock, try_file_lock, try_folder_lock


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_only_a_writer_makes_the_folder_of_locks(state: Path) -> None:
    assert module_state.load() is None
    assert not state.exists()
    module_state.save(ModuleState("/x.ko"))
    assert state.stat().st_mode & 0o777 == 0o700
    assert module_state.load() == ModuleState("/x.ko")


def test_a_lock_file_has_one_holder_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with try_file_lock(path) as first, try_file_lock(path) as second:
            assert (first, second) == (True, False)
            assert path.exists()
        assert not path.exists()


def test_a_lock_file_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    # of a holder that was killed
    path.write_text("123456789012")
    assert holder(path) == 1234567890
    with try_file_lock(path), try_file_lock(path):
        assert holder(path) == os.getpid()
    assert holder(path) is None
    for text in ("", "-5", "1\n2", "\udcff"):
        path.write_text(text, errors="surrogateescape")
        assert holder(path) is None


def test_a_lock_file_that_its_holder_removed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "lock", list[int]()

    def late(*args: Any) -> int:
        handle = real(*args)
        opened.append(handle)
        if len(opened) == 1:
            path.unlink()
        return handle

    real = os.open
    monkeypatch.setattr(os, "open", late)
    with try_file_lock(path) as taken:
        assert taken
        assert path.exists()
    assert len(opened) == 2


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    with try_folder_lock(tmp_path) as first, try_folder_lock(tmp_path) as second:
        assert (first, second) == (True, False)
    with try_folder_lock(tmp_path) as taken:
        assert taken
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="cannot lock"), try_folder_lock(tmp_path / "none"):
        pass


def test_a_busy_lock_is_an_error(state: Path) -> None:
    busy = UserError("another one")
    with host_lock("mount", "/mnt/a", busy), host_lock("mount", "/mnt/b", busy):
        # twice: the refused one does not remove the holder's file
        for _ in range(2):
            with pytest.raises(UserError, match="another one"), host_lock("mount", "/mnt/a", busy):
                pass
    with host_lock("mount", "/mnt/a", busy):
        pass
    assert list(state.iterdir()) == []


def test_the_next_holder_waits(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []

    def second() -> None:
        with file_lock(path):
            order.append("second")

    with file_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not path.exists()


def test_a_lock_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(UserError, match="cannot lock"), file_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "made").exists()


TRY = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDONLY)
        print("opened", path)
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    # the folders of other tests are closed to other users
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state, cache = Path(folder, "state"), Path(folder, "cache")
        cache.mkdir(mode=0o755)
        monkeypatch.setenv("NFSRDMA_STATE", str(state))
        with host_lock("tune"), file_lock(cache / "lock"):
            paths = [cache / "lock", state / "tune.lock", state]
            assert all(path.exists() for path in paths)
            argv = ("/usr/bin/python3", "-I", "-c", TRY, *map(str, paths))
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["refused"] * 3


@pytest.mark.parametrize(
    ("locked", "folder"),
    [
        (tune_state.locked, "/etc"),
        (module_state.locked, "/sys/module"),
        (server_state.locked, "state"),
    ],
)
def test_a_lock_on_a_folder_blocks_nothing(
    locked: Callable[[], AbstractContextManager[None]], folder: str, state: Path
) -> None:
    """Any user can run `flock /etc sleep inf`."""
    state.mkdir()
    with try_folder_lock(state.parent / folder) as taken, locked():
        assert taken
