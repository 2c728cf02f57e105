# SPDX-License-Identifier: Apache-2.0
"""Coroutines of the file system for fsspec, over the real library and a device that stands in."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from device import LOOKUP, READ, Device
from unit.device_fixtures import device, device_library

__all__ = ["device", "device_library"]

fsspec = pytest.importorskip("fsspec")
asyn = pytest.importorskip("fsspec.asyn")

NAMES = [f"/export/chunks/{number}" for number in range(20)]
SECONDS = 20


@pytest.fixture
def server(device: Device) -> Device:
    for name in NAMES:
        device.put(name, name.encode() * 100)
    return device


@pytest.fixture
def files(server: Device) -> Iterator[Any]:
    made = fsspec.filesystem(
        "nfsrdma", host="nas", export="/export", asynchronous=True, skip_instance_cache=True
    )
    yield made
    made.close()
    assert not server.connections


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the loop runs meanwhile."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_reads_that_start_together_are_one_batch(server: Device, files: Any) -> None:
    """The server has the reads of all files before it replies to the first."""

    async def read() -> list[bytes]:
        await files._info("/export/chunks")
        server.hold(READ)
        reads = asyncio.gather(*map(files._cat_file, NAMES))
        await until(lambda: server.held == len(NAMES))
        server.hold()
        return await reads

    with files._at("/export/chunks") as (session, _):
        before = session.stats.doorbells
        assert asyncio.run(read()) == [name.encode() * 100 for name in NAMES]
        # names and attributes of 20 files: a doorbell for each call, and one for all reads
        calls = server.calls - server.reads
        assert session.stats.doorbells - before <= calls + 1
    assert server.connects == 1


def test_parts_of_files(files: Any) -> None:
    async def read() -> Any:
        return await asyncio.gather(
            files._cat_file(NAMES[0], 1, 7), files._cat_file(NAMES[0], -3),
            files._cat_ranges(NAMES[:2], [0, 1], 3), files._cat(NAMES[:2]),
        )  # fmt: skip

    first, last, both, whole = asyncio.run(read())
    text = NAMES[0].encode() * 100
    assert (first, last) == (text[1:7], text[-3:])
    assert both == [text[:3], text[1:3]]
    assert whole == {name: name.encode() * 100 for name in NAMES[:2]}


def test_more_reads_than_a_batch(files: Any) -> None:
    async def read() -> list[bytes]:
        return list(await asyncio.gather(*map(files._cat_file, NAMES * 10)))

    assert asyncio.run(read()) == [name.encode() * 100 for name in NAMES * 10]


def test_an_error_is_one_of_its_own_read(server: Device, files: Any) -> None:
    async def read() -> list[Any]:
        reads = [files._cat_file(name) for name in ("/export/none", NAMES[0], "/elsewhere")]
        return await asyncio.gather(*reads, return_exceptions=True)

    missing, content, outside = asyncio.run(read())
    assert isinstance(missing, FileNotFoundError)
    assert content == NAMES[0].encode() * 100
    assert isinstance(outside, FileNotFoundError)
    server.error(READ, 70, times=1000)
    (broken,) = asyncio.run(read())[1:2]
    assert broken.errno == errno.ESTALE


def test_a_canceled_read_takes_no_other_along(server: Device, files: Any) -> None:
    async def read() -> list[Any]:
        await files._info("/export/chunks")
        server.hold(READ)
        reads = [asyncio.ensure_future(files._cat_file(name)) for name in NAMES[:3]]
        await until(lambda: server.held == 3)
        reads[0].cancel()
        await until(reads[0].done)
        server.hold()
        return await asyncio.gather(*reads, return_exceptions=True)

    first, *others = asyncio.run(read())
    assert isinstance(first, asyncio.CancelledError)
    assert others == [name.encode() * 100 for name in NAMES[1:3]]


@pytest.mark.parametrize("call", ["_info", "_cat_file", "_exists", "_rm_file"])
def test_the_loop_runs_while_the_server_is_silent(server: Device, files: Any, call: str) -> None:
    async def wait() -> object:
        await files._info("/export")
        server.hold(LOOKUP)
        task = asyncio.ensure_future(getattr(files, call)(NAMES[0]))
        await until(lambda: server.held)
        assert not task.done()
        server.hold()
        return await task

    asyncio.run(wait())


def test_loops_of_threads_share_a_file_system(files: Any) -> None:
    """zarr uses an instance in another thread than the one that made it."""
    contents: list[Any] = []

    async def read() -> list[bytes]:
        return list(await asyncio.gather(*map(files._cat_file, NAMES)))

    def run() -> None:
        contents.extend(asyncio.run(read()) for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [[name.encode() * 100 for name in NAMES]] * 20
    assert not files._batches


def test_names_are_changed(server: Device, files: Any, tmp_path: Any) -> None:
    """By each coroutine that fsspec's asynchronous file systems have."""

    async def change() -> None:
        await files._makedirs("/export/new/below")
        await files._pipe_file("/export/new/one", b"1")
        await files._pipe({"/export/new/two": b"22", "/export/new/below/three": b"333"})
        await files._cp_file("/export/new/one", "/export/new/four")
        await files._copy("/export/new/below", "/export/new/other", recursive=True, batch_size=2)
        await files._mv_file("/export/new/two", "/export/new/five")
        await files._mkdir("/export/new/empty")
        assert await files._find("/export/new") == [
            f"/export/new/{name}" for name in ("below/three", "five", "four", "one", "other/three")
        ]
        assert await files._glob("/export/new/f*") == ["/export/new/five", "/export/new/four"]
        assert (await files._du("/export/new"), await files._size("/export/new/one")) == (10, 1)
        assert await files._sizes(["/export/new/one", "/export/new/five"]) == [1, 2]
        assert sorted([path async for path, _, _ in files._walk("/export/new")]) == [
            "/export/new", *(f"/export/new/{name}" for name in ("below", "empty", "other")),
        ]  # fmt: skip
        assert len(await files._ls("/export/new", detail=False)) == 6
        assert await files._isdir("/export/new")
        assert await files._isfile("/export/new/one")
        await files._get("/export/new/below", f"{tmp_path}/below", recursive=True)
        await files._get_file("/export/new/five", f"{tmp_path}/five")
        await files._put_file(f"{tmp_path}/five", "/export/new/six")
        await files._put(f"{tmp_path}/below", "/export/put", recursive=True)
        await files._rm_file("/export/new/six")
        await files._rm("/export/new", recursive=True, batch_size=1)
        assert await files._expand_path("/export/p*") == ["/export/put"]

    asyncio.run(change())
    assert (tmp_path / "below" / "three").read_bytes() == b"333"
    assert server.get("/export/put/three") == b"333"
    assert server.get("/export/new") is None


