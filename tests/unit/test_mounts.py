# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.mountnfs import MountError
from nfsrdma_tools.host.mounts import find, mount, undo_for, unmount
from nfsrdma_tools.undo import journal
from tests.unit.requests_made import asks


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_what_is_no_nfs_mount_is_not_found_and_not_unmounted(tmp_path: Path) -> None:
    assert find(Path("/proc")) is None
    for path in (Path("/proc"), tmp_path):
        with pytest.raises(UserError, match="is not an NFS mount point"):
            unmount(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may mount")
def test_mounting_needs_root(state: Path, tmp_path: Path) -> None:
    with journal() as book, pytest.raises(UserError, match="only root"):
        mount(asks(directory=tmp_path), book)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root comes this far")
@pytest.mark.parametrize(
    ("directory", "why"),
    [("/proc", "in use: proc"), ("missing", "No such file"), ("file", "Not a directory")],
)
def test_mount_points_that_cannot_be_used(
    state: Path, tmp_path: Path, directory: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with journal() as book, pytest.raises(UserError, match=why):
        mount(asks(directory=tmp_path / directory), book)
    assert list(state.glob("*.undo")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root comes this far")
def test_a_mount_that_failed_leaves_nothing_to_undo(
    state: Path, stand_in: Path, tmp_path: Path
) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: access denied by server >&2\nexit 32\n")
    with journal() as book:
        with pytest.raises(MountError, match="does not export"):
            mount(asks(directory=tmp_path), book)
        assert book.actions == []


def test_the_undo_is_an_argv_that_ends_nfs_only() -> None:
    assert undo_for(Path("/mnt/a b")).argv == ("umount.nfs", "/mnt/a b")
