# SPDX-License-Identifier: Apache-2.0
"""A lock has one holder, and leaves no file unless the caller requests one."""

import os
import threading
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lock import file_lock, folder_lock, try_file_lock, try_folder_lock


def test_a_lock_file_has_one_holder_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with try_file_lock(path) as first, try_file_lock(path) as second:
            assert (first, second) == (True, False)
            assert path.exists()
        assert not path.exists()


def test_a_lock_file_that_its_holder_removed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "lock", []

    def late(*args: object) -> int:
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
    busy = UserError("another one")
    with folder_lock(tmp_path, busy):
        with pytest.raises(UserError, match="another one"), folder_lock(tmp_path, busy):
            pass
        with try_folder_lock(tmp_path) as taken:
            assert not taken
    with try_folder_lock(tmp_path) as taken:
        assert taken
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="cannot lock"), folder_lock(tmp_path / "none"):
        pass


@pytest.mark.parametrize("lock", [file_lock, folder_lock])
def test_the_next_holder_waits(lock, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path, order = tmp_path if lock is folder_lock else tmp_path / "lock", []

    def second() -> None:
        with lock(path):
            order.append("second")

    with lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
