# SPDX-License-Identifier: Apache-2.0
"""What Python adds to operations of libnfsrdma: two ways to do the same, in one process.

One way is the Python client; the other one calls the library by cffi, with arrays that were
prepared before.  The CPU time of the calling thread is measured in turns; Valgrind counts the
instructions of that thread, as the difference of few and many turns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from bench import callgrind

__all__ = ["Cost", "Load", "Turns", "measure", "run_counted"]

Loads = Callable[[], AbstractContextManager[Sequence["Load"]]]


class Load(NamedTuple):
    """The operations of a turn: by the client, and by calls of the library."""

    name: str
    goal: float
    """Microseconds that Python may add to an operation."""
    client: Callable[[], object]
    library: Callable[[], object]


class Cost(NamedTuple):
    """The cost of an operation: microseconds of CPU time, and Python's instructions."""

    name: str
    goal: float
    library: float
    """Without Python: the median of the turns."""
    median: float
    """Python's: the difference of the medians."""
    least: float
    """The difference of the shortest turns."""
    instructions: float


class Turns(NamedTuple):
    """A benchmark that ``python -m bench BENCHMARK --counted`` counts."""

    benchmark: str
    operations: int
    """Of a turn."""
    counted: tuple[int, int]
    """Turns of the two runs that Valgrind counts."""


def measure(loads: Loads, turns: Turns, number: int) -> list[Cost]:
    """Measure the cost of each load, in a number of turns."""
    with loads() as made:
        times: list[tuple[list[float], list[float]]] = [([], []) for _ in made]
        for _ in range(number):
            for load, (client, library) in zip(made, times, strict=True):
                client.append(_thread_time(load.client) / turns.operations)
                library.append(_thread_time(load.library) / turns.operations)
    counts = _count(turns, len(made))
    return [
        Cost(load.name, load.goal, statistics.median(library),
             statistics.median(client) - statistics.median(library),
             min(client) - min(library), instructions)
        for load, (client, library), instructions in zip(made, times, counts, strict=True)
    ]  # fmt: skip


def _thread_time(call: Callable[[], object]) -> float:
    """Microseconds of CPU time of this thread."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


def run_counted(loads: Loads, turns: Turns) -> None:
    """Two calls of getppid() mark each part of Valgrind's count."""
    with loads() as made:
        for load in made:
            for way in (load.client, load.library):
                way()
                for number in turns.counted:
                    os.getppid()
                    for _ in range(number):
                        way()
                    os.getppid()


def _count(turns: Turns, loads: int) -> list[float]:
    """Instructions of the calling thread that Python adds to an operation of each load."""
    few, many = turns.counted
    parts = callgrind.parts(4 * loads, ("-m", "bench", turns.benchmark, "--counted"))
    costs = []
    for first in range(0, len(parts), 4):
        client_few, client_many, library_few, library_many = parts[first : first + 4]
        added = (client_many - client_few) - (library_many - library_few)
        costs.append(added / (many - few) / turns.operations)
    return costs