def test_no_coroutine_is_one_that_only_raises() -> None:
    """What fsspec leaves to a file system; files of coroutines are not offered."""
    kind = fsspec.get_filesystem_class("nfsrdma")
    own = {name for name in asyn.async_methods if getattr(kind, name) is not _base(name)}
    derived = {"_walk"}
    assert own == set(asyn.async_methods) - derived


def _base(name: str) -> Any:
    return getattr(asyn.AsyncFileSystem, name, None)


def test_a_forked_process_has_a_loop_of_its_own(server: Device, files: Any) -> None:
    async def read() -> bytes:
        return bytes(await files._cat_file(NAMES[0]))

    assert asyncio.run(read()) == NAMES[0].encode() * 100
    child = os.fork()
    if not child:
        # the counts of a child begin at 0
        os._exit(asyncio.run(read()) != NAMES[0].encode() * 100 or server.connects != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_synchronous_instance_needs_no_loop(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread that a forked process would lack."""
    monkeypatch.setattr(asyn, "get_loop", lambda: pytest.fail("a loop was started"))
    made = fsspec.filesystem("nfsrdma", host="nas", export="/export", skip_instance_cache=True)
    assert not made.async_impl
    assert made.find("/export/chunks") == sorted(NAMES)
    assert made.cat(NAMES[:2]) == {name: name.encode() * 100 for name in NAMES[:2]}
    made.close()
    assert not server.connections


def test_the_loop_of_fsspec_runs_coroutines_of_any_instance(server: Device) -> None:
    made = fsspec.filesystem("nfsrdma", host="nas", export="/export", skip_instance_cache=True)
    assert fsspec.asyn.sync(made.loop, made._cat_file, NAMES[0], 0, 3) == b"/ex"
    made.close()
    assert not server.connections


def test_other_file_systems_use_it(server: Device) -> None:
    """A directory as a file system, and copies between file systems."""
    generic = pytest.importorskip("fsspec.generic")
    whole = fsspec.filesystem(
        "nfsrdma", host="nas", export="/export", asynchronous=True, skip_instance_cache=True
    )
    inner = fsspec.filesystem("dir", path="/export/chunks", fs=whole, asynchronous=True)
    assert asyncio.run(inner._cat_file("3")) == NAMES[3].encode() * 100
    assert asyncio.run(inner._ls("", detail=False))
    whole.close()
    options = {"nfsrdma": {"export": "/export"}}
    copies = generic.GenericFileSystem(default_method="options", storage_options=options)
    copies.cp("nfsrdma://nas/export/chunks/3", "memory://three")
    copies.cp("memory://three", "nfsrdma://nas/export/three")
    assert server.get("/export/three") == NAMES[3].encode() * 100
    fsspec.filesystem("nfsrdma", host="nas", export="/export").close()
    fsspec.get_filesystem_class("nfsrdma").clear_instance_cache()
