# SPDX-License-Identifier: Apache-2.0
"""Paths, positions and copies of files, as open(2), path_resolution(7) and io.FileIO have them."""

import copy
import errno
import os
import pickle
import time
from typing import Any

import pytest
from device import FOLDER, LINK, READ, Device
from unit.device_fixtures import DATA, device, device_library, opened

from nfsrdma_tools.client import Session, connect

__all__ = ["device", "device_library", "opened"]

LINKS = {
    "up": "..", "around": "../export", "back": "folder/..", "to-folder": "folder/",
    "to-data": "data", "to-data-as-folder": "data/", "to-new": "new",
    "to-new-in-folder": "folder/new", "to-nothing": "nothing/new", "to-new-folder": "new/",
    "to-link": "to-new-folder", "to-folder-in-nothing": "nothing/new/",
}  # fmt: skip


@pytest.fixture
def names(device: Device, opened: Session) -> Session:
    device.put("/export/folder", kind=FOLDER)
    device.put("/secret", b"secret")
    for name, text in LINKS.items():
        device.put(f"/export/{name}", text.encode(), kind=LINK)
    return opened


def error_of(call: Any, *words: Any) -> int | None:
    """The errno value of a call that has to fail."""
    with pytest.raises(OSError) as caught:
        call(*words)
    return caught.value.errno


@pytest.mark.parametrize(
    "path", ["..", "../data", "folder/../..", "up", "up/data", "around/data", "back/../data"]
)
def test_a_path_out_of_the_directory_is_an_error(names: Session, path: str) -> None:
    assert error_of(names.stat, path) == errno.EXDEV


@pytest.mark.parametrize(
    "path", ["data/", "data//", "data/.", "data/..", "to-data/", "to-data-as-folder", "data/x"]
)
def test_a_slash_stands_behind_a_directory_only(names: Session, path: str) -> None:
    assert error_of(names.stat, path) == errno.ENOTDIR


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("folder/../data", "data"), ("back/data", "data"), ("to-data", "data"), ("./data", "data"),
        ("folder/", "folder"), ("folder/.", "folder"), ("to-folder", "folder"),
        ("to-folder/", "folder"), ("/", ""), (".", ""), ("./", ""),
    ],
)  # fmt: skip
def test_names_of_one_file(names: Session, path: str, same: str) -> None:
    assert names.stat(path).st_ino == names.stat(same).st_ino


def test_lstat_follows_a_link_with_a_slash(names: Session) -> None:
    assert names.lstat("to-folder").st_ino != names.stat("folder").st_ino
    assert names.lstat("to-folder/").st_ino == names.stat("folder").st_ino


def test_create_follows_a_link_to_a_new_file(device: Device, names: Session) -> None:
    for link, path in (("to-new", "new"), ("to-new-in-folder", "folder/new")):
        with names.open(link, "w") as file:
            file.write(DATA)
        assert device.get(f"/export/{path}") == DATA
    assert error_of(names.open, "to-nothing", "w") == errno.ENOENT


@pytest.mark.parametrize("how", ["w", "x"])
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("new/", errno.EISDIR), ("data/", errno.EISDIR), ("folder/", errno.EISDIR),
        ("to-new/", errno.EISDIR), ("to-nothing/", errno.EISDIR), ("to-new-folder", errno.EISDIR),
        ("to-data-as-folder", errno.EISDIR), ("to-folder", errno.EISDIR), ("to-link", errno.EISDIR),
        ("data/new/", errno.ENOTDIR), ("nothing/new/", errno.ENOENT),
        ("to-folder-in-nothing", errno.ENOENT),
    ],
)  # fmt: skip
def test_no_file_is_made_whose_name_ends_with_a_slash(
    device: Device, names: Session, path: str, error: int, how: str
) -> None:
    # open(2) with O_EXCL follows no link
    expected = errno.EEXIST if how == "x" and path in LINKS else error
    before = device.names("/export")
    assert error_of(names.open, path, how) == expected
    assert device.names("/export") == before


