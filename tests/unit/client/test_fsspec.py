# SPDX-License-Identifier: Apache-2.0
"""The file system for fsspec over the real library and a device that stands in."""

import contextlib
import errno
import gc
import importlib
import os
import pickle
import pkgutil
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from device import COMMIT, CREATE, FOLDER, LINK, LOOKUP, READ, RENAME, WRITE, Device
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client import pool

__all__ = ["device", "device_library"]

fsspec = pytest.importorskip("fsspec")
abstract = pytest.importorskip("fsspec.tests.abstract")

DATA = os.urandom(30_000)
# NFS3ERR_NOSPC
NO_SPACE = 28
SECONDS = 30


def in_threads(work: Callable[[int], None]) -> None:
    """Run it in 8 threads; all end."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(8)]
    for each in threads:
        each.start()
    end = time.monotonic() + SECONDS
    for each in threads:
        each.join(max(0, end - time.monotonic()))
    assert not errors, errors
    assert not any(each.is_alive() for each in threads)


@pytest.fixture
def server(device: Device) -> Device:
    device.put("/export/data", DATA)
    device.put("/export/sub/a", b"aaa")
    device.put("/export/sub/b", b"bbbb")
    return device


@contextlib.contextmanager
def filesystem(host: str = "nas", **options: Any) -> Iterator[Any]:
    """A file system of its own, which the block closes."""
    made = fsspec.filesystem("nfsrdma", host=host, skip_instance_cache=True, **options)
    with contextlib.closing(made):
        yield made


@pytest.fixture
def files(server: Device) -> Iterator[Any]:
    with filesystem() as made:
        yield made
    assert not server.connections


def put_numbers(server: Device, count: int) -> None:
    """A directory for each number, with a file that has the number."""
    for number in range(count):
        server.put(f"/export/{number}/file", b"%d" % number)


@pytest.mark.parametrize(
    ("url", "options", "path"),
    [
        ("nfsrdma://nas/export/x", {"host": "nas"}, "/export/x"),
        ("nfsrdma://nas:20050/export/x/", {"host": "nas", "port": 20050}, "/export/x"),
        ("nfsrdma://[::1]:1/x", {"host": "[::1]", "port": 1}, "/x"),
        ("nfsrdma://[::1]/x", {"host": "[::1]"}, "/x"),
        ("/export/x", {}, "/export/x"),
        ("nfsrdma://nas", {"host": "nas"}, "/"),
        ("nfsrdma://nas/a/../b//c/./d", {"host": "nas"}, "/b/c/d"),
        ("nfsrdma://nas/../../x", {"host": "nas"}, "/x"),
        ("nfsrdma://nas/a#b%20c?d e", {"host": "nas"}, "/a#b%20c?d e"),
    ],
)
def test_urls(files: Any, url: str, options: dict[str, Any], path: str) -> None:
    assert files._get_kwargs_from_urls(url) == options
    assert files._strip_protocol(url) == path


def test_the_entry_point_is_known() -> None:
    assert fsspec.get_filesystem_class("nfsrdma").__name__ == "NfsRdmaFileSystem"


def test_open_reads_by_url(server: Device) -> None:
    with fsspec.open("nfsrdma://nas:20050/export/data") as file:
        assert file.read(10) == DATA[:10]
        file.seek(29_990)
        assert file.read() == DATA[29_990:]
        file.seek(5)
        buffer = bytearray(8)
        assert file.readinto(buffer) == 8
        assert (bytes(buffer), file.tell()) == (DATA[5:13], 13)
    file.fs.close()
    assert server.connects == 1


def test_paths_share_the_session_of_a_directory(server: Device, files: Any) -> None:
    names = ["/export/data", "/export/sub"]
    assert sorted(files.ls("/export", detail=False)) == names
    assert files.cat_file("/export/sub/a") == b"aaa"
    assert files.find("/export") == ["/export/data", "/export/sub/a", "/export/sub/b"]
    assert files.glob("/export/s*/[ab]") == ["/export/sub/a", "/export/sub/b"]
    assert (files.isdir("/export/sub"), files.isfile("/export/sub")) == (True, False)
    assert files.size("/export/data") == 30_000
    assert not files.exists("/export/none")
    assert server.connects == 1


def test_a_file_is_listed_as_itself(server: Device, files: Any) -> None:
    (entry,) = files.ls("/export/sub/a")
    assert (entry["name"], entry["size"], entry["type"]) == ("/export/sub/a", 3, "file")
    assert files.modified("/export/sub/a").year > 2023
    # no session has a file for its directory
    assert set(files._pool._members) == {"/export/sub"}
    assert server.connections == 1


def test_listings_are_kept_on_request(server: Device, files: Any) -> None:
    """Off by default; a change by the file system itself is seen at once, one of others is not."""
    made = fsspec.filesystem(
        "nfsrdma", host="nas", use_listings_cache=True, skip_instance_cache=True
    )
    before = made.ls("/export/sub")
    calls = server.calls
    assert made.ls("/export/sub") == before
    assert made.info("/export/sub/a")["size"] == 3
    assert server.calls == calls
    server.put("/export/sub/other", b"by another host")
    assert made.ls("/export/sub") == before
    names = ["/export/sub/a", "/export/sub/b", "/export/sub/other"]
    assert made.ls("/export/sub", detail=False, refresh=True) == names
    assert files.ls("/export/sub", detail=False) == names
    with made.open("/export/sub/a", "wb") as file:
        file.write(b"longer")
    assert made.info("/export/sub/a")["size"] == 6
    made.mkdir("/export/sub/new")
    assert made.isdir("/export/sub/new")
    made.mv("/export/sub/new", "/export/sub/newer")
    made.rm("/export/sub/b")
    assert made.ls("/export/sub", detail=False) == [names[0], "/export/sub/newer", names[2]]
    made.rm("/export/sub/newer", recursive=True)
    assert not made.exists("/export/sub/newer")
    made.invalidate_cache()
    assert not made.dircache
    made.close()


def test_one_export_for_all_paths(server: Device) -> None:
    with filesystem(export="/export") as made:
        assert made.cat_file("/export/sub/b") == b"bbbb"
        assert (list(made._pool._members), server.connects) == (["/export"], 1)
        with pytest.raises(FileNotFoundError, match="is not below /export"):
            made.info("/exports/x")


def test_ranges_of_many_files_are_one_batch(server: Device, files: Any) -> None:
    files.ls("/export")
    paths = ["/export/data", "/export/sub/a", "/export/data", "/export/sub/b", "/export/data"]
    ranges = files.cat_ranges(paths, [0, 1, 29_000, -2, 7], [100, 3, 30_000, None, 3])
    assert ranges == [DATA[:100], b"aa", DATA[29_000:], b"bb", b""]
    # a call for each range that is not empty
    assert server.reads == 4
    assert files.cat_ranges(["/export/data"] * 2, 5, 9) == [DATA[5:9]] * 2


def test_ranges_with_errors(server: Device, files: Any) -> None:
    files.ls("/export")
    first, second = files.cat_ranges(["/export/none", "/export/sub/a"], 0, 3)
    assert isinstance(first, FileNotFoundError)
    assert second == b"aaa"
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["/export/none", "/export/sub/a"], 0, 3, on_error="raise")
    server.error(READ, 70)
    (broken,) = files.cat_ranges(["/export/data"], 0, 3)
    assert broken.errno == errno.ESTALE


def test_an_error_of_a_range_is_not_one_of_the_others(server: Device, files: Any) -> None:
    """ESTALE for all reads at one offset, which one file of the batch has."""
    files.ls("/export")
    server.error(READ, 70, offset=7, times=3)
    paths = ["/export/sub/a", "/export/data", "/export/sub/b", "/export/x\0y"]
    good, broken, other, nameless = files.cat_ranges(paths, [0, 7, 0, 0], [3, 9, 4, 1])
    assert (good, broken.errno, other) == (b"aaa", errno.ESTALE, b"bbbb")
    assert isinstance(nameless, ValueError)


def test_ranges_of_more_directories_than_sessions(server: Device) -> None:
    """The call holds one session at a time: it would wait for itself."""
    paths = [f"/export/{number % 6}/{number}" for number in range(18)]
    for path in paths:
        server.put(path, path.encode())
    with filesystem("pool", sessions=2) as files:
        assert files.cat_ranges(paths, 0, None) == [path.encode() for path in paths]
        # the reads of a directory are one batch
        assert server.connects == 6 and server.connections <= 2


def test_places_are_of_numpy(server: Device, files: Any) -> None:
    numpy = pytest.importorskip("numpy")
    starts = numpy.array([0, 5])
    assert files.cat_ranges(["/export/data"] * 2, starts, starts + 9) == [DATA[:9], DATA[5:14]]


def test_files_are_written_and_appended(server: Device, files: Any) -> None:
    with files.open("/export/new", "wb", block_size=5 << 20) as file:
        file.write(DATA)
        file.flush(force=False)
        file.write(b"end")
    assert server.get("/export/new", disk=True) == DATA + b"end"
    with files.open("/export/new", "ab") as file:
        assert file.tell() == 30_003
        file.write(b"!")
    assert server.get("/export/new", disk=True) == DATA + b"end!"
    with pytest.raises(FileExistsError):
        files.open("/export/new", "xb")
    files.pipe_file("/export/new", b"short")
    assert files.cat_file("/export/new", 1, -1) == b"hor"


def test_links(server: Device, files: Any) -> None:
    """As pyarrow and pandas need it: a link to a file is one; nothing goes in circles."""
    server.put("/export/sub/link", b"a", kind=LINK)
    server.put("/export/sub/round", b".", kind=LINK)
    server.put("/export/sub/up", b"..", kind=LINK)
    server.put("/export/sub/nowhere", b"none", kind=LINK)
    kinds = {each["name"]: (each["type"], each["islink"]) for each in files.ls("/export/sub")}
    assert kinds == {
        "/export/sub/a": ("file", False), "/export/sub/b": ("file", False),
        "/export/sub/link": ("file", True), "/export/sub/up": ("link", True),
        "/export/sub/round": ("link", True),
        "/export/sub/nowhere": ("link", True),
    }  # fmt: skip
    assert files.info("/export/sub/round")["type"] == "directory"
    # the session has the directory /export/sub
    with pytest.raises(OSError, match="out of /export/sub"):
        files.info("/export/sub/up")
    with filesystem(export="/export") as whole:
        assert whole.info("/export/sub/up")["type"] == "directory"
    assert files.info("/export/sub/link")["size"] == 3
    assert files.find("/export", withdirs=False).count("/export/sub/a") == 1
    files.rm("/export/sub", recursive=True)
    assert server.get("/export/sub") is None
    assert server.get("/export/data") == DATA


def test_directories_are_copied_and_removed(server: Device, files: Any) -> None:
    files.copy("/export/sub", "/export/other", recursive=True)
    assert server.get("/export/other/b") == b"bbbb"
    with pytest.raises(OSError):
        files.rm("/export/other")
    assert server.get("/export/other/b") == b"bbbb"
    files.rm("/export/other", recursive=True)
    assert not files.exists("/export/other")


@pytest.mark.parametrize("procedure", [CREATE, WRITE, COMMIT, RENAME])
def test_a_pipe_that_fails_leaves_the_old_file(server: Device, files: Any, procedure: int) -> None:
    # more than one WRITE, so that a COMMIT follows
    new, names = os.urandom(3 << 20), set(server.names("/export"))
    server.error(procedure, NO_SPACE)
    with pytest.raises(OSError, match="space") as raised:
        files.pipe_file("/export/data", new)
    assert raised.value.errno == errno.ENOSPC
    assert server.get("/export/data") == DATA
    assert set(server.names("/export")) == names
    files.pipe_file("/export/data", new)
    assert server.get("/export/data", disk=True) == new
    assert set(server.names("/export")) == names


def test_a_reader_has_the_old_file_until_the_new_one_is_whole(server: Device, files: Any) -> None:
    with filesystem("reader") as others:
        assert others.cat_file("/export/data") == DATA
        server.hold(WRITE)
        writer = threading.Thread(target=files.pipe_file, args=("/export/data", b"new"))
        writer.start()
        end = time.monotonic() + SECONDS
        while not server.held and time.monotonic() < end:
            time.sleep(0.01)
        assert others.cat_file("/export/data") == DATA
        server.hold()
        writer.join()
        assert others.cat_file("/export/data") == b"new"


def test_a_pipe_follows_a_link(server: Device, files: Any) -> None:
    server.put("/export/link", b"data", kind=LINK)
    files.pipe_file("/export/link", b"new")
    assert server.get("/export/data") == b"new"
    assert files.info("/export/link")["islink"]


def test_pipe_file_makes_a_new_file_only_if_that_is_the_mode(device: Device, files: Any) -> None:
    files.pipe_file("/export/new", b"first", mode="create")
    with pytest.raises(FileExistsError, match="File exists"):
        files.pipe_file("/export/new", b"second", mode="create")
    with pytest.raises(ValueError, match="append"):
        files.pipe_file("/export/new", b"second", mode="append")
    assert device.get("/export/new", disk=True) == b"first"


@pytest.mark.parametrize("path", ["/export", "/export/folder"])
def test_pipe_file_leaves_nothing_behind_for_a_directory(device: Device, path: str) -> None:
    device.put("/export/folder", kind=FOLDER)
    with filesystem(export="/export") as files, pytest.raises(IsADirectoryError):
        files.pipe_file(path, b"data")
    assert sorted(device.names("/export")) == ["data", "folder"]
    assert device.names("/export/folder") == []


def test_a_pipe_in_a_transaction_waits_for_its_end(server: Device, files: Any) -> None:
    with files.transaction:
        files.pipe_file("/export/data", b"new")
        assert server.get("/export/data") == DATA
    assert server.get("/export/data") == b"new"


def test_a_transaction_is_all_or_nothing(server: Device, files: Any) -> None:
    with files.transaction:
        with files.open("/export/sub/a", "wb") as file:
            file.write(b"new")
        with files.open("/export/c", "xb") as file:
            file.write(b"c")
        assert server.get("/export/sub/a") == b"aaa"
    assert (server.get("/export/sub/a"), server.get("/export/c")) == (b"new", b"c")
    assert sorted(files.ls("/export/sub", detail=False)) == ["/export/sub/a", "/export/sub/b"]

    def fail() -> None:
        with files.transaction:
            with files.open("/export/sub/a", "wb") as file:
                file.write(b"newer")
            with files.open("/export/d", "xb") as file:
                file.write(b"d")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert server.get("/export/sub/a") == b"new"
    assert not files.exists("/export/d")
    assert sorted(files.ls("/export/sub", detail=False)) == ["/export/sub/a", "/export/sub/b"]


def test_an_error_of_a_write_is_raised(server: Device, files: Any) -> None:
    server.error(WRITE, errno.ENOSPC, times=100)
    file = files.open("/export/new", "wb")
    file.write(b"x" * 10)
    with pytest.raises(OSError, match="No space"):
        file.close()


def test_options_of_a_cache_are_those_of_the_caller(server: Device, files: Any) -> None:
    options = {"cache_type": "blockcache", "cache_options": {"maxblocks": 2}}
    with files.open("/export/data", block_size=4096, **options) as file:
        assert (file.cache.maxblocks, file.read(5000)) == (2, DATA[:5000])
    assert server.reads == 2


# --- the pool ---


def test_threads_share_few_sessions(server: Device) -> None:
    """100 files in 100 directories, read by 8 threads."""
    paths = [f"/export/{number}/file" for number in range(100)]
    for path in paths:
        server.put(path, path.encode())
    wrong = []

    def read(seed: int) -> None:
        # an instance of each thread, as fsspec makes them
        files = fsspec.filesystem("nfsrdma", host="pool")
        order = random.Random(seed).sample(paths, 100)  # noqa: S311
        for path in order[:40]:
            if files.cat_file(path) != path.encode():
                wrong.append(path)

    in_threads(read)
    assert not wrong
    # counted where connections arrive
    assert 1 <= server.most_connections <= 4
    fsspec.filesystem("nfsrdma", host="pool").close()
    assert not server.connections


def test_files_that_stay_open_wait_for_nothing(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 threads with more open files than sessions, in directories without a common one.

    Each thread opens the next file when all have opened one, so that none closes any meanwhile.
    """
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 3600)
    put_numbers(server, 16)
    barrier = threading.Barrier(8, timeout=SECONDS)
    contents: list[list[bytes]] = []

    def read(seed: int) -> None:
        files = fsspec.filesystem("nfsrdma", host="pool")
        opened = []
        for number in range(5):
            opened.append(files.open(f"/export/{(seed * 2 + number) % 16}/file"))
            barrier.wait()
        contents.append([file.read() for file in opened])
        barrier.wait()
        for file in opened:
            file.close()

    in_threads(read)
    assert sorted(contents) == sorted(
        [b"%d" % ((seed * 2 + number) % 16) for number in range(5)] for seed in range(8)
    )
    # the next one finds room by itself
    files = fsspec.filesystem("nfsrdma", host="pool")
    server.put("/export/other/file")
    assert files.cat_file("/export/other/file") == b""
    assert server.connections <= 4
    files.close()


