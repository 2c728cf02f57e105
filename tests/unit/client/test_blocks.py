# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks from Python, over the real library and a device that stands in."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import gc
import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from device import READ, REMOVE, RENAME, WRITE, Device
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client.adapters import background
from nfsrdma_tools.client.adapters.background import Background
from nfsrdma_tools.client.blocks import Blocks, blocks

__all__ = ["device", "device_library"]

# a test that hangs fails
SECONDS = 30
DATA = {f"a/{number}": os.urandom(number * 1000) for number in range(40)}


@pytest.fixture
def store(device: Device) -> Iterator[Blocks]:
    del device
    with blocks("server:/export", sessions=2, in_flight=32) as made:
        yield made


def rows() -> list[tuple[str, bytearray]]:
    return [(name, bytearray(len(data) + 5)) for name, data in DATA.items()]


def check(found: list[int | None], out: list[tuple[str, bytearray]]) -> None:
    assert found == [len(data) for data in DATA.values()]
    assert all(memory[: len(DATA[name])] == DATA[name] for name, memory in out)
    # it is not locked any more
    for _, memory in out:
        memory.clear()


def test_blocks_are_put_and_got(device: Device, store: Blocks) -> None:
    assert store.put(DATA.items()) == [True] * len(DATA)
    assert device.get("/export/a/7", disk=True) == DATA["a/7"]
    out = rows()
    check(store.get(out), out)
    assert store.exists([*DATA, "none"]) == [*(len(data) for data in DATA.values()), None]
    out = [("a/1", bytearray(2000)), ("none", bytearray(1)), ("x/y", bytearray(1))]
    assert store.get(out, timeout=60) == [1000, None, None]
    assert store.remove(["a/1", "none"]) == [True, False]
    assert store.exists(["a/1"]) == [None]
    assert store.get([]) == store.put([]) == store.exists([]) == store.remove([]) == []


def test_registered_memory_and_names_that_are_not_ascii(device: Device, store: Blocks) -> None:
    del device
    names = ["ü", "ä/ö", "z", "\udcff"]
    slab = bytearray(4000)
    with store.register(slab), memoryview(slab) as view:
        parts = [view[at : at + 1000] for at in range(0, 4000, 1000)]
        for number, part in enumerate(parts):
            part[:] = bytes([number]) * 1000
        assert store.put(zip(names, parts, strict=True)) == [True] * 4
        view[:] = bytes(4000)
        assert store.get(zip(reversed(names), parts, strict=True)) == [1000] * 4
        assert view[::1000].tolist() == [3, 2, 1, 0]
        for part in parts:
            part.release()
    slab.clear()


