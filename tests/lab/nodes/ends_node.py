# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: ends of connections.

``python3 -m lab.nodes.ends_node NAME ARGUMENT...`` calls a function, and prints JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.nodes.optimistic_node import (
    BLOCK,
    CLIENTS,
    EXPORT,
    HERE,
    HUGE,
    LIMIT,
    MIB,
    SERVER,
    call,
    idle,
    lines,
    make_huge,
    mounted,
    state,
    summed,
    until,
)

CARDS = Path("/sys/kernel/debug/nfsrdma_card")
TRACING = Path("/sys/kernel/tracing")
# a message of this delay, in seconds, arrives after the end of its connection
LATE = 10.0
# a request is late after this time, in tenths of a second
PATIENCE = 30
CANARY = b"\x5a"
FAULTS = ("stuck", "keep_qps", "keep_regions", "cut_chains")


def order(card: str, name: str, value: int | str) -> None:
    (CARDS / card / name).write_text(f"{value}\n")


def left(card: str) -> dict[str, int]:
    """Faults that have not happened."""
    return {name: int((CARDS / card / name).read_text()) for name in FAULTS}


@contextmanager
def healed() -> Iterator[None]:
    """Both cards work again afterwards."""
    try:
        yield
    finally:
        for card in ("card0", "card1"):
            for name in (*FAULTS, "latency", "refuse"):
                order(card, name, 0)
            order(card, "cached_state", "N")


def made(name: str, seed: int, size: int = MIB, folder: Path = EXPORT) -> bytes:
    """Make a file on the server, which the page cache has."""
    data = random.Random(seed).randbytes(size)  # noqa: S311 - no secret
    Path(folder, name).write_bytes(data)
    return data


class Reader:
    """A file of the mount, open for direct reads into memory of this process."""

    def __init__(self, name: str, size: int) -> None:
        self.fd = os.open(HERE / name, os.O_RDONLY | os.O_DIRECT)
        self.size = size
        self.room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # the memory is there, and its own
        self.room[:] = bytes(size)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self) -> bytes:
        return self.room[: os.preadv(self.fd, [self.room], 0)]


def total(name: str) -> int:
    return summed(CLIENTS).get(name, 0)


def warm(reader: Reader, counter: str) -> None:
    """Read until READs go the way of the personality."""

    def goes() -> bool:
        before = total(counter)
        reader.read()
        return total(counter) > before

    until(counter, goes)


# of each personality: the client's counter of READs that go its way, and the card whose messages
# write the data: the server's, or the client's if that reads the data
WAYS = {
    "read-write": ("reply_bytes", "card1"),
    "cached": ("reply_bytes", "card1"),
    "padded": ("padded_replies", "card1"),
    "read-read": ("fetches", "card0"),
    "pre-posted": ("lane_calls", "card1"),
    "optimistic": ("optimistic_reads", "card0"),
}


def _delay(card: str, seconds: float) -> None:
    order(card, "latency", int(seconds * 1e9))


def waits() -> bool:
    """Whether a READ is under way."""
    files = Path("/sys/kernel/debug/sunrpc/rpc_clnt").glob("*/tasks")
    return any(re.search(r" READ .*q:xprt_pending", file.read_text()) for file in files)


def _send_late(read: threading.Thread, personality: str, seconds: float = LATE) -> float:
    """Start a READ whose data is late; returns the time at which it was sent, at the earliest."""
    card = WAYS[personality][1]
    replies, fetched = summed(SERVER)["replies"], total("fetches")
    # the Call takes its time, so that the Read which follows it can be later
    _delay(card, 1 if personality == "read-read" else seconds)
    at = time.monotonic()
    read.start()
    if card == "card0":
        until("the READ", waits)
    else:
        until("the Reply", lambda: summed(SERVER)["replies"] > replies)
    if personality == "read-read":
        _delay(card, seconds)
        at = time.monotonic()
        until("the RDMA Read", lambda: total("fetches") > fetched)
    # what was counted is posted soon; otherwise the data is not late, which the result tells
    time.sleep(0.2)
    _delay(card, 0)
    return at