def test_calls_do_not_keep_a_file_from_being_opened(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are open in all sessions, and other threads use these all the time."""
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 3600)
    put_numbers(server, 5)
    files = fsspec.filesystem("nfsrdma", host="pool", sessions=4, skip_instance_cache=True)
    opened = [files.open(f"/export/{number}/file") for number in range(4)]
    done = threading.Event()

    def read(seed: int) -> None:
        if seed:
            while not done.is_set():
                files.info(f"/export/{seed % 4}/file")
            return
        try:
            opened.append(files.open("/export/4/file"))
        finally:
            done.set()

    in_threads(read)
    assert [file.read() for file in opened] == [b"0", b"1", b"2", b"3", b"4"]
    for file in opened:
        file.close()
    files.close()


def test_a_process_forks_while_threads_use_the_pool(server: Device) -> None:
    """Whatever locks they hold, the child opens sessions of its own."""
    put_numbers(server, 8)
    files = fsspec.filesystem("nfsrdma", host="pool", sessions=2, skip_instance_cache=True)
    # Python itself waits for ever for a module that another thread imports at a fork
    files.cat_file("/export/0/file")
    done = threading.Event()
    statuses = []

    def read(seed: int) -> None:
        number = seed
        while seed and not done.is_set():
            files.cat_file(f"/export/{number % 8}/file")
            number += 1
        if seed:
            return
        try:
            for number in range(10):
                child = os.fork()
                if not child:
                    # the end of a child that waits for ever
                    signal.alarm(SECONDS)
                    os._exit(files.cat_file(f"/export/{number % 8}/file") != b"%d" % (number % 8))
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        finally:
            done.set()

    in_threads(read)
    assert statuses == [0] * 10
    files.close()


def test_a_file_that_is_dropped_sends_nothing(server: Device, files: Any) -> None:
    """A finalizer runs in any thread at any place, inside of the library's calls, too."""
    written, read = files.open("/export/new", "wb"), files.open("/export/data")
    written.write(b"lost")
    assert read.read(3) == DATA[:3]
    calls = server.calls
    read.itself = read
    del read
    with pytest.warns(ResourceWarning, match="unclosed file /export/new"):
        del written
    gc.collect()
    assert server.calls == calls
    # the next call ends them in the library
    with files._at("/export") as (session, _):
        session.stat("data")
        assert not session.busy


def test_files_outlive_their_file_system(server: Device) -> None:
    files = fsspec.filesystem("nfsrdma", host="nas", skip_instance_cache=True)
    file, other = files.open("/export/data", block_size=100), files
    del files
    gc.collect()
    assert file.read(5) == DATA[:5]
    other.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    file.close()
    assert not server.connections


def test_an_error_of_the_server_is_one_attempt(server: Device) -> None:
    """Another directory is tried where the server says that the first is none."""
    with filesystem() as files:
        server.fail("resolve_addr", errno.ENETUNREACH)
        with pytest.raises(OSError, match="unreachable"):
            files.info("/export/sub/a")
        assert server.connects == 0
        assert files.info("/export/sub/a")["size"] == 3


def test_open_files_keep_their_sessions(server: Device) -> None:
    put_numbers(server, 7)
    with filesystem("pool", sessions=2) as files:
        opened = [files.open(f"/export/{number}/file") for number in range(5)]
        assert server.connections == 5
        assert [file.read() for file in opened] == [b"0", b"1", b"2", b"3", b"4"]
        for file in opened:
            file.close()
        assert files.cat_file("/export/6/file") == b"6"
        assert server.connections <= 2


def test_little_memory_that_may_be_locked_is_an_error_with_a_remedy(server: Device) -> None:
    with filesystem("small") as files:
        server.fail("reg_mr", errno.ENOMEM, times=1000)
        with pytest.raises(OSError, match="ulimit -l") as raised:
            files.cat_file("/export/data")
        assert "\n" not in str(raised.value)
        server.heal()
        assert files.cat_file("/export/data") == DATA


def test_less_memory_than_for_all_sessions_is_enough(server: Device) -> None:
    """It is for two of four: the pool closes idle ones, and opens no third one again."""
    put_numbers(server, 6)
    files = fsspec.filesystem("nfsrdma", host="small", skip_instance_cache=True)
    for number in range(2):
        files.cat_file(f"/export/{number}/file")
    server.fail("reg_mr", errno.ENOMEM)
    assert files.cat_file("/export/2/file") == b"2"
    assert files.cat_ranges([f"/export/{number}/file" for number in range(6)], 0, 1) == [
        b"%d" % number for number in range(6)
    ]
    assert server.most_connections == 2
    # not if files are open in all of them
    opened = [files.open(f"/export/{number}/file") for number in range(2)]
    server.fail("reg_mr", errno.ENOMEM, times=1000)
    with pytest.raises(OSError, match="ulimit -l"):
        files.cat_file("/export/3/file")
    for file in opened:
        file.close()
    files.close()


# --- fsspec's own tests ---


class _Fixtures(abstract.AbstractFixtures):  # type: ignore[misc, name-defined]
    @pytest.fixture
    def fs(self, device: Device) -> Iterator[Any]:
        device.put("/export/tests", kind=FOLDER)
        with filesystem(export="/export", auto_mkdir=True) as made:
            yield made

    @pytest.fixture
    def fs_path(self) -> str:
        return "/export/tests"


# fmt: off
class TestCopyOfFsspec(abstract.AbstractCopyTests, _Fixtures): ...  # type: ignore[misc, name-defined]
class TestGetOfFsspec(abstract.AbstractGetTests, _Fixtures): ...  # type: ignore[misc, name-defined]
class TestPutOfFsspec(abstract.AbstractPutTests, _Fixtures): ...  # type: ignore[misc, name-defined]
class TestOpenOfFsspec(abstract.AbstractOpenTests, _Fixtures): ...  # type: ignore[misc, name-defined]
class TestPipeOfFsspec(abstract.AbstractPipeTests, _Fixtures): ...  # type: ignore[misc, name-defined]
# fmt: on


def test_all_of_fsspecs_own_tests_are_used() -> None:
    """Each class with tests of each module that the installed fsspec has."""
    classes = set()
    for each in pkgutil.iter_modules(abstract.__path__, f"{abstract.__name__}."):
        module = importlib.import_module(each.name)
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
        classes |= {kind for kind in kinds if any(name.startswith("test") for name in dir(kind))}
    used = {base for kind in globals().values() if isinstance(kind, type) for base in kind.__mro__}
    assert classes and classes <= used


def test_names_are_changed(server: Device, files: Any) -> None:
    files.makedirs("/export/x/y")
    with pytest.raises(FileExistsError):
        files.makedirs("/export/x/y")
    files.cp_file("/export/data", "/export/x/y/copy")
    files.mv("/export/x/y/copy", "/export/x/moved")
    assert server.get("/export/x/moved") == DATA
    files.rm_file("/export/x/moved")
    assert not files.exists("/export/x/moved")


NAMES = [
    "a*b", "a?b", "a[b", "a[1]b", "a#b", "a%20b", "a b", " a", "a ", "a\nb", "a:b", "a\\b", "~",
    "-a", "{a,b}", "a!b", "x" * 255, "\u00e9", "e\u0301", "\udcff\udcfe", ".a", "...",
]  # fmt: skip


@pytest.fixture(params=["nfsrdma", "file"])
def place(request: pytest.FixtureRequest, server: Device, tmp_path: Path) -> Iterator[Any]:
    """A file system and an empty directory: ours, and fsspec's of local files for comparison."""
    if request.param == "file":
        yield fsspec.filesystem("file"), str(tmp_path)
        return
    server.put("/export/empty", kind=FOLDER)
    with filesystem(export="/export") as made:
        yield made, "/export/empty"


def test_names_of_any_characters(place: Any) -> None:
    files, root = place
    paths = sorted(f"{root}/{name}" for name in NAMES)
    for path in paths:
        files.pipe_file(path, os.fsencode(path))
    assert sorted(files.ls(root, detail=False)) == files.find(root) == paths
    assert files.glob(f"{root}/*") == paths
    for path in paths:
        assert files.info(path)["name"] == path
        assert files.isfile(path)
        assert files.cat_ranges([path], [0], [None]) == [os.fsencode(path)]
        with files.open(path) as file:
            assert file.read() == os.fsencode(path)
        files.mv(path, f"{root}/moved")
        files.mv(f"{root}/moved", path)
        # this file, and no others that are like its name
        files.rm(path)
        assert not files.exists(path)
        files.pipe_file(path, b"again")
    for number, path in enumerate(paths, 1):
        files.rm(path)
        assert sorted(files.ls(root, detail=False)) == paths[number:]
    with pytest.raises(OSError, match="long") as raised:
        files.pipe_file(f"{root}/{'x' * 256}", b"")
    assert raised.value.errno == errno.ENAMETOOLONG
    assert not files.exists(f"{root}/{'x' * 256}")
    assert not files.exists(f"{root}/a\0b")


def test_names_of_any_characters_in_urls(server: Device) -> None:
    for name in NAMES:
        server.put(f"/export/names/{name}", os.fsencode(name))
        url = f"nfsrdma://nas:20049/export/names/{name}"
        made, path = fsspec.core.url_to_fs(url, export="/export")
        assert (made._strip_protocol(url), made.cat_file(path)) == (path, os.fsencode(name))
        assert (made.host, made.unstrip_protocol(path)) == ("nas", f"nfsrdma://{path}")
    made.close()


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_paths_of_directories(place: Any, end: str) -> None:
    files, root = place
    path = f"{root}/d{end}"
    files.mkdirs(f"{root}/d/e", exist_ok=True)
    files.mkdirs(f"{root}/d/empty{end}")
    files.mkdirs(f"{root}/d/empty{end}", exist_ok=True)
    files.pipe({f"{root}/d/e/f": b"123", f"{root}/d/g": b"12"})
    assert files.find(path) == [f"{root}/d/e/f", f"{root}/d/g"]
    assert files.find(path, maxdepth=1) == [f"{root}/d/g"]
    assert (files.du(path), files.du(f"{root}/d/g")) == (5, 2)
    assert (files.exists(path), files.isdir(path), files.isfile(path)) == (True, True, False)
    assert files.info(path)["name"] == f"{root}/d"
    assert sorted((each, sorted(folders), sorted(names))
                  for each, folders, names in files.walk(path)) == [
        (f"{root}/d", ["e", "empty"], ["g"]), (f"{root}/d/e", [], ["f"]),
        (f"{root}/d/empty", [], []),
    ]  # fmt: skip
    assert files.find(f"{root}/none") == []
    assert not files.exists(f"{root}/d/g/x")
    files.rm(path, recursive=True)
    assert not files.exists(path)


def test_directories_are_made_where_nothing_else_is(place: Any) -> None:
    files, root = place
    files.pipe_file(f"{root}/file", b"")
    with pytest.raises(FileExistsError) as raised:
        files.makedirs(f"{root}/file", exist_ok=True)
    assert raised.value.errno == errno.EEXIST
    files.makedirs(f"{root}/a/b")
    with pytest.raises(FileExistsError) as raised:
        files.makedirs(f"{root}/a/b")
    assert raised.value.errno == errno.EEXIST
    with pytest.raises((FileExistsError, NotADirectoryError)):
        files.makedirs(f"{root}/file/b", exist_ok=True)


def test_files_are_moved_across_directories(place: Any) -> None:
    files, root = place
    files.makedirs(f"{root}/a/b")
    files.makedirs(f"{root}/c")
    files.pipe_file(f"{root}/a/b/f", b"f")
    files.mv(f"{root}/a/b/f", f"{root}/c/g")
    assert files.find(root) == [f"{root}/c/g"]
    # into a directory, with its name
    files.mv(f"{root}/c/g", f"{root}/a")
    assert files.find(root) == [f"{root}/a/g"]
    files.mv(f"{root}/a", f"{root}/c/", recursive=True)
    assert files.find(root) == [f"{root}/c/a/g"]
    files.mkdir(f"{root}/a")
    with pytest.raises(OSError, match="exist"):
        files.mv(f"{root}/a", f"{root}/c", recursive=True)
    files.mv(f"{root}/c/a/g", f"{root}/c/a/g")
    assert files.cat_file(f"{root}/c/a/g") == b"f"
    with pytest.raises(FileNotFoundError):
        files.mv(f"{root}/c/a/g", f"{root}/none/g")
    assert files.cat_file(f"{root}/c/a/g") == b"f"


def test_a_copy_to_itself_keeps_the_data(place: Any) -> None:
    files, root = place
    files.pipe_file(f"{root}/f", b"data")
    for call in (files.cp_file, files.copy):
        with pytest.raises(shutil.SameFileError):
            call(f"{root}/f", f"{root}/f")
    assert files.cat_file(f"{root}/f") == b"data"


def test_a_copy_by_a_link_to_itself_keeps_the_data(server: Device, files: Any) -> None:
    server.put("/export/link", b"data", kind=LINK)
    with pytest.raises(shutil.SameFileError):
        files.cp_file("/export/data", "/export/link")
    assert server.get("/export/data") == DATA


def test_a_link_that_leads_nowhere_is_a_name(server: Device, files: Any) -> None:
    server.put("/export/nowhere", b"none", kind=LINK)
    assert (files.exists("/export/nowhere"), files.lexists("/export/nowhere")) == (False, True)
    assert not files.lexists("/export/none")


@pytest.mark.parametrize("name", ["exists", "isdir", "isfile"])
def test_a_server_that_is_silent_has_not_said_no(server: Device, name: str) -> None:
    with filesystem(timeout=0.5) as files:
        call = getattr(files, name)
        assert call("/export/sub") is (name != "isfile")
        server.hold(LOOKUP)
        with pytest.raises(TimeoutError):
            call("/export/sub")
        server.hold()


def test_no_path_leads_out_of_the_export(server: Device) -> None:
    server.put("/other/file", b"no")
    with filesystem(export="/export") as made:
        assert made.cat_file("/export/sub/../sub/a") == b"aaa"
        for path in ("/export/../other/file", "/export/sub/../../other/file"):
            with pytest.raises(FileNotFoundError, match="is not below /export"):
                made.cat_file(path)
            with pytest.raises(FileNotFoundError):
                made.makedirs(path)


def test_a_worker_gets_the_options_and_opens_sessions_of_its_own(
    server: Device, files: Any
) -> None:
    assert files.cat_file("/export/sub/a") == b"aaa"
    other = pickle.loads(pickle.dumps(files))  # noqa: S301
    assert other.host == "nas"
    child = os.fork()
    if not child:
        # the counts of a child begin at 0
        os._exit(files.cat_file("/export/sub/b") != b"bbbb" or server.connects != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_cat_of_many_files_is_one_batch(server: Device, files: Any) -> None:
    names = [f"/export/many/{number}" for number in range(20)]
    for number, name in enumerate(names):
        server.put(name, bytes([number]) * 9000)
    with files._pool.session("/export/many", directory=True) as (session, _):
        before = session.stats.doorbells
        calls = session.stats.calls
    contents = files.cat(names)
    assert contents == {name: bytes([number]) * 9000 for number, name in enumerate(names)}
    with files._pool.session("/export/many", directory=True) as (session, _):
        calls, doorbells = session.stats.calls - calls, session.stats.doorbells - before
    # one for all READs
    assert doorbells <= calls - 19
    assert files.cat(names[0]) == bytes(9000)
    assert files.cat([names[1]], start=-3) == {names[1]: b"\1\1\1"}
    bad = [names[0], "/export/none"]
    with pytest.raises(FileNotFoundError):
        files.cat(bad)
    assert set(files.cat(bad, on_error="omit")) == {names[0]}
    assert isinstance(files.cat(bad, on_error="return")["/export/none"], FileNotFoundError)
    below = files.cat("/export/sub", recursive=True, on_error="omit")
    assert set(below) == {"/export/sub/a", "/export/sub/b"}


def test_an_unknown_mode_is_one_line(server: Device, files: Any) -> None:
    with pytest.raises(ValueError, match=r"^/export/data: mode 'r\+b': one of rb, wb, xb, ab$"):
        files.open("/export/data", "r+b")
    assert server.get("/export/data") == DATA
