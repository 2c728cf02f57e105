# SPDX-License-Identifier: Apache-2.0
"""Batches of two stores of blocks in a client, beside a test that disturbs their server.

The test and the storm talk in words: ``run N`` has N more batches end, ``recover`` waits until the
stores work again and compares all blocks, ``end`` ends the storm.  Each has an answer.

A batch has DEADLINE seconds.  Pulse measures, by the node's clock, how long no thread of this
process ran although it should: the machine is emulated, and its host busy.
"""

from __future__ import annotations

import errno
import faulthandler
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nfsrdma_tools.client.blocks import blocks
from testbed.block_oracle import EXISTS, GET, PUT, REMOVE, Oracle
from testbed.node import channel
from testbed.remote import on

__all__ = ["DEADLINE", "Report", "storm"]

DEADLINE = 2.0
# Seconds that a batch may return after its deadline, if the process ran all the time: the library
# ends up to three connections then, by system calls. Seen: 0.2 on a host with eight times its load.
MARGIN = 1.0
# a thread that returns no later than that is not stuck, but late
STUCK = 120
# to recover after a fault
LIMIT = 600
NAMES = ("a", "x/b", "x/c", "x/y/d", "z/e")
SIZES = (16, 500, 4096, 70_000, 600_001)
# batches in a row without a miss
SOUND = 5


@dataclass
class Report:
    """Counts and times since the last report."""

    batches: int = 0
    done: int = 0
    """Operations with a result of the server."""
    misses: int = 0
    unknown: int = 0
    """Puts and removes among the misses."""
    latest: float = 0
    """Seconds after its deadline at which a batch returned."""
    stalled: float = 0
    """Seconds of the same batch in which the process did not run."""
    recovered: float = 0
    """Seconds until the stores worked again."""
    seconds: float = 0
    """That it took."""
    errors: dict[int, int] = field(default_factory=dict)


class Pulse(threading.Thread):
    """A thread that only sleeps: when it wakes late, no thread of the process ran in time."""

    EVERY = 0.02

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gaps: list[tuple[float, float]] = []
        self.last = time.monotonic()
        self.start()

    def run(self) -> None:
        while True:
            time.sleep(self.EVERY)
            now = time.monotonic()
            if now - self.last > 3 * self.EVERY:
                self.gaps.append((self.last, now))
            self.last = now

    def stalled(self, begin: float, end: float) -> float:
        """Seconds between two times in which it did not wake as it should."""
        gaps = [*self.gaps, (self.last, max(self.last, end - 3 * self.EVERY))]
        inside = ((max(begin, first), min(end, last)) for first, last in gaps)
        return sum(last - first for first, last in inside if last > first)


