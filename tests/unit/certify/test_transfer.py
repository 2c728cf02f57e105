# SPDX-License-Identifier: Apache-2.0
"""Files of odd sizes: what is written is read, and each difference is seen."""

from collections.abc import Callable
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


def test_what_is_written_is_read_in_each_way(folder: Path) -> None:
    transfer.main("write", str(folder), "seed", "rdma")
    assert len(list(folder.iterdir())) == 4 * len(transfer.SIZES)
    sizes = {int(path.name.rpartition("-")[2]): path.stat().st_size for path in folder.iterdir()}
    assert sizes == {size: size for size in transfer.SIZES}
    read = transfer.main("read", str(folder), "seed", "tcp", "rdma")
    numbers = {
        "files": 8 * len(transfer.SIZES),
        "bytes": 8 * sum(transfer.SIZES),
        "wrong_files": 0,
        "wrong_bytes": 0,
    }
    assert read == {"numbers": numbers, "wrong": []}


@pytest.mark.parametrize(
    ("change", "wrong", "text"),
    [
        (lambda data: data[:4096] + bytes([data[4096] ^ 1]), 1, "the first at 4096"),
        (lambda data: data[:9] + bytes([data[9] ^ 128]) + data[10:], 1, "the first at 9"),
        (lambda data: data[:4000], 97, "found 4000 of 4097 bytes"),
        (lambda data: data + b"x", 1, "found 4098 of 4097 bytes"),
        (lambda data: bytes(byte ^ 255 for byte in data), 4097, "the first at 0"),
        (lambda _: b"", 4097, "found 0 of 4097 bytes"),
    ],
    ids=("last byte", "one byte", "short", "long", "all", "empty"),
)
def test_other_data_is_told_with_its_place(
    folder: Path, change: Callable[[bytes], bytes], wrong: int, text: str
) -> None:
    file = folder / "tcp-direct-4097"
    file.write_bytes(change(file.read_bytes()))
    read = transfer.main("read", str(folder), "seed", "tcp")
    numbers = read["numbers"]
    assert (numbers["wrong_files"], numbers["wrong_bytes"]) == (2, 2 * wrong)
    for way, told in zip(transfer.WAYS, read["wrong"], strict=True):
        assert told.startswith(f"{file.name} ({way}): ")
        assert told.endswith(text)


def test_data_of_another_seed_is_other_data(folder: Path) -> None:
    read = transfer.main("read", str(folder), "other", "tcp")
    # one byte may be equal by chance
    assert read["numbers"]["wrong_files"] > read["numbers"]["files"] - 9
    assert len(read["wrong"]) == transfer.MOST_PRINTED


def test_a_link_of_another_writer_is_refused(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (folder / "tcp-buffered-1").unlink()
    (folder / "tcp-buffered-1").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        transfer.main("write", str(folder), "seed", "tcp")
    assert victim.read_text() == "kept"
