# SPDX-License-Identifier: Apache-2.0
"""pandas, pyarrow and zarr use files by fsspec, over the real library and a device that stands in.

``make campaign NAME=tables`` installs them; they are large, and ``make dev`` does without.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from device import FOLDER, Device
from unit.device_fixtures import device, device_library

__all__ = ["device", "device_library"]

fsspec = pytest.importorskip("fsspec")
np = pytest.importorskip("numpy")
MISSED = "missed: {} over the client without a mount (make campaign NAME=tables)"
pandas = pytest.importorskip("pandas", reason=MISSED.format("pandas"))
pyarrow = pytest.importorskip("pyarrow", reason=MISSED.format("pyarrow"))
zarr = pytest.importorskip("zarr", reason=MISSED.format("zarr"))
dataset = pytest.importorskip("pyarrow.dataset")
arrow_files = pytest.importorskip("pyarrow.fs")
URL = "nfsrdma://nas/export"
OPTIONS = {"export": "/export", "timeout": 20}
# programs that write keys, not files, make no directories
KEYS = {**OPTIONS, "auto_mkdir": True}


@pytest.fixture
def files(device: Device) -> Iterator[Any]:
    device.put("/export/tables", kind=FOLDER)
    made = fsspec.filesystem("nfsrdma", host="nas", **OPTIONS)
    yield made
    made.close()
    fsspec.get_filesystem_class("nfsrdma").clear_instance_cache()


@pytest.fixture
def table() -> Any:
    numbers = np.random.default_rng(7)
    return pandas.DataFrame(
        {
            "year": np.repeat([2001, 2002, 2003], 1000),
            "value": numbers.random(3000),
            "name": [f"row {number}" for number in range(3000)],
        }
    )


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "feather", "pickle"])
def test_pandas_writes_and_reads(kind: str, files: Any, table: Any) -> None:
    url = f"{URL}/tables/table.{kind}"
    words = {"index": False} if kind == "csv" else {}
    getattr(table, f"to_{kind}")(url, storage_options=OPTIONS, **words)
    frame = getattr(pandas, f"read_{kind}")(url, storage_options=OPTIONS)
    pandas.testing.assert_frame_equal(frame, table, check_dtype=kind != "json")
    assert files.size(f"/export/tables/table.{kind}") > 3000


def test_pandas_reads_some_columns(files: Any, table: Any) -> None:
    url = f"{URL}/tables/columns.parquet"
    table.to_parquet(url, storage_options=OPTIONS, row_group_size=500)
    frame = pandas.read_parquet(
        url, storage_options=OPTIONS, columns=["value"], filters=[("year", "==", 2002)]
    )
    assert frame["value"].tolist() == table[table["year"] == 2002]["value"].tolist()
    assert files.exists("/export/tables/columns.parquet")


def test_pandas_opens_no_file_that_is_not_there(files: Any) -> None:
    del files
    with pytest.raises(FileNotFoundError):
        pandas.read_csv(f"{URL}/tables/none.csv", storage_options=OPTIONS)


def test_pyarrow_writes_directories_and_reads_them(files: Any, table: Any) -> None:
    rows = pyarrow.Table.from_pandas(table)
    for _ in range(2):
        # the second time over what the first has left
        dataset.write_dataset(
            rows, "/export/tables/parts", filesystem=files, format="parquet", partitioning=["year"],
            existing_data_behavior="delete_matching",
        )  # fmt: skip
    parts = dataset.dataset("/export/tables/parts", filesystem=files, partitioning=["year"])
    assert sorted(files.ls("/export/tables/parts", detail=False)) == [
        f"/export/tables/parts/{year}" for year in (2001, 2002, 2003)
    ]
    assert parts.count_rows() == 3000
    value = dataset.field("value")
    some = parts.to_table(filter=(dataset.field("year") == 2003) & (value > 0.5))
    wanted = table[(table["year"] == 2003) & (table["value"] > 0.5)]
    assert sorted(some["name"].to_pylist()) == sorted(wanted["name"])


def test_pyarrow_uses_names(files: Any) -> None:
    used = arrow_files.PyFileSystem(arrow_files.FSSpecHandler(files))
    used.create_dir("/export/tables/a/b", recursive=True)
    data = os.urandom(100_000)
    with used.open_output_stream("/export/tables/a/b/c") as file:
        file.write(data)
    with used.open_input_file("/export/tables/a/b/c") as file:
        assert file.read_at(1000, 50_000) == data[50_000:51_000]
        assert file.size() == len(data)
    used.copy_file("/export/tables/a/b/c", "/export/tables/a/copy")
    used.move("/export/tables/a/copy", "/export/tables/a/moved")
    selector = arrow_files.FileSelector("/export/tables/a", recursive=True)
    types = {info.path: info.type.name for info in used.get_file_info(selector)}
    assert types == {
        "/export/tables/a/b": "Directory", "/export/tables/a/b/c": "File",
        "/export/tables/a/moved": "File",
    }  # fmt: skip
    (missing,) = used.get_file_info(["/export/tables/none"])
    assert missing.type.name == "NotFound"
    used.delete_dir_contents("/export/tables/a")
    assert used.get_file_info(selector) == []
    used.delete_dir("/export/tables/a")
    assert not files.exists("/export/tables/a")


def test_zarr_writes_and_reads_groups(files: Any) -> None:
    values = np.random.default_rng(3).random((100, 60))
    group = zarr.open_group(f"{URL}/tables/group", mode="w", storage_options=KEYS)
    array = group.create_array("inner/values", shape=values.shape, chunks=(30, 20), dtype="f8")
    array[:] = values
    array.attrs["unit"] = "m"
    again = zarr.open_group(f"{URL}/tables/group", mode="r+", storage_options=KEYS)
    # its coroutines, not a wrapper that has a thread for each chunk
    assert type(again.store.fs) is type(files)
    stored = again["inner/values"]
    assert np.array_equal(stored[10:70, 5:45], values[10:70, 5:45])
    assert stored.attrs["unit"] == "m"
    stored[0:30, 0:20] = 0.0
    values[0:30, 0:20] = 0.0
    assert np.array_equal(again["inner/values"][:], values)
    assert [name for name, _ in again.members()] == ["inner"]
    del again["inner"]
    assert [*again.members()] == []
    assert not files.find("/export/tables/group/inner")


def test_a_mapping_and_trees_of_directories(files: Any) -> None:
    mapping = fsspec.get_mapper(f"{URL}/tables/map", **KEYS)
    wanted = {f"{part}/{number}": os.urandom(number * 100) for part in "ab" for number in range(9)}
    mapping.setitems(wanted)
    assert dict(mapping) == wanted
    assert mapping.getitems([*wanted]) == wanted
    mapping.delitems(["a/0", "b/1"])
    assert sorted(mapping) == sorted(wanted.keys() - {"a/0", "b/1"})
    root = "/export/tables/map"
    assert files.du(root) == sum(len(wanted[name]) for name in mapping)
    assert next((path, sorted(names)) for path, names, _ in files.walk(root)) == (root, ["a", "b"])
    files.mv(f"{root}/a", f"{root}/c", recursive=True)
    assert sorted({name.split("/")[0] for name in mapping}) == ["b", "c"]
    files.rm(root, recursive=True)
    assert not files.exists(root)
