# SPDX-License-Identifier: Apache-2.0
"""Blocks in a node: read and written through mounts by threads, and by stores without a mount.

A child process has the mount or the store, so that samples of stacks are those of the work alone.
RPCs and CPU time of a block are the difference of a long and a short run.  nfsd's counters, and
those of the cards and the network devices, must agree with those of the client.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import queue
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.cells import RATE
from nfsrdma_tools.client.blocks import blocks
from nfsrdma_tools.client.session import Session
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import cpu_layers
from testbed.node.mounts import mounted
from testbed.remote import on

__all__ = ["IN_FLIGHT", "SERVED", "TARGET", "Cell", "Division", "Measured", "Way", "Worker",
           "measured", "of_mount", "of_sessions", "sampler", "spent", "worker_of"]  # fmt: skip

SERVED = Path("/export/bench-blocks")
HERE = Path("/mnt/bench")
TARGET = f"server:{SERVED}"
IN_FLIGHT = 16
FORK = multiprocessing.get_context("fork")
# of /proc/net/rpc/nfsd: procedures of NFSv3 and operations of NFSv4 by number
PROCEDURES = {
    "proc3": {3: "lookups", 6: "reads", 7: "writes"},
    "proc4ops": {15: "lookups", 18: "lookups", 25: "reads", 38: "writes"},
}
# the wire has these bytes for each byte of a block
LEAST, MOST = 1.0, 1.15


@dataclass(frozen=True)
class Way:
    """A mount with options and ``IN_FLIGHT`` threads, or a store with a number of sessions."""

    options: str = ""
    sessions: int = 0

    @property
    def is_tcp(self) -> bool:
        return "proto=tcp" in self.options


class Cell(NamedTuple):
    """An operation on blocks."""

    operation: str
    """get, or put"""
    size: int
    blocks: int
    """Blocks of a round."""


class Division(NamedTuple):
    """Nanoseconds of sampled time by side, the card model's work apart; the client's by layer."""

    sides: dict[str, int]
    layers: dict[str, int]


class Measured(NamedTuple):
    """A cell: counts of a block by name, and those of the first round."""

    first: dict[str, float]
    block: dict[str, float]
    division: Division | None


# --- clients ---


def content(number: int, size: int) -> bytes:
    """The data of a block: no two are equal."""
    return number.to_bytes(8, "little") * (size // 8)


class Client:
    """Memory for all blocks of a cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.slab = mmap.mmap(-1, cell.size * cell.blocks)
        view = memoryview(self.slab)
        self.names = [f"{number:05}" for number in range(cell.blocks)]
        self.parts = [view[n * cell.size :][: cell.size] for n in range(cell.blocks)]
        if cell.operation == "put":
            self.fill()

    def fill(self) -> None:
        for number, part in enumerate(self.parts):
            part[:] = content(number, self.cell.size)

    def check(self) -> None:
        """SystemExit unless the blocks arrived, in memory or in the server's files."""
        for number, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            is_put = self.cell.operation == "put"
            data = (SERVED / name).read_bytes() if is_put else bytes(part)
            if data != content(number, self.cell.size):
                raise SystemExit(f"{self.cell}: block {number} has other data")

    def work(self) -> None:
        raise NotImplementedError

    def counts(self) -> Counter[str]:
        raise NotImplementedError


