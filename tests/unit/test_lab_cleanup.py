# SPDX-License-Identifier: Apache-2.0
"""Which folders belong to labs, and are removed."""

import os
import shutil
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import lab, paths
from nfsrdma_tools.lock import try_file_lock, try_folder_lock


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
