# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: READs of many files, and of many connections, with threadless reads and without.

``python3 -m lab.nodes.permits_node NAME ARGUMENT...`` calls a function, and prints JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import Any

from lab.nodes.optimistic_node import (
    BLOCK,
    DISK,
    EXPORT,
    HERE,
    SERVER,
    THERE,
    call,
    idle,
    lines,
    made,
    mounted,
    parameters,
    rpc_reads,
    totals,
    until,
)

TRACING = Path("/sys/kernel/tracing")
LIMIT = "65536"
# a host beside the client, and the address at which it finds the server
ANOTHER, SERVER_THERE = "10.9.1.12", "10.9.1.2"


# --- marks of fsnotify, which pin inodes, as the kernel counts them ---


@contextmanager
def _marks() -> Iterator[Callable[[], dict[str, int]]]:
    """The function returns how many marks anybody has made and destroyed meanwhile."""
    names = {"made": "fsnotify_init_mark", "destroyed": "fsnotify_destroy_mark"}
    probes, enable = TRACING / "kprobe_events", TRACING / "events/marks/enable"
    # hits are counted from its definition on
    probes.write_text("".join(f"p:marks/{name} {place}\n" for name, place in names.items()))
    enable.write_text("1")

    def count() -> dict[str, int]:
        rows = (row.split() for row in (TRACING / "kprobe_profile").read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if row[0] in names}

    try:
        yield count
    finally:
        enable.write_text("0")
        probes.write_text("")


def _inodes() -> int:
    """Inodes of ext4 in memory, without those that nothing uses."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    for line in Path("/proc/slabinfo").read_text().splitlines():
        if line.startswith("ext4_inode_cache "):
            return int(line.split()[1])
    raise LookupError("ext4_inode_cache")


# --- files that are read once ---


def _rest() -> None:
    """No permit is left, and nfsd has no file open."""
    call("exportfs", "-f")
    until("the end of permits", lambda: not totals()["threadless_entries"])
    # watches may outlive permits
    time.sleep(2)


def _pass(files: list[int], seconds: float = 0) -> tuple[float, int]:
    """Read the first block of each file; the time that takes, and how many had other bytes."""
    room, wrong, began = mmap.mmap(-1, BLOCK), 0, time.monotonic()
    for number, file in enumerate(files):
        wrong += os.preadv(file, [room], 0) != BLOCK or int.from_bytes(room[:8], "big") != number
    return time.monotonic() - began, wrong


def _marked(limit: str, files: list[int]) -> dict[str, int]:
    """READs that nfsd executed in a pass, and marks: made, and most at a time; nfsd's, too."""
    with parameters(server_threadless=limit), _marks() as marks:
        _rest()
        before, over, counts = marks(), threading.Event(), list[int]()

        def watch() -> None:
            while not over.wait(0.05):
                counts.append(alive(marks()))

        def alive(now: dict[str, int]) -> int:
            return now["made"] - now["destroyed"] - before["made"] + before["destroyed"]

        beside = threading.Thread(target=watch)
        beside.start()
        nfsd = rpc_reads()
        _pass(files)
        nfsd = rpc_reads() - nfsd
        over.set()
        beside.join()
        after = marks()
    made_now = after["made"] - before["made"]
    return {"nfsd": nfsd, "made": made_now, "most": max([*counts, alive(after)])}