class Threads(Client):
    """A mount; each thread opens, reads and closes a block after another."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        super().__init__(cell)
        self.folder = folder
        self.todo: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for _ in range(IN_FLIGHT):
            threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        one = self.get if self.cell.operation == "get" else self.put
        while True:
            numbers = self.todo.get()
            try:
                for number in numbers:
                    one(number)
                self.done.put(None)
            except BaseException as error:
                self.done.put(error)

    def work(self) -> None:
        every = list(range(self.cell.blocks))
        for first in range(IN_FLIGHT):
            self.todo.put(every[first::IN_FLIGHT])
        for _ in range(IN_FLIGHT):
            if error := self.done.get():
                raise error

    def get(self, number: int) -> None:
        file = os.open(self.folder / self.names[number], os.O_RDONLY | os.O_DIRECT)
        size = os.preadv(file, [self.parts[number]], 0)
        os.close(file)
        if size != self.cell.size:
            raise SystemExit(f"{self.cell}: a read of {size} bytes")

    def put(self, number: int) -> None:
        """As careful programs do: another name, fsync(2), and rename(2)."""
        draft, path = self.folder / f".{number}", self.folder / self.names[number]
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
        size = os.pwritev(file, [self.parts[number]], 0)
        os.fsync(file)
        os.close(file)
        draft.rename(path)
        if size != self.cell.size:
            raise SystemExit(f"{self.cell}: a write of {size} bytes")

    def counts(self) -> Counter[str]:
        return of_mount(HERE)


class Store(Client):
    """A store; one call for all blocks of a round."""

    def __init__(self, cell: Cell, store: Any) -> None:
        super().__init__(cell)
        self.store = store
        self.rows = list(zip(self.names, self.parts, strict=True))

    def work(self) -> None:
        if self.cell.operation == "get":
            found: Any = self.store.get(self.rows)
            good = found == [self.cell.size] * self.cell.blocks
        else:
            found = self.store.put(self.rows)
            good = all(found)
        if not good:
            raise SystemExit(f"{self.cell}: {found}")

    def counts(self) -> Counter[str]:
        return of_sessions(self.store._sessions)


def of_mount(folder: Path) -> Counter[str]:
    """RPCs of a mount by /proc/self/mountstats."""
    stats = mountstats.read(folder)
    return Counter(
        rpcs=sum(each.operations for each in stats.operations.values()),
        sent=sum(each.transmissions for each in stats.operations.values()),
        reads=stats.data("read").operations,
        writes=stats.data("write").operations,
    )


def of_sessions(sessions: list[Session]) -> Counter[str]:
    """RPCs of the library, and bytes that it copied."""
    sums: Counter[str] = Counter()
    for session in sessions:
        stats = session.stats
        sums.update(rpcs=stats.calls, sent=stats.calls + stats.resent, copied=stats.copied)
    return sums


@contextlib.contextmanager
def client(way: Way, cell: Cell) -> Iterator[Client]:
    if way.options:
        with mounted(way.options, HERE):
            yield Threads(cell, HERE / SERVED.name)
        return
    with blocks(TARGET, sessions=way.sessions, in_flight=IN_FLIGHT) as store:
        made = Store(cell, store)
        store.register(made.slab)
        yield made


# --- a child that has the client ---


class Worker:
    """A process that has a client, and calls its methods."""

    def __init__(self, made: AbstractContextManager[Any]) -> None:
        self.pipe, end = FORK.Pipe()
        self.process = FORK.Process(target=serve, args=(self.pipe, end, made))
        self.process.start()
        end.close()

    def ask(self, method: str, times: int = 1) -> Any:
        """The result of the last call."""
        self.pipe.send((method, times))
        try:
            return self.pipe.recv()
        except EOFError:
            raise SystemExit("the process with the client failed") from None

    def end(self) -> int:
        """Have it end; returns its exit status."""
        self.pipe.close()
        self.process.join()
        return self.process.exitcode or 0


@contextlib.contextmanager
def worker_of(made: AbstractContextManager[Any]) -> Iterator[Worker]:
    worker = Worker(made)
    try:
        yield worker
    except BaseException:
        worker.end()
        raise
    if status := worker.end():
        raise SystemExit(f"the process with the client ended with status {status}")


def serve(other: Any, pipe: Any, made: AbstractContextManager[Any]) -> None:
    # the parent's end, which the child has as well
    other.close()
    with made as client:
        while True:
            try:
                method, times = pipe.recv()
            except EOFError:
                return
            results = [getattr(client, method)() for _ in range(times)]
            pipe.send(results[-1])


# --- counters of the node ---


def nfsd() -> Counter[str]:
    """RPCs of nfsd, and its calls that read, write, and look up or open."""
    lines = (line.split() for line in Path("/proc/net/rpc/nfsd").read_text().splitlines())
    known = {words[0]: [int(float(word)) for word in words[1:]] for words in lines}
    sums = Counter({"nfsd rpcs": known["rpc"][0]})
    for table, names in PROCEDURES.items():
        for number, name in names.items():
            # the number of procedures precedes their counts
            sums[f"nfsd {name}"] += known[table][1 + number]
    return sums


def devices() -> Counter[str]:
    """The counters of both cards together, and the bytes that both network devices received."""
    sums: Counter[str] = Counter()
    for file in Path("/sys/class/infiniband").glob("*/ports/1/hw_counters/*"):
        if file.name != "lifespan":
            sums[f"card {file.name}"] += int(file.read_text())
    for file in Path("/sys/class/net").glob("v[01]/statistics/rx_bytes"):
        sums["network bytes"] += int(file.read_text())
    return sums


def counted(worker: Worker) -> Counter[str]:
    """All counters."""
    sums: Counter[str] = worker.ask("counts")
    # a sum of Counters would lack those that are 0
    sums.update(nfsd())
    sums.update(devices())
    return sums


def spent(worker: Worker, rounds: int = 1) -> Counter[str]:
    """All that changes in some rounds."""
    before, since = counted(worker), cpu_time.snapshot()
    worker.ask("work", rounds)
    taken = cpu_time.difference(cpu_time.snapshot(), since)
    after = counted(worker)
    after.subtract(before)
    after.update(busy=taken.busy_ns, ns=taken.wall_ns)
    return after


# --- a cell ---


@on("solo", timeout=7200)
def measured(ways: list[Way], cell: Cell, rounds: int, samples: int) -> list[Measured]:
    """Measure a cell by several ways: RPCs and CPU time of a block.

    ``samples`` of stacks divide the CPU time between the ends; 0: it is not divided.
    """
    shutil.rmtree(SERVED, ignore_errors=True)
    SERVED.mkdir(mode=0o777)
    for number in range(cell.blocks):
        (SERVED / f"{number:05}").write_bytes(content(number, cell.size))
    os.sync()
    try:
        results = [measure(way, cell, rounds) for way in ways]
        divisions = divide(ways, cell, rounds, samples) if samples else [None] * len(ways)
    finally:
        shutil.rmtree(SERVED)
    return [Measured(*counts, each) for counts, each in zip(results, divisions, strict=True)]


def measure(way: Way, cell: Cell, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """The counts of a block, in the first round, and in those that follow."""
    with worker_of(client(way, cell)) as worker:
        first = spent(worker, 1)
        short, long = spent(worker, 1), spent(worker, 1 + rounds)
        worker.ask("check")
    long.subtract(short)
    each = {name: count / rounds / cell.blocks for name, count in long.items()}
    agree(way, cell, each)
    return {name: count / cell.blocks for name, count in first.items()}, each


def agree(way: Way, cell: Cell, each: dict[str, float]) -> None:
    """SystemExit unless client, nfsd and devices have counted the same."""
    wire = each["network bytes" if way.is_tcp else "card bytes"] / cell.size
    if each["sent"] != each["nfsd rpcs"] or not LEAST <= wire <= MOST or each.get("copied"):
        raise SystemExit(f"{way}, {cell}: the counters differ: {each}")
    for name in ("reads", "writes"):
        if each.get(name, each[f"nfsd {name}"]) != each[f"nfsd {name}"]:
            raise SystemExit(f"{way}, {cell}: client and server differ: {each}")


class Sampler:
    """Samples of stacks since a moment."""

    def __init__(self, cpu: Any, session: Any) -> None:
        self.cpu, self.session = cpu, session
        self.start()

    def start(self) -> None:
        self.before = self.cpu.read(self.session)

    def division(self) -> Division:
        since = self.cpu.difference(self.cpu.read(self.session), self.before)
        return divided(self.cpu.records(since, {}))


@contextlib.contextmanager
def sampler() -> Iterator[Sampler]:
    # loading bcc takes longer than a cell
    from nfsrdma_tools.probes.probe_sets import attached, probe_set

    with attached(["cpu"], rate=RATE) as session:
        yield Sampler(probe_set("cpu"), session)


def divide(ways: list[Way], cell: Cell, rounds: int, samples: int) -> list[Division]:
    """Sample stacks in further rounds until there are enough samples of each way."""
    results = []
    with sampler() as taken:
        for way in ways:
            with worker_of(client(way, cell)) as worker:
                worker.ask("work")
                taken.start()
                division = divided([])
                while division.sides.get("samples", 0) < samples:
                    worker.ask("work", rounds)
                    division = taken.division()
            results.append(division)
    return results


def divided(rows: list[dict[str, Any]]) -> Division:
    """The sums of the rows of the probe set cpu."""
    sides: Counter[str] = Counter(dict.fromkeys(cpu_layers.SIDES, 0))
    layers = {}
    for row in rows:
        if row["layer"] == "busy":
            sides["samples"] += row["samples"]
        elif row["layer"] == cpu_layers.CARD:
            sides["card"] += row["ns"]
        elif row["layer"] not in (cpu_layers.TRACING, cpu_layers.IDLE):
            sides.update({side: row[f"{side}_ns"] for side in cpu_layers.SIDES})
            for side in cpu_layers.SIDES:
                layers[f"{side} {row['layer']}"] = row[f"{side}_ns"]
    return Division(dict(sides), layers)