def late(personality: str, size: str, stuck: str, keep_qps: str, keep_regions: str) -> Any:
    """A READ is answered after its connection ended; its card does not end the connection.

    The READ is sent again, and its memory returns to the process, which puts a canary there.
    """
    data = made("late", 1)[: int(size)]
    said: list[bytes] = []
    with healed(), mounted(f"vers=3,noac,timeo={PATIENCE},retrans=1"):
        with Reader("late", int(size)) as reader:
            warm(reader, WAYS[personality][0])
            reads = threading.Thread(target=lambda: said.append(reader.read()))
            order("card0", "stuck", stuck)
            order("card0", "keep_qps", keep_qps)
            order("card0", "keep_regions", keep_regions)
            sent = _send_late(reads, personality)
            reads.join(LIMIT)
            returned = time.monotonic() - sent
            alive = reads.is_alive()
            if not alive:
                reader.room[:] = CANARY * reader.size
            # the late data arrives: a card is never later than its clock
            time.sleep(max(0.0, sent + LATE + 2 - time.monotonic()))
            found = {
                "alive": alive, "returned": returned, "late": returned < LATE,
                "same": said == [data], "damaged": _damaged(reader.room), "left": left("card0"),
                "state": state(),
            }  # fmt: skip
            if alive:
                # an unmount would not end
                print(json.dumps(found), flush=True)
                os._exit(0)
        with Reader("late", int(size)) as reader:
            found["again"] = reader.read() == data
    return {**found, "server": idle()}


def _damaged(room: mmap.mmap) -> int:
    """Pages whose canary is gone."""
    page = CANARY * BLOCK
    return sum(room[at : at + BLOCK] != page[: len(room) - at] for at in range(0, len(room), BLOCK))


def writer(stuck: str, keep_qps: str, keep_regions: str) -> Any:
    """A file changes that a client reads by itself; the server's card does not end that.

    The notice of the change takes long. When the change has returned, nobody reads old data.
    """
    data = made("writer", 2)
    with healed(), mounted("vers=3,noac"), Reader("writer", BLOCK) as reader:
        warm(reader, "optimistic_reads")
        _delay("card1", LATE)
        order("card1", "cut_chains", 1)
        order("card1", "stuck", stuck)
        order("card1", "keep_qps", keep_qps)
        order("card1", "keep_regions", keep_regions)
        began = time.monotonic()
        with (EXPORT / "writer").open("r+b") as file:
            file.write(bytes(BLOCK))
            file.flush()
        took = time.monotonic() - began
        remaining = left("card1")
        _delay("card1", 0)
        before = total("optimistic_reads")
        first = reader.read()
        found = {
            "old": first == data[:BLOCK], "new": first == bytes(BLOCK), "took": took,
            "left": remaining, "optimistic": total("optimistic_reads") - before,
        }  # fmt: skip
        # the cards comply, and clients read by themselves again
        for name in FAULTS:
            order("card1", name, 0)
        warm(reader, "optimistic_reads")
    return {**found, "server": idle()}


def refused(cached: str, every: str) -> Any:
    """The server's card refuses Reads, which ends connections: Reads pause soon."""
    made("refused", 3)
    with healed(), mounted("vers=3,noac"), Reader("refused", BLOCK) as reader:
        warm(reader, "optimistic_reads")
        before = summed(CLIENTS)
        order("card0", "cached_state", cached)
        order("card1", "refuse", every)

        def changes() -> dict[str, int]:
            now = summed(CLIENTS)
            names = ("optimistic_refused", "optimistic_pauses", "optimistic_connects")
            return {name: now[name] - before[name] for name in names}

        def over() -> bool:
            reader.read()
            found = changes()
            return bool(found["optimistic_pauses"]) or found["optimistic_refused"] >= 8

        until("a pause", over, pause=0)
        found = changes()
    return {**found, "server": idle()}


@contextmanager
def huge() -> Iterator[mmap.mmap]:
    """Memory of 2 MiB that is contiguous."""
    call("sysctl", "-qw", "vm.nr_hugepages=4")
    room = mmap.mmap(-1, 2 * MIB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)
    try:
        yield room
    finally:
        room.close()
        call("sysctl", "-qw", "vm.nr_hugepages=0")


