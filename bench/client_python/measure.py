# SPDX-License-Identifier: Apache-2.0
"""Measure the cost that the Python client adds to a read.

Client and library read the same, as bench/python_cost.py says, over the device that the unit tests
stand in: no kernel, no card.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps

from device import FOLDER, Device, build

from bench import markdown
from bench.python_cost import Cost, Load, Turns, measure, run_counted
from nfsrdma_tools.client import File, Session, connect
from nfsrdma_tools.command import run

# operations of a turn, and bytes of each
COUNT = 1000
SIZE = 64
OPEN = (5, 5000)
TURNS = 200
COUNTED = Turns("client-python", COUNT, (1, 5))
COMPLETIONS = 128
# microseconds that Python adds to an operation, and the ratio of many open files to few
RANGE_GOAL, PREAD_GOAL, RATIO_GOAL = 1.0, 15.0, 1.1
FEW, MANY = (f"pread_into(), {count:,} open files" for count in OPEN)


def batch(name: str, session: Session, files: Sequence[File]) -> Iterator[Load]:
    """A batch whose ranges are in these files, in turn."""
    ranges = [(files[i % len(files)], 8 * i, SIZE) for i in range(COUNT)]
    out, expected = bytearray(SIZE * COUNT), bytearray(SIZE * COUNT)
    ffi, functions, _ = session._library
    memory = ffi.from_buffer("char[]", out)
    rows = ffi.new("struct nfsrdma_range[]", [
        (file.opened.handle, memory + i * SIZE, size, offset, i)
        for i, (file, offset, size) in enumerate(ranges)
    ])  # fmt: skip
    completions = ffi.new("struct nfsrdma_completion[]", COMPLETIONS)
    handle = session._queue.session.handle

    def by_library() -> None:
        taken = unfinished = 0
        while taken < COUNT or unfinished:
            if taken < COUNT:
                prepared = functions.nfsrdma_prepare_reads(rows + taken, COUNT - taken)
                assert prepared > 0, prepared
                taken += prepared
                unfinished += prepared
                functions.nfsrdma_submit(handle)
            # as many as the client waits for
            least = unfinished // 2 if taken < COUNT else unfinished
            completed = functions.nfsrdma_wait(handle, completions, COMPLETIONS, least, -1)
            assert completed > 0, completed
            unfinished -= completed

    session.read_ranges(ranges, expected)
    by_library()
    if out != expected or not any(out):
        raise SystemExit(f"{name}: the two ways read different data")

    def at_once() -> None:
        session.read_ranges(ranges, out)

    def by_transfer() -> None:
        session.start_read(ranges, out).result()

    yield Load(f"read_ranges(), {name}", RANGE_GOAL, at_once, by_library)
    yield Load(f"start_read().result(), {name}", RANGE_GOAL, by_transfer, by_library)


def single(name: str, session: Session, files: Sequence[File]) -> Load:
    """One read at a time, of these files in turn."""
    chosen = [files[i % len(files)] for i in range(COUNT)]
    handles = [file.opened.handle for file in chosen]
    out = bytearray(SIZE)
    ffi, functions, _ = session._library
    memory = ffi.from_buffer("char[]", out)

    def by_client() -> None:
        for file in chosen:
            file.pread_into(out, 0)

    def by_library() -> None:
        for handle in handles:
            functions.nfsrdma_pread(handle, memory, SIZE, 0)

    return Load(name, PREAD_GOAL, by_client, by_library)


@contextmanager
def loads() -> Iterator[list[Load]]:
    """All loads, over a device."""
    library = build()
    os.environ["NFSRDMA_LIBRARY"] = str(library)
    device = Device(library)
    device.put("/export", kind=FOLDER)
    data = bytes(range(1, 256)) * (SIZE * COUNT // 255)
    for number in range(OPEN[0]):
        device.put(f"/export/{number}", data)
    with connect("server:/export") as first, connect("server:/export") as second:
        few, many = (
            [session.open(str(number % OPEN[0])) for number in range(count)]
            for session, count in zip((first, second), OPEN, strict=True)
        )
        # a full collection looks at the objects of the whole process
        gc.collect()
        gc.freeze()
        yield [
            *batch("ranges of one file", first, few[:1]),
            *batch(f"ranges of {COUNT:,} open files", second, many[:COUNT]),
            single(FEW, first, few),
            # the same five are read: the number of open files is the only difference
            single(MANY, second, many[: OPEN[0]]),
            single(f"{MANY}, read in turn", second, many[:: len(many) // COUNT]),
        ]


def table(costs: Sequence[Cost]) -> list[str]:
    rows: list[list[str]] = [["an operation", "libnfsrdma, us", "Python adds, us",
                              "shortest turns, us", "goal, us",
                              "Python's instructions"]]  # fmt: skip
    rows += [
        [f"`{call}`, {rest}", f"{cost.library:.2f}", f"{cost.median:.2f}", f"{cost.least:.2f}",
         f"{cost.goal:g}", f"{cost.instructions:,.0f}"]
        for cost in costs
        for call, _, rest in (cost.name.partition(", "),)
    ]  # fmt: skip
    few, many = (next(cost for cost in costs if cost.name == name) for name in (FEW, MANY))
    text = (
        f"With {OPEN[1]:,} open files in place of {OPEN[0]}, Python takes "
        f"{many.median / few.median:.2f} times the CPU time for a `pread_into()`, and "
        f"{many.instructions / few.instructions:.2f} times the instructions (goal: {RATIO_GOAL})."
    )
    return [*markdown.table(rows), "", text]


def main(turns: int = TURNS, json: bool = False, counted: bool = False) -> None:
    """Measure without a lab: ``json`` prints JSON and writes no page; ``counted`` is Valgrind's."""
    if counted:
        run_counted(loads, COUNTED)
        return
    if not shutil.which("valgrind"):
        raise SystemExit("the count needs valgrind: apt install valgrind")
    costs = measure(loads, COUNTED, turns)
    if json:
        print(dumps([cost._asdict() for cost in costs], indent=2))
        return
    day = datetime.datetime.now(datetime.UTC).date()
    version = run("valgrind", "--version").stdout.strip()
    about = (
        f"`make bench NAME=client-python`, {turns} turns, {version}, "
        f"Python {platform.python_version()}, {platform.machine()}, {COUNT:,} operations of {SIZE} "
        f"bytes in a turn, {day}."
    )
    lines = table(costs)
    print(about, *lines, sep="\n")
    markdown.write("client python", [about, "", *lines])