def test_create_does_not_follow_a_link_that_it_must_not(device: Device, names: Session) -> None:
    flags = os.O_WRONLY | os.O_CREAT
    assert error_of(names.open, "to-new", "x") == errno.EEXIST
    assert error_of(names.open, "to-new", flags | os.O_NOFOLLOW) == errno.ELOOP
    assert device.get("/export/new") is None


def test_a_file_for_reading_keeps_its_size(device: Device, opened: Session) -> None:
    with opened.open("data") as file:
        assert error_of(file.truncate) == errno.EBADF
        assert error_of(file.truncate, 7) == errno.EBADF
    assert device.get("/export/data") == DATA


def test_a_rename_keeps_the_file(device: Device, opened: Session) -> None:
    for number in range(5):
        opened.rename("data" if not number else f"data{number - 1}", f"data{number}")
    assert device.get("/export/data4") == DATA
    opened.mkdir("folder")
    opened.rename("data4", "folder/data")
    assert device.get("/export/folder/data") == DATA
    assert error_of(opened.rename, "folder", "folder/data/folder") == errno.ENOTDIR


def test_positions(opened: Session) -> None:
    with opened.open("data") as file:
        assert file.seek(-1, os.SEEK_END) == len(DATA) - 1
        for offset in (-1, 2**63, 2**70):
            assert error_of(file.seek, offset) == errno.EINVAL
        with pytest.raises(ValueError, match="whence 7"):
            file.seek(0, 7)
        with pytest.raises(TypeError):
            file.seek(1.5)  # type: ignore[arg-type]
        assert file.read() == DATA[-1:]


@pytest.mark.parametrize("size", [5, len(DATA)])
def test_a_transfer_is_done_without_a_wait(device: Device, opened: Session, size: int) -> None:
    device.set(late=500)
    with opened.open("data") as file:
        out = bytearray(size)
        transfer = opened.start_read([(file, 0, size)], out)
        # only so that a failure ends
        until = time.monotonic() + 60
        while not transfer.done and time.monotonic() < until:
            time.sleep(0.001)
        assert transfer.counts() == [size]
        assert transfer.done
    assert out == DATA[:size]


def test_a_transfer_has_counts_when_it_is_done(device: Device, opened: Session) -> None:
    with opened.open("data") as file:
        device.hold(READ)
        transfer = opened.start_read([(file, 0, 5)], bytearray(5))
        with pytest.raises(ValueError, match="is not done"):
            transfer.counts()
        device.hold()
        assert transfer.result() == transfer.counts() == [5]


def test_ranges_of_two_files_stay_apart(device: Device, opened: Session) -> None:
    """A range has no operation, another has two: as many as there are ranges."""
    other, most = bytes(reversed(DATA)), 4096
    device.put("/export/other", other)
    device.set(read_max=most, write_max=most)
    with (
        connect("server:/export") as session,
        session.open("data", "r+") as first,
        session.open("other", "r+") as second,
    ):
        ranges = [(first, 0, 0), (second, 0, 2 * most), (first, 0, most)]
        out = bytearray(3 * most)
        assert session.read_ranges(ranges, out) == [0, 2 * most, most]
        assert out == other[: 2 * most] + DATA[:most]
        new = os.urandom(3 * most)
        assert session.write_ranges(ranges, new) == [0, 2 * most, most]
    assert device.get("/export/other") == new[: 2 * most] + other[2 * most :]
    assert device.get("/export/data") == new[2 * most :] + DATA[most:]


def test_copies_are_refused(opened: Session) -> None:
    with opened.open("data") as file, opened.register(bytearray(5)) as region:
        transfer = opened.start_read([(file, 0, 5)], bytearray(5))
        for each in (opened, file, region, transfer):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=f"a {type(each).__name__} cannot be"):
                    call(each)
        assert transfer.result() == [5]
        assert file.pread(5, 0) == DATA[:5]