def once(count: str, turns: str) -> Any:
    """Read many files once, with threadless reads and without in turns."""
    folder, number = DISK / "once", int(count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1000, number + 1000))
    folder.mkdir()
    inodes = _inodes()
    for name in range(number):
        (folder / str(name)).write_bytes(name.to_bytes(8, "big").ljust(BLOCK))
    seconds: dict[str, list[float]] = {"0": [], LIMIT: []}
    wrong = 0
    # few RPCs besides the READs
    with mounted("vers=3,nocto,actimeo=3600", folder=DISK):
        flags = os.O_RDONLY | os.O_DIRECT
        files = [os.open(HERE / f"once/{name}", flags) for name in range(number)]
        # the server has read the files, and what ext4 needs to find them
        _pass(files)
        for _ in range(int(turns)):
            for limit, times in seconds.items():
                with parameters(server_threadless=limit):
                    _rest()
                    took, bad = _pass(files)
                    times.append(took)
                    wrong += bad
        marked = {limit: _marked(limit, files) for limit in seconds}
        for file in files:
            os.close(file)
    call("exportfs", "-f")
    call("sync")
    began = time.monotonic()
    with suppress(TimeoutError):
        until("inodes that nothing pins", lambda: _inodes() < inodes + number // 10, 60)
    found = {
        "seconds": seconds, "wrong": wrong, "marked": marked,
        "pinned": _inodes() - inodes, "after": time.monotonic() - began,
    }  # fmt: skip
    call("rm", "-r", folder)
    return {**found, "server": idle()}


def tail(count: str, turns: str) -> Any:
    """Read the end of a log that a process of the server appends to, in turns as above."""
    path, seconds = EXPORT / "log", {"0": list[float](), LIMIT: list[float]()}
    made(path, 51, 10 * BLOCK)
    wrong = 0
    with mounted(), path.open("ab", buffering=0) as log:
        reader, room = os.open(HERE / "log", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
        # the block before the end, which does not change
        place, marked = 8 * BLOCK, dict[str, int]()
        last = path.read_bytes()[place : place + BLOCK]
        for turn in range(int(turns) + 1):
            for limit, times in seconds.items():
                with parameters(server_threadless=limit):
                    _rest()
                    if turn:
                        times.append(_tailed(log.fileno(), reader, room, place, int(count)))
                    else:
                        with _marks() as marks:
                            _tailed(log.fileno(), reader, room, place, int(count))
                            marked[limit] = marks()["made"]
                    wrong += room[:] != last
        os.close(reader)
    path.unlink()
    return {"seconds": seconds, "wrong": wrong, "marks": marked, "server": idle()}


def _tailed(log: int, reader: int, room: mmap.mmap, place: int, count: int) -> float:
    began = time.monotonic()
    for _ in range(count):
        os.write(log, b"a line\n")
        os.preadv(reader, [room], place)
    return time.monotonic() - began


# --- hosts ---


@contextmanager
def _another_host() -> Iterator[None]:
    """Let this machine have two more addresses: another client's, and the server's for it.

    As lab-node does: a table for each end of the link.
    """
    links = {end: Path(f"/sys/class/net/{end}/address").read_text().strip() for end in ("v0", "v1")}
    ways = (
        ("v0", ANOTHER, SERVER_THERE, "102", "22", links["v1"]),
        ("v1", SERVER_THERE, ANOTHER, "103", "23", links["v0"]),
    )
    for end, own, *_ in ways:
        call("ip", "addr", "add", f"{own}/32", "dev", end)
    for end, own, other, table, number, link in ways:
        call("ip", "rule", "add", "pref", number, "to", other, "lookup", table)
        call("ip", "route", "add", other, "dev", end, "src", own, "table", table)
        call("ip", "neigh", "add", other, "lladdr", link, "dev", end)
    try:
        yield
    finally:
        for end, own, other, table, number, _ in ways:
            call("ip", "neigh", "del", other, "dev", end)
            call("ip", "route", "del", other, "table", table)
            call("ip", "rule", "del", "pref", number)
            call("ip", "addr", "del", f"{own}/32", "dev", end)


def hits_by_host() -> dict[str, int]:
    """Of each client's address, the hits of its connections."""
    found = dict[str, int]()
    for folder in SERVER.glob("[0-9]*"):
        peer = lines(folder / "connection")["peer"]
        found[peer] = found.get(peer, 0) + int(lines(folder / "counters")["threadless_hits"])
    return found


def _read_all(folder: Path, names: list[str], rate: float, seconds: float, pipe: Any) -> None:
    """Read a block of each file ``rate`` times a second, after a message on the pipe."""
    files = [os.open(folder / name, os.O_RDONLY | os.O_DIRECT) for name in names]
    room, chance = mmap.mmap(-1, BLOCK), random.Random(61)  # noqa: S311 - no secret
    order = list(enumerate(files))
    pipe.send(None)
    pipe.recv()
    reads = wrong = 0
    began = at = time.monotonic()
    while at < began + seconds:
        # the client takes its connections in turn: a file is not always the same one's
        chance.shuffle(order)
        for number, file in order:
            os.preadv(file, [room], 0)
            wrong += room[0] != number % 251
        reads += len(files)
        at += 1 / rate
        time.sleep(max(0.0, at - time.monotonic()))
    pipe.send({"reads": reads, "seconds": time.monotonic() - began, "wrong": wrong})


def hosts(connections: str, files: str, others: str, rate: str, seconds: str) -> Any:
    """A host with some connections reads files, and so does another one beside it.

    Hits of both, by the server's counters, and the READs that nfsd executed.
    """
    names = {"many": int(files), "few": int(others)}
    for host, count in names.items():
        (EXPORT / host).mkdir()
        for number in range(count):
            (EXPORT / host / str(number)).write_bytes(bytes((number % 251,)) * BLOCK)
    # a file that changed in the last second gets no permit
    time.sleep(2)
    options = "vers=3,nocto,actimeo=3600,nosharecache"
    with _another_host(), mounted(f"{options},nconnect={connections}"):
        THERE.mkdir(parents=True, exist_ok=True)
        words = f"proto=rdma,port=20049,{options}"
        call("mount", "-t", "nfs", "-o", words, f"{SERVER_THERE}:{EXPORT}", THERE)
        try:
            found = _both(names, float(rate), float(seconds))
        finally:
            call("umount", THERE)
    for host in names:
        call("rm", "-r", EXPORT / host)
    return {**found, "server": idle()}


def _both(names: dict[str, int], rate: float, seconds: float) -> dict[str, Any]:
    pipes, processes = {}, []
    for at, (host, count) in zip((HERE, THERE), names.items(), strict=True):
        pipes[host], there = Pipe()
        words = (at / host, [str(number) for number in range(count)], rate, seconds, there)
        processes.append(Process(target=_read_all, args=words))
        processes[-1].start()
        pipes[host].recv()
    before, nfsd = hits_by_host(), rpc_reads()
    for pipe in pipes.values():
        pipe.send(None)
    found = {host: pipe.recv() for host, pipe in pipes.items()}
    after, nfsd = hits_by_host(), rpc_reads() - nfsd
    for process in processes:
        process.join()
    for host, address in zip(names, ("10.9.1.11", ANOTHER), strict=True):
        found[host]["hits"] = after[address] - before[address]
    return {"hosts": found, "nfsd": nfsd, "connections": len(list(SERVER.glob("[0-9]*")))}


def main() -> Any:
    return globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    print(json.dumps(main()))