def reused(personality: str, size: str, rounds: str, files: str) -> Any:
    """A Reply is late, and the pages of its file, which follow each other, return to the system.

    Other data takes each page that nobody holds.  Then files are read once, and freed.
    """
    if not os.path.ismount(HUGE):
        make_huge()
    # what is made once and kept
    _reused(personality, int(size), 0)
    free = _free()
    same = sum(_reused(personality, int(size), number) for number in range(1, int(rounds) + 1))
    with mounted("vers=3,noac", folder=HUGE):
        same += sum(_read_once(int(size)) for _ in range(int(files)))
    return {"same": same, "kept": free - _free(), "server": idle()}


def _read_once(size: int) -> bool:
    """Whether the data of a new file is right."""
    (HUGE / "once").write_bytes(CANARY * 2 * MIB)
    with Reader("once", size) as reader:
        same = reader.read() == CANARY * size
    (HUGE / "once").unlink()
    return same


def _reused(personality: str, size: int, seed: int) -> bool:
    """Whether the data of a late Reply is right."""
    name, said = f"reused-{seed}", list[bytes]()
    data = made(name, seed, 2 * MIB, HUGE)[:size]
    with healed(), mounted("vers=3,noac", folder=HUGE), Reader(name, size) as reader:
        warm(reader, WAYS[personality][0])
        reads = threading.Thread(target=lambda: said.append(reader.read()))
        _send_late(reads, personality, 2)
        os.truncate(HUGE / name, 0)
        (HUGE / "canary").write_bytes(CANARY * 64 * MIB)
        reads.join(LIMIT)
    (HUGE / "canary").unlink()
    return said == [data]


def _free() -> int:
    """Free memory in bytes; what caches hold is dropped."""
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    return int(lines(Path("/proc/meminfo"))["MemFree:"].split()[0]) << 10


@contextmanager
def probed(probe: str) -> Iterator[list[int]]:
    """The values of ``count`` of a kernel probe, complete after the block."""
    counts: list[int] = []
    (TRACING / "kprobe_events").write_text(f"{probe}\n")
    try:
        (TRACING / "trace").write_text("")
        (TRACING / "events/ends/rw/enable").write_text("1")
        yield counts
        (TRACING / "events/ends/rw/enable").write_text("0")
        found = re.findall(r" count=(-?\d+)", (TRACING / "trace").read_text())
        counts.extend(map(int, found))
    finally:
        (TRACING / "events/ends/rw/enable").write_text("0")
        (TRACING / "kprobe_events").write_text("")


def entries() -> Any:
    """Entries of the scatterlists of RDMA Reads of 1 MiB of contiguous memory."""
    data = made("entries", 4)
    probe = "p:ends/rw rdma_rw_ctx_init count=$arg5:u32"
    with huge() as room, probed(probe) as counts, mounted("vers=3,noac,rsize=1048576"):
        file = os.open(HERE / "entries", os.O_RDONLY | os.O_DIRECT)
        got = os.preadv(file, [memoryview(room)[:MIB]], 0)
        os.close(file)
        same = room[:got] == data
    return {"same": same, "counts": counts, "server": idle()}


def elements(size: str, offset: str) -> Any:
    """Elements of the RDMA Read of an optimistic READ into contiguous memory, at an offset."""
    count = int(size)
    data = made("elements", 5)
    probe = "r:ends/rw nfr_mem_scatter_map count=$retval:s32"
    with mounted(f"vers=3,noac,rsize={count}"), Reader("elements", count) as reader:
        warm(reader, "optimistic_reads")
        before = total("optimistic_reads")
        with huge() as room, probed(probe) as counts:
            memory = memoryview(room)[int(offset) : int(offset) + count]
            same = os.preadv(reader.fd, [memory], 0) == count and memory == data[:count]
            memory.release()
        optimistic = total("optimistic_reads") - before
    return {"same": same, "counts": counts, "optimistic": optimistic, "server": idle()}


def main() -> Any:
    return globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    print(json.dumps(main()))