def test_errors_that_are_no_misses(device: Device, store: Blocks) -> None:
    store.put([("block", b"x" * 100)])
    with pytest.raises(OSError) as caught:
        store.get([("block", bytearray(99)), ("none", bytearray(1))])
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, "block")
    with pytest.raises(OSError) as caught:
        store.put([("../x", b"")])
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="zero byte"):
        store.get([("a\0b", bytearray(1))])
    with pytest.raises((BufferError, ValueError, TypeError)):
        store.get([("block", b"read only")])
    device.error(WRITE, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        store.put([("full", b"x")])
    assert caught.value.errno == errno.ENOSPC


def test_a_longer_block_is_a_miss_if_the_program_says_so(device: Device, store: Blocks) -> None:
    """It costs the others nothing."""
    del device
    store.put([("long", b"x" * 100), ("fits", b"y" * 99), ("short", b"z")])
    rows = [(name, bytearray(99)) for name in ("long", "fits", "short", "none")]
    sizes = [None, 99, 1, None]
    assert store.get(rows, longer_is_a_miss=True) == sizes
    assert asyncio.run(store.get_async(rows, longer_is_a_miss=True)) == sizes
    assert [bytes(buffer[:1]) for _, buffer in rows[1:3]] == [b"y", b"z"]


def test_a_block_with_a_wrong_checksum_is_a_miss(device: Device) -> None:
    with blocks(["server:/export", "server:/export"], checksum=True, trust=True) as store:
        assert len(store._sessions) == 2
        assert store.put([("block", b"x" * 100)]) == [True]
        stored = device.get("/export/block")
        assert stored and len(stored) == 132
        device.put("/export/block", b"y" + stored[1:])
        assert store.get([("block", bytearray(100))]) == [None]
        damaged: list[str] = []
        rows = [("none", bytearray(1)), ("block", bytearray(100))]
        assert store.get(rows, damaged=damaged) == [None, None]
        assert damaged == ["block"]
        # bytes behind the trailer
        device.put("/export/block", stored + b"more")
        assert store.get([("block", bytearray(100))]) == [None]


def test_a_deadline_is_a_miss(device: Device, store: Blocks) -> None:
    store.put(DATA.items())
    device.hold(READ, RENAME)
    out = rows()
    assert store.get(out, timeout=0.1) == [None] * len(DATA)
    assert store.put([("late", b"x")], timeout=0.1) == [False]
    for _, memory in out:
        memory.clear()
    device.hold()
    out = rows()
    check(store.get(out), out)


class Parts:
    """The functions of the library; counts calls that start a batch."""

    def __init__(self, functions: Any) -> None:
        self._functions, self.count = functions, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def nfsrdma_blocks_submit(self, *words: Any) -> int:
        self.count += 1
        return int(self._functions.nfsrdma_blocks_submit(*words))


def test_no_part_of_a_batch_starts_after_its_deadline(
    device: Device, store: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(DATA.items())
    device.hold(READ)
    parts = Parts(store._functions)
    monkeypatch.setattr(store, "_functions", parts)
    assert store.get([*rows(), *rows()], timeout=0.1) == [None] * (2 * len(DATA))
    assert parts.count == 1
    device.hold()


def test_a_batch_without_room_keeps_its_deadline(device: Device) -> None:
    with blocks("server:/export", in_flight=4) as store:
        store.put([("block", b"x" * 100)])
        device.hold(READ)
        full = [("block", bytearray(100)) for _ in range(256)]
        found: list[Any] = []
        others = threading.Thread(target=lambda: found.append(store.get(full)), daemon=True)
        late = threading.Thread(
            target=lambda: found.append(store.exists(["block"], timeout=0.1)), daemon=True
        )
        others.start()
        while not store._batches:
            time.sleep(0.01)
        late.start()
        late.join(SECONDS)
        assert found == [[None]]
        assert others.is_alive()
        device.hold()
        others.join(SECONDS)
        assert found[1:] == [[100] * 256]


def test_a_task_without_room_keeps_its_deadline(device: Device) -> None:
    async def run(store: Blocks) -> None:
        full = [("block", bytearray(100)) for _ in range(256)]
        others = asyncio.create_task(store.get_async(full))
        await asyncio.sleep(0)
        late = store.exists_async(["block"], timeout=0.1)
        assert await asyncio.wait_for(late, SECONDS) == [None]
        assert not others.done()
        device.hold()
        assert await asyncio.wait_for(others, SECONDS) == [100] * 256

    with blocks("server:/export", in_flight=4) as store:
        store.put([("block", b"x" * 100)])
        device.hold(READ)
        asyncio.run(run(store))


def test_more_batches_than_a_token_can_count(store: Blocks) -> None:
    store._serials = itertools.count((1 << 31) - 2)
    for _ in range(3):
        assert store.put([("block", b"x" * 100)]) == [True]
        assert store.get([("block", bytearray(100))]) == [100]


# --- calls ---

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "blocks.md"
SIZE = 256 << 10


def read_first(store: Blocks) -> None:
    assert store.get([("a", bytearray(SIZE))]) == [SIZE]


def read_again(store: Blocks) -> None:
    assert store.get([("b", bytearray(SIZE))]) == [SIZE]


def miss(store: Blocks) -> None:
    assert store.get([("none", bytearray(SIZE))]) == [None]


def write(store: Blocks) -> None:
    assert store.put([("c", bytes(SIZE))]) == [True]


def write_more(store: Blocks) -> None:
    # data that is copied would be more WRITEs
    memory = bytearray(2 << 20)
    with store.register(memory):
        assert store.put([("c", memory)]) == [True]


# of a store that has written "b", beside another one that has written "a"; the name in the page
CALLS: dict[str, Callable[[Blocks], object]] = {
    "first `get`": read_first,
    "further `get`": read_again,
    "`get` that misses": miss,
    "`put` with one WRITE": write,
    "`put` with two WRITEs": write_more,
    "`exists`": lambda store: store.exists(["a"]),
    "`remove`": lambda store: store.remove(["a"]),
}


def calls_of(device: Device, name: str, vers: str) -> int:
    """The calls of an operation, as the page names it."""
    operation, _, more = name.partition(", with ")
    assert more in ("", "`checksum`")
    options: dict[str, Any] = {"checksum": bool(more), "vers": vers}
    with blocks("server:/export", **options) as store, blocks("server:/export", **options) as other:
        assert other.put([("a", bytes(SIZE))]) == store.put([("b", bytes(SIZE))]) == [True]
        before = int(device.calls)
        CALLS[operation](store)
        return int(device.calls) - before


def test_the_page_has_the_calls_of_each_operation(device: Device) -> None:
    table = PAGE.read_text().partition("| operation | NFSv3 | NFSv4.1 |\n|---|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    assert {name.partition(", with ")[0] for name, *_ in rows} == set(CALLS)
    for name, *wanted in rows:
        found = [str(calls_of(device, name, vers)) for vers in ("3", "4.1")]
        assert found == wanted, name


# --- asyncio ---


def test_tasks_share_a_store(device: Device, store: Blocks) -> None:
    device.set(late=500)

    async def one(name: str, data: bytes) -> None:
        assert await store.put_async([(name, data)]) == [True]
        out = bytearray(len(data))
        assert await store.get_async([(name, out)], timeout=60) == [len(data)]
        assert out == data
        assert await store.exists_async([name]) == [len(data)]
        assert await store.remove_async([name]) == [True]

    async def main() -> None:
        await asyncio.gather(*(one(*item) for item in DATA.items()))
        assert await store.put_async(DATA.items()) == [True] * len(DATA)
        out = rows()
        check(await store.get_async(out), out)

    for _ in range(2):
        asyncio.run(main())
    assert store._batches == {}


def test_a_task_that_is_canceled_gets_its_memory(device: Device, store: Blocks) -> None:
    store.put(DATA.items())
    device.hold(READ)

    async def main() -> None:
        out = rows()
        task = asyncio.create_task(store.get_async(out))
        while device.held < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _, memory in out:
            memory.clear()
        assert await store.get_async([("a/3", bytearray(3000))], timeout=0.05) == [None]
        device.hold()
        assert await store.get_async([("a/3", bytearray(3000))]) == [3000]

    asyncio.run(main())


# --- what the adapters share ---


def test_damaged_blocks_are_removed_and_the_next_put_writes_them(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(Background("server:/export", 60, checksum=True)) as store:
        given = [("a/1", b"x" * 100), ("a/2", b"y" * 100)]
        room = [(name, bytearray(100)) for name, _ in given]

        def run(work: Coroutine[Any, Any, Any]) -> Any:
            return store.start(work).result()

        assert run(store.put(given)) == ([True, True], [0, 1])
        (path,) = (f"/export/a/{name}" for name in device.names("/export/a") if name[0] == "1")
        stored = device.get(path)
        assert stored
        device.put(path, b"y" + stored[1:])
        assert run(store.get(room)) == [False, True]
        assert "the checksum of a/1.crc32c is wrong: remove" in caplog.text
        assert run(store.sizes(["a/1", "a/2"])) == [None, 100]
        assert run(store.put(given)) == ([True, True], [0])
        assert run(store.get(room)) == [True, True]
        # one that cannot be removed is a miss
        device.put(path, b"y" + stored[1:])
        device.error(REMOVE, errno.EACCES)
        assert run(store.get(room)) == [False, True]
        assert "damaged blocks stay: [Errno 13] Permission denied" in caplog.text


def test_a_store_that_is_closed_takes_no_work(device: Device) -> None:
    store = Background("server:/export", 60)
    store.close()
    store.close()
    # a coroutine that nobody awaits is a warning, which is an error here
    with pytest.raises(RuntimeError, match="closed"):
        store.start(store.sizes(["a"]))
    gc.collect()
    assert device.objects == {}


def test_stores_with_and_without_checksums_leave_each_others_blocks(device: Device) -> None:
    del device
    with (
        contextlib.closing(Background("server:/export", 60)) as plain,
        contextlib.closing(Background("server:/export", 60, checksum=True)) as checked,
    ):
        for _ in range(2):
            wrote = [
                each.start(each.put([("a", b"x" * 100)])).result() for each in (plain, checked)
            ]
            rooms = [each.start(each.get([("a", bytearray(100))])) for each in (plain, checked)]
            assert [each.result() for each in rooms] == [[True], [True]]
        assert wrote == [([True], []), ([True], [])]


@pytest.mark.parametrize("timeout", ["2", None, True, 0, -1, math.nan, math.inf, 1e300])
def test_a_timeout_of_an_adapter_is_checked(device: Device, timeout: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Background("server:/export", timeout)
    assert device.objects == {}


def test_failures_of_one_kind_are_one_line(
    device: Device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    del device
    now, log = 100.0, logging.getLogger("adapter")
    monkeypatch.setattr(background, "monotonic", lambda: now)
    with contextlib.closing(Background("server:/export", 60)) as store:
        for _ in range(10):
            store.log_failure(log, "store", OSError(errno.ENOSPC, "full"))
        store.log_failure(log, "store", OSError(errno.EACCES, "no"))
        now += 60
        store.log_failure(log, "store", OSError(errno.ENOSPC, "full"))
        store.log_failure(log, "store", TypeError("a fault"))
    assert caplog.messages == [
        "store: [Errno 28] full", "store: [Errno 13] no",
        "store: [Errno 28] full (9 more like it before)", "store: a fault",
    ]  # fmt: skip
    assert [bool(each.exc_info) for each in caplog.records] == [False] * 3 + [True]


# --- interrupts, threads, processes ---


def test_a_get_is_interrupted_at_each_opcode(device: Device, store: Blocks) -> None:
    store.put(DATA.items())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    few = [("a/3", bytearray(3000)), ("a/5", bytearray(5000)), ("none", bytearray(1))]

    def call(number: int) -> bool:
        device.signal_at(number)
        tracer = sys.gettrace()
        try:
            sys.settrace(device.tracing)
            assert store.get(few) == [3000, 5000, None]
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(tracer)
            total.append(device.signal_at(0))
        return False

    total: list[int] = []
    try:
        assert not call(0)
        count, interrupted = total[-1], 0
        assert count > 100
        for number in range(1, count + 1):
            with contextlib.suppress(KeyboardInterrupt):
                interrupted += call(number)
            assert store.get(few) == [3000, 5000, None]
            # of an interrupt within the end of another one: locked until the store is closed
            assert len(store._batches) <= interrupted
        assert interrupted > count // 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_block_costs_few_opcodes(device: Device) -> None:
    """Opcodes, which are the same on a busy machine, in place of a time."""
    with blocks("server:/export", in_flight=512) as store:
        store.put([(f"{number}", b"x") for number in range(400)])

        def cost(count: int) -> int:
            few = [(f"{number}", bytearray(1)) for number in range(count)]
            device.signal_at(0)
            tracer = sys.gettrace()
            sys.settrace(device.tracing)
            try:
                assert store.get(few) == [1] * count
            finally:
                sys.settrace(tracer)
            return device.signal_at(0)

        cost(10)
        # of these, 35 book a completion
        assert (cost(400) - cost(20)) / 380 < 80


def test_a_get_without_replies_is_interrupted(device: Device, store: Blocks) -> None:
    store.put(DATA.items())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.get_ident()

    def interrupt() -> None:
        while not device.held:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    device.hold(READ)
    out, thread = rows(), threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            store.get(out)
        for _, memory in out:
            memory.clear()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    device.hold()
    assert store.get([("a/3", bytearray(3000))]) == [3000]


def test_threads_share_a_store(store: Blocks) -> None:
    store.put(DATA.items())
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(10):
                out = rows()
                check(store.get(out), out)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_a_store_is_closed_once(device: Device) -> None:
    store = blocks("server:/export")
    region = store.register(bytearray(10))
    with pytest.raises(TypeError):
        copy.copy(store)
    store.close()
    store.close()
    region.close()
    assert store.closed
    with pytest.raises(ValueError, match="closed"):
        store.get([("a", bytearray(1))])
    dropped: Any = blocks("server:/export")
    del dropped
    gc.collect()
    assert device.objects == {}
    for sessions, in_flight in ((1, 1 << 20), (1, -1), (0, 0), (-1, 0)):
        with pytest.raises(ValueError, match="at most 65536"):
            blocks("server:/export", sessions=sessions, in_flight=in_flight)
    gc.collect()
    assert device.objects == {}


def test_a_timeout_is_a_number_of_seconds(device: Device, store: Blocks) -> None:
    del device
    for wrong in (math.nan, 1e300, 4_294_968):
        with pytest.raises(ValueError, match="at most 4000000 seconds"):
            store.exists(["a"], timeout=wrong)
    assert store.exists(["a"], timeout=math.inf) == store.exists(["a"]) == [None]


def test_a_store_in_a_cycle_ends_before_its_sessions(device: Device) -> None:
    """The collector finalizes them in any order."""
    for first in range(2):
        store = blocks("server:/export")
        (session,) = store._sessions
        made: Any = [[session, store][first]]
        made.append(made)
        made.append([store, session][first])
        del store, session, made
        gc.collect()
        assert device.objects == {}


def test_a_child_process_has_no_store(store: Blocks) -> None:
    store.put([("a", b"x")])
    pid = os.fork()
    if not pid:
        try:
            store.get([("a", bytearray(1))])
        except OSError as error:
            store.close()
            os._exit(int(error.errno != errno.EOWNERDEAD))
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get([("a", bytearray(1))]) == [1]
