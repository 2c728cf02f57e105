# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a block: a store's calls beside calls of the library by prepared arrays.

Both run in one process, over the device that the unit tests stand in: no kernel, no card.
Valgrind counts the instructions of the thread, as the difference of few and many turns.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from device import FOLDER, Device, build

from bench import callgrind, markdown
from nfsrdma_tools.client.blocks import Blocks, blocks
from nfsrdma_tools.command import run

__all__ = ["Cost", "about", "measure", "run_counted", "table"]

# the size of a block costs Python nothing
COUNT, SIZE = 4096, 4096
# 256 is the default
IN_FLIGHT = (16, 256)
# microseconds of a block
GOAL = 3.0
# turns of the two runs that Valgrind counts
RUNS = (1, 3)


class Load(NamedTuple):
    """Gets of all blocks: by the store, and by calls of the library."""

    in_flight: int
    store: Callable[[], object]
    library: Callable[[], object]


class Cost(NamedTuple):
    """Microseconds of CPU time of the calling thread for a block, and instructions."""

    in_flight: int
    library: float
    """Without Python: the median of the turns."""
    python: float
    """What Python adds: the difference of the medians."""
    least: float
    """The difference of the shortest turns."""
    instructions: float
    """Those that Python adds."""


def by_library(store: Blocks, slab: bytearray, in_flight: int) -> Callable[[], None]:
    """The same gets by calls of the library, which wait for as many blocks as the store does."""
    ffi, functions, handle = store._ffi, store._functions, store._store.handle
    memory = ffi.from_buffer("char[]", slab)
    names = [ffi.new("char[]", f"{number:05}".encode()) for number in range(COUNT)]
    kind = functions.NFSRDMA_BLOCK_GET
    rows = ffi.new("struct nfsrdma_block[]", [
        (name, memory + number * SIZE, SIZE, number, kind)
        for number, name in enumerate(names)
    ])  # fmt: skip
    done: Any = ffi.new("struct nfsrdma_completion[]", in_flight)

    def work() -> None:
        # of the library's names, which the array points to
        assert names
        taken = unfinished = 0
        while taken < COUNT or unfinished:
            if taken < COUNT:
                started = functions.nfsrdma_blocks_submit(
                    handle, rows + taken, COUNT - taken, 0, ffi.NULL
                )
                taken += max(started, 0)
                unfinished += max(started, 0)
            least = min(unfinished, in_flight // 2) or 1
            completed = functions.nfsrdma_blocks_wait(handle, done, in_flight, least, -1)
            assert completed > 0, completed
            unfinished -= completed

    return work


def thread_time(call: Callable[[], object]) -> float:
    """Microseconds of CPU time of this thread for a block."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3 / COUNT


@contextmanager
def loads() -> Iterator[list[Load]]:
    """A store for each number in flight, over a device."""
    path = build()
    os.environ["NFSRDMA_LIBRARY"] = str(path)
    device = Device(path)
    device.put("/export", kind=FOLDER)
    for number in range(COUNT):
        device.put(f"/export/{number:05}", bytes([1 + number % 255]) * SIZE)
    slab = bytearray(COUNT * SIZE)
    view = memoryview(slab)
    rows = [(f"{number:05}", view[number * SIZE :][:SIZE]) for number in range(COUNT)]
    made = []
    with ExitStack() as stack:
        for in_flight in IN_FLIGHT:
            store = stack.enter_context(blocks("server:/export", in_flight=in_flight))
            stack.enter_context(store.register(slab))
            prepared = by_library(store, slab, in_flight)
            for work in (prepared, partial(store.get, rows)):
                slab[:] = bytes(len(slab))
                work()
                if not all(slab[:: SIZE // 2]):
                    raise SystemExit(f"{in_flight} in flight: blocks are missing")
            made.append(Load(in_flight, partial(store.get, rows), prepared))
        # a full collection looks at the objects of the whole process
        gc.collect()
        gc.freeze()
        yield made


def measure(turns: int) -> list[Cost]:
    """The cost of a block, by the number in flight."""
    with loads() as made:
        times: list[tuple[list[float], list[float]]] = [([], []) for _ in made]
        for _ in range(turns):
            for load, (store, library) in zip(made, times, strict=True):
                store.append(thread_time(load.store))
                library.append(thread_time(load.library))
    return [
        Cost(load.in_flight, statistics.median(library),
             statistics.median(store) - statistics.median(library), min(store) - min(library),
             counted)
        for load, (store, library), counted in zip(made, times, count(len(made)), strict=True)
    ]  # fmt: skip


def run_counted() -> None:
    """Two calls of getppid() mark each part of Valgrind's count."""
    with loads() as made:
        for load in made:
            for way in (load.store, load.library):
                for turns in RUNS:
                    os.getppid()
                    for _ in range(turns):
                        way()
                    os.getppid()


def count(number: int) -> list[float]:
    """Instructions of the calling thread that Python adds to a block of each load."""
    parts = callgrind.parts(4 * number, ("-m", "bench", "blocks", "--counted"))
    costs = []
    for first in range(0, len(parts), 4):
        store_few, store_many, library_few, library_many = parts[first : first + 4]
        added = (store_many - store_few) - (library_many - library_few)
        costs.append(added / (RUNS[1] - RUNS[0]) / COUNT)
    return costs


def table(costs: list[Cost]) -> list[str]:
    rows: list[list[str]] = [["blocks in flight", "libnfsrdma, us", "Python adds, us",
                              "shortest turns, us", "goal, us",
                              "Python's instructions"]]  # fmt: skip
    rows += [
        [str(cost.in_flight), f"{cost.library:.2f}", f"{cost.python:.2f}", f"{cost.least:.2f}",
         f"{GOAL:g}", f"{cost.instructions:,.0f}"]
        for cost in costs
    ]  # fmt: skip
    return markdown.table(rows)


def about(turns: int) -> str:
    """The conditions of the table."""
    version = run("valgrind", "--version").stdout.strip()
    return (
        f"`make bench NAME=blocks`, {turns} turns, {version}, Python {platform.python_version()}, "
        f"{platform.machine()}, {COUNT:,} blocks in a turn, "
        f"{datetime.datetime.now(datetime.UTC).date()}."
    )
