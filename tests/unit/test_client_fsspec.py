# SPDX-License-Identifier: Apache-2.0
"""The file system for fsspec over a stand-in for the library."""

import errno
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from unit.library_stand_in import Node, StandIn

from nfsrdma_tools.client import session

fsspec = pytest.importorskip("fsspec")

DATA = os.urandom(30_000)
FOLDER = stat.S_IFDIR | 0o755


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = StandIn(
        {
            "/export/data": Node(bytearray(DATA)),
            "/export/sub": Node(mode=FOLDER),
            "/export/sub/a": Node(bytearray(b"aaa")),
            "/export/sub/b": Node(bytearray(b"bbbb")),
        }
    )
    monkeypatch.setattr(session, "load", lambda: made.library)
    return made


@pytest.fixture
def files(server: StandIn) -> Any:
    made = fsspec.filesystem("nfsrdma", host="nas", skip_instance_cache=True)
    yield made
    made.close()
    assert not server.roots


@pytest.mark.parametrize(
    ("url", "options", "path"),
    [
        ("nfsrdma://nas/export/x", {"host": "nas"}, "/export/x"),
        ("nfsrdma://nas:20050/export/x/", {"host": "nas", "port": 20050}, "/export/x"),
        ("nfsrdma://[::1]:1/x", {"host": "[::1]", "port": 1}, "/x"),
        ("nfsrdma://[::1]/x", {"host": "[::1]"}, "/x"),
        ("/export/x", {}, "/export/x"),
        ("nfsrdma://nas", {"host": "nas"}, "/"),
    ],
)
def test_urls(files: Any, url: str, options: dict[str, Any], path: str) -> None:
    assert files._get_kwargs_from_urls(url) == options
    assert files._strip_protocol(url) == path


def test_the_entry_point_is_known() -> None:
    assert fsspec.get_filesystem_class("nfsrdma").__name__ == "NfsRdmaFileSystem"


def test_open_reads_by_url(server: StandIn) -> None:
    with fsspec.open("nfsrdma://nas:20050/export/data") as file:
        assert file.read(10) == DATA[:10]
        file.seek(29_990)
        assert file.read() == DATA[29_990:]
        file.seek(5)
        buffer = bytearray(8)
        assert file.readinto(buffer) == 8
        assert (bytes(buffer), file.tell()) == (DATA[5:13], 13)
        file.fs.close()
    assert server.options["port"] == 20050


def test_paths_share_the_session_of_a_directory(server: StandIn, files: Any) -> None:
    names = ["/export/data", "/export/sub"]
    assert sorted(files.ls("/export", detail=False)) == names
    assert files.cat_file("/export/sub/a") == b"aaa"
    assert files.find("/export") == ["/export/data", "/export/sub/a", "/export/sub/b"]
    assert files.glob("/export/s*/[ab]") == ["/export/sub/a", "/export/sub/b"]
    assert (files.isdir("/export/sub"), files.isfile("/export/sub")) == (True, False)
    assert files.size("/export/data") == 30_000
    assert not files.exists("/export/none")
    assert server.calls.count("connect") == 1


def test_a_file_is_listed_as_itself(server: StandIn, files: Any) -> None:
    (found,) = files.ls("/export/sub/a")
    assert (found["name"], found["size"], found["type"]) == ("/export/sub/a", 3, "file")
    assert files.modified("/export/sub/a").year == 2023
    # no session has a file for its directory
    assert set(server.roots.values()) == {"/export/sub"}


def test_one_export_for_all_paths(server: StandIn) -> None:
    made = fsspec.filesystem("nfsrdma", host="nas", export="/export", skip_instance_cache=True)
    assert made.cat_file("/export/sub/b") == b"bbbb"
    assert list(server.roots.values()) == ["/export"]
    with pytest.raises(FileNotFoundError, match="is not below /export"):
        made.info("/exports/x")
    made.close()


def test_ranges_of_many_files_are_one_batch(server: StandIn, files: Any) -> None:
    server.depth = 64
    files.ls("/export")
    paths = ["/export/data", "/export/sub/a", "/export/data", "/export/sub/b", "/export/data"]
    found = files.cat_ranges(paths, [0, 1, 29_000, -2, 7], [100, 3, 30_000, None, 3])
    assert found == [DATA[:100], b"aa", DATA[29_000:], b"bb", b""]
    assert server.waits == 1
    assert files.cat_ranges(["/export/data"] * 2, 5, 9) == [DATA[5:9]] * 2


def test_ranges_with_errors(server: StandIn, files: Any) -> None:
    files.ls("/export")
    first, second = files.cat_ranges(["/export/none", "/export/sub/a"], 0, 3)
    assert isinstance(first, FileNotFoundError)
    assert second == b"aaa"
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["/export/none", "/export/sub/a"], 0, 3, on_error="raise")
    server.failing[0] = errno.ESTALE
    (broken,) = files.cat_ranges(["/export/data"], 0, 3)
    assert broken.errno == errno.ESTALE
    assert not server.files


def test_files_are_written_and_appended(server: StandIn, files: Any) -> None:
    with files.open("/export/new", "wb", block_size=5 << 20) as file:
        file.write(DATA)
        file.flush(force=False)
        file.write(b"end")
    assert bytes(server.nodes["/export/new"].data) == DATA + b"end"
    assert "prepare_fsync" in server.calls
    with files.open("/export/new", "ab") as file:
        assert file.tell() == 30_003
        file.write(b"!")
    assert bytes(server.nodes["/export/new"].data) == DATA + b"end!"
    with pytest.raises(FileExistsError):
        files.open("/export/new", "xb")
    files.pipe_file("/export/new", b"short")
    assert files.cat_file("/export/new", 1, -1) == b"hor"
    assert not server.files


def test_names_are_changed(server: StandIn, files: Any) -> None:
    files.makedirs("/export/x/y")
    with pytest.raises(FileExistsError):
        files.makedirs("/export/x/y")
    files.cp_file("/export/data", "/export/x/y/copy")
    files.mv("/export/x/y/copy", "/export/x/moved")
    assert bytes(server.nodes["/export/x/moved"].data) == DATA
    files.rm_file("/export/x/moved")
    assert not files.exists("/export/x/moved")


def test_local_copies(server: StandIn, files: Any, tmp_path: Path) -> None:
    files.get("/export/sub", str(tmp_path / "sub"), recursive=True)
    assert (tmp_path / "sub" / "b").read_bytes() == b"bbbb"
    (tmp_path / "up").write_bytes(DATA)
    files.put(str(tmp_path / "up"), "/export/up")
    assert bytes(server.nodes["/export/up"].data) == DATA


def test_a_worker_gets_the_options_and_opens_sessions_of_its_own(
    server: StandIn, files: Any
) -> None:
    assert files.cat_file("/export/sub/a") == b"aaa"
    other = pickle.loads(pickle.dumps(files))  # noqa: S301
    assert other.host == "nas"
    child = os.fork()
    if not child:
        os._exit(files.cat_file("/export/sub/b") != b"bbbb" or server.calls.count("connect") != 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
