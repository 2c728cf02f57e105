# SPDX-License-Identifier: Apache-2.0
"""Files of odd sizes: what is written is read, and each difference is seen."""

import json
from pathlib import Path

import pytest

from nfsrdma_tools.certify import transfer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # a local file system may refuse O_DIRECT of odd sizes, which NFS does not
    monkeypatch.setattr(transfer, "WAYS", dict.fromkeys(transfer.WAYS, 0))
    where = tmp_path / "files"
    transfer.main("write", str(where), "seed", "tcp")
    return where


def test_what_is_written_is_read_in_each_way(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transfer.main("write", str(folder), "seed", "rdma")
    assert len(list(folder.iterdir())) == 4 * len(transfer.SIZES)
    sizes = {int(path.name.rpartition("-")[2]): path.stat().st_size for path in folder.iterdir()}
    assert sizes == {size: size for size in transfer.SIZES}
    numbers = transfer.main("read", str(folder), "seed", "tcp", "rdma")
    assert numbers == {
        "files": 8 * len(transfer.SIZES),
        "bytes": 8 * sum(transfer.SIZES),
        "wrong_files": 0,
        "wrong_bytes": 0,
    }
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "first", "wrong", "found"),
    [
        (lambda data: data[:4096] + bytes([data[4096] ^ 1]), 4096, 1, 4097),
        (lambda data: data[:4000], 4000, 97, 4000),
        (lambda data: data + b"x", 4097, 1, 4098),
        (lambda data: bytes(byte ^ 255 for byte in data), 0, 4097, 4097),
        (lambda _: b"", 0, 4097, 0),
    ],
    ids=("last byte", "short", "long", "all", "empty"),
)
def test_other_data_is_told_with_its_place(
    folder: Path, change: object, first: int, wrong: int, found: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = folder / "tcp-direct-4097"
    assert callable(change)
    file.write_bytes(change(file.read_bytes()))
    numbers = transfer.main("read", str(folder), "seed", "tcp")
    assert (numbers["wrong_files"], numbers["wrong_bytes"]) == (2, 2 * wrong)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {"file": file.name, "size": 4097, "found": found, "first": first, "wrong": wrong}
    assert rows == [{**told, "read": way} for way in transfer.WAYS]


def test_data_of_another_seed_is_other_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = transfer.main("read", str(folder), "other", "tcp")
    # one byte may be equal by chance
    assert numbers["wrong_files"] > numbers["files"] - 9
    assert len(capsys.readouterr().out.splitlines()) == transfer.MOST_PRINTED


def test_a_link_of_another_writer_is_refused(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (folder / "tcp-buffered-1").unlink()
    (folder / "tcp-buffered-1").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        transfer.main("write", str(folder), "seed", "tcp")
    assert victim.read_text() == "kept"
