# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a block: a store's calls beside calls of the library by prepared arrays.

Both do the same, as bench/python_cost.py says, over the device that the unit tests stand in: no
kernel, no card.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from device import FOLDER, Device, build

from bench import markdown
from bench.python_cost import Cost, Load, Turns
from nfsrdma_tools.client.blocks import Blocks, blocks
from nfsrdma_tools.command import run

__all__ = ["COUNTED", "about", "loads", "table"]

# the size of a block costs Python nothing
COUNT, SIZE = 4096, 4096
# 256 is the default
IN_FLIGHT = (16, 256)
# microseconds of a block
GOAL = 3.0
COUNTED = Turns("blocks", COUNT, (1, 3))


def by_library(store: Blocks, slab: bytearray) -> Callable[[], None]:
    """The same gets by calls of the library, which wait for as many blocks as the store does."""
    ffi, functions, handle = store._ffi, store._functions, store._store.handle
    memory = ffi.from_buffer("char[]", slab)
    names = [ffi.new("char[]", f"{number:05}".encode()) for number in range(COUNT)]
    kind = functions.NFSRDMA_BLOCK_GET
    rows = ffi.new("struct nfsrdma_block[]", [
        (name, memory + number * SIZE, SIZE, number, kind)
        for number, name in enumerate(names)
    ])  # fmt: skip
    most = store._most
    done: Any = ffi.new("struct nfsrdma_completion[]", most)

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
            least = min(unfinished, most // 2) or 1
            completed = functions.nfsrdma_blocks_wait(handle, done, most, least, -1)
            assert completed > 0, completed
            unfinished -= completed

    return work


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
            prepared = by_library(store, slab)
            for work in (prepared, partial(store.get, rows)):
                slab[:] = bytes(len(slab))
                work()
                if not all(slab[:: SIZE // 2]):
                    raise SystemExit(f"{in_flight} in flight: blocks are missing")
            made.append(Load(str(in_flight), GOAL, partial(store.get, rows), prepared))
        # a full collection looks at the objects of the whole process
        gc.collect()
        gc.freeze()
        yield made


def table(costs: list[Cost]) -> list[str]:
    rows: list[list[str]] = [["blocks in flight", "libnfsrdma, us", "Python adds, us",
                              "shortest turns, us", "goal, us",
                              "Python's instructions"]]  # fmt: skip
    rows += [
        [cost.name, f"{cost.library:.2f}", f"{cost.median:.2f}", f"{cost.least:.2f}",
         f"{cost.goal:g}", f"{cost.instructions:,.0f}"]
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