class Storm:
    """Two stores, each in a thread of its own, and one oracle."""

    def __init__(self, target: str, seed: int) -> None:
        self.oracle = Oracle(random.Random(seed), 2, SIZES, places=4)  # noqa: S311 - no secret
        self.lock, self.ends, self.rest = threading.Lock(), threading.Event(), threading.Event()
        self.pulse = Pulse()
        self.failure: BaseException | None = None
        self.report, self.batches, self.reported = Report(), 0, time.monotonic()
        self.stores = [blocks(target, sessions=sessions) for sessions in (1, 3)]
        # the other one has its memory copied
        self.stores[0].register(self.oracle.slabs[0])
        self.begun = [0.0, 0.0]
        self.sound = [0, 0]
        self.resting = [threading.Event(), threading.Event()]
        self.threads = [
            threading.Thread(target=self._work, args=(which,), daemon=True) for which in range(2)
        ]
        for thread in self.threads:
            thread.start()

    # --- a thread of each store ---

    def _work(self, which: int) -> None:
        try:
            while not self.ends.is_set():
                if self.rest.is_set():
                    self.resting[which].set()
                    # what is left of drafts is removed by calls
                    self.stores[which].exists(["none"], DEADLINE)
                    time.sleep(0.05)
                else:
                    self.resting[which].clear()
                    with self.lock:
                        kind = self.oracle.random.choices((GET, PUT, EXISTS, REMOVE), (10, 6, 2, 1))
                        count = self.oracle.random.randint(1, 4)
                        names = self.oracle.random.choices(NAMES, k=count)
                    self._batch(which, kind[0], names)
        except BaseException as error:
            self.failure = error

    def _batch(self, which: int, kind: int, names: list[str]) -> list[int]:
        """Run a batch and check it; returns its results."""
        with self.lock:
            first = self.oracle.serial
            rows = [(name, self.oracle.begin(which, kind, name)) for name in names]
        begin = self.begun[which] = time.monotonic()
        results: list[int] = self.stores[which]._run(kind, rows, DEADLINE).in_order()
        end = time.monotonic()
        self.begun[which] = 0.0
        with self.lock:
            unknown = self.oracle.unknown
            for number, result in enumerate(results):
                self.oracle.end(which, first + number, result)
            self.oracle.check_canaries(which)
            self._count(which, results, begin, end)
            self.report.unknown += self.oracle.unknown - unknown
        return results

    def _count(self, which: int, results: list[int], begin: float, end: float) -> None:
        report = self.report
        self.batches += 1
        report.batches += 1
        missed = sum(result < 0 and result != -errno.ENOENT for result in results)
        report.misses += missed
        report.done += len(results) - missed
        self.sound[which] = 0 if missed else self.sound[which] + 1
        for result in results:
            if result < 0:
                report.errors[result] = report.errors.get(result, 0) + 1
        late, stalled = end - begin - DEADLINE, self.pulse.stalled(begin, end)
        if late > report.latest:
            report.latest, report.stalled = late, stalled
        assert late < MARGIN + stalled, (late, stalled)

    # --- words of the test ---

    def until(self, what: str, condition: Callable[[], Any], limit: float = LIMIT) -> None:
        """Wait for the threads; raises what failed in one of them, or if one is stuck."""
        end = time.monotonic() + limit
        while not condition():
            if self.failure:
                raise self.failure
            now = time.monotonic()
            for which, begun in enumerate(self.begun):
                if begun and now - begun > STUCK + self.pulse.stalled(begun, now):
                    faulthandler.dump_traceback(sys.stderr)
                    raise AssertionError(f"store {which} is stuck for {now - begun:.0f} s")
            assert now < end, f"{what}: not in {limit} s, {self.report}"
            time.sleep(0.2)
            for which in range(2):
                with self.lock:
                    self.oracle.check_canaries(which)

    def more(self, count: int) -> None:
        """Wait until ``count`` more batches have ended."""
        wanted = self.batches + count
        self.until(f"{count} batches", lambda: self.batches >= wanted)

    def recover(self) -> None:
        """Wait until both stores work again, then have them agree about all blocks."""
        begin = time.monotonic()
        with self.lock:
            self.sound[:] = [0, 0]
        self.until("recovery", lambda: min(self.sound) >= SOUND)
        self.report.recovered = time.monotonic() - begin
        self.rest.set()
        self.until("rest", lambda: all(each.is_set() for each in self.resting))
        self._settle()

    def _settle(self) -> None:
        """Read each block by both stores, and require that they return the same."""
        for name in NAMES:
            found = []
            for which in range(2):
                with self.lock:
                    serial = self.oracle.serial
                    memory = self.oracle.begin(which, GET, name)
                (result,) = self.stores[which]._run(GET, [(name, memory)], 60.0).in_order()
                assert result >= 0 or result == -errno.ENOENT, result
                with self.lock:
                    found.append(bytes(memory[:result]) if result >= 0 else None)
                    self.oracle.end(which, serial, result)
            assert found[0] == found[1], name
            self.oracle.blocks[name].values = {found[0]}
            self.oracle.blocks[name].uncertain.clear()

    def next_report(self) -> Report:
        """Return the counts since the last report, and start a new report."""
        with self.lock:
            report, self.report = self.report, Report()
        now = time.monotonic()
        report.seconds, self.reported = now - self.reported, now
        return report

    def end(self) -> None:
        """Close both stores; their threads have ended."""
        self.ends.set()
        self.rest.clear()
        self.until("the end", lambda: not any(each.is_alive() for each in self.threads))
        for store in self.stores:
            store.close()


@on("client", timeout=3600)
def storm(target: str, seed: int) -> int:
    """Run batches and answer the test's words; returns the number of batches."""
    running = Storm(target, seed)
    while (word := channel.receive()) != "end":
        what, _, count = word.partition(" ")
        if what == "run":
            running.rest.clear()
            running.more(int(count))
        else:
            running.recover()
        channel.send(running.next_report())
    running.end()
    return running.batches
