# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: READs on lanes; ``python3 - NAME ARGUMENT...`` calls a function and prints JSON.

The tests do not import this file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path("/mnt/here")
CLIENTS = Path("/sys/kernel/debug/nfsrdma")
SERVER = Path("/sys/kernel/debug/nfsrdma-server")
SIZE = 32 << 20
BLOCK = 1 << 16
LIMIT = 60.0


def call(*argv: str | Path, check: bool = True) -> str:
    return subprocess.run(argv, check=check, capture_output=True, text=True).stdout


@contextmanager
def mounted(options: str) -> Iterator[None]:
    HERE.mkdir(exist_ok=True)
    words = f"proto=rdma,port=20049,{options}"
    call("mount", "-t", "nfs", "-o", words, "server:/export", HERE)
    try:
        yield
    finally:
        call("umount", HERE)


def made(name: str, seed: int) -> str:
    """Make a file on the server; returns its SHA-256."""
    data = random.Random(seed).randbytes(SIZE)  # noqa: S311 - no secret
    Path("/export", name).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read(name: str, size: int = 1 << 20) -> str:
    """Read a file past the page cache, by direct I/O of ``size`` bytes; its SHA-256."""
    found, room = hashlib.sha256(), mmap.mmap(-1, size)
    file = os.open(HERE / name, os.O_RDONLY | os.O_DIRECT)
    try:
        at = 0
        while got := os.preadv(file, [room], at):
            found.update(room[:got])
            at += got
    finally:
        os.close(file)
    return found.hexdigest()


def lines(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def counters() -> dict[str, int]:
    """Counters of all client transports."""
    total: dict[str, int] = {}
    for folder in CLIENTS.iterdir():
        for name, value in lines(folder / "counters").items():
            total[name] = total.get(name, 0) + int(value)
    return total


def state() -> list[dict[str, str]]:
    """State of all client transports."""
    return [lines(folder / "connection") for folder in CLIENTS.iterdir()]


def disconnects() -> int:
    return sum(int(each["disconnects"]) for each in state())


def in_use() -> dict[str, int]:
    """Connections and pages of the server."""
    totals = lines(SERVER / "totals")
    return {name: int(totals[name].split()[0]) for name in ("connections", "reply_pages")}


def idle() -> dict[str, int]:
    """The same, when the server has no connection any more, or after a limit."""
    end = time.monotonic() + LIMIT
    while any(in_use().values()) and time.monotonic() < end:
        time.sleep(0.2)
    return in_use()


def kinds(options: str) -> Any:
    """Buffered and direct reads of several sizes: whether all were right, and the counters."""
    wanted = made("kinds", 1)
    with mounted(options):
        same = [read("kinds", size) == wanted for size in (1 << 20, 1 << 16, 12288, 1 << 20)]
        whole = hashlib.sha256((HERE / "kinds").read_bytes()).hexdigest() == wanted
        found = {"same": [*same, whole], "counters": counters(), "state": state()}
        lines = call("nfsrdma", "module", "status").splitlines()
        found["status"] = [line for line in lines if line.startswith(("server ", "transport "))]
    return {**found, "server": idle()}


def endless(name: str, size: int, over: threading.Event, results: list[str]) -> None:
    """Read a file again and again; an error of a forced unmount is a result, too."""
    while not over.is_set():
        try:
            results.append(read(name, size))
        except OSError as error:
            results.append(f"errno {error.errno}")


def _failures(results: list[str]) -> dict[str, int]:
    """How often each error occurred."""
    return {one: results.count(one) for one in set(results) if one.startswith("errno")}


def kill(options: str, seconds: str) -> Any:
    """Kill readers at any time, and have forced unmounts end RPCs, while others read."""
    wanted, over, results = made("kill", 2), threading.Event(), list[str]()
    chance = random.Random(3)  # noqa: S311 - no secret
    with mounted(options):
        read("kill")
        # otherwise a forced unmount could succeed
        kept = os.open(HERE / "kill", os.O_RDONLY)
        before = disconnects()
        sizes = (1 << 20, 1 << 20, 1 << 18, 1 << 16)
        beside = [
            threading.Thread(target=endless, args=("kill", size, over, results)) for size in sizes
        ]
        for thread in beside:
            thread.start()
        killed, end = 0, time.monotonic() + float(seconds)

        def enough(now: float) -> bool:
            """On a busy machine, no READ of the first seconds may be under way at an umount."""
            seen = _failures(results) and counters()["lanes_ended"]
            return now > end + 5 * LIMIT or (now > end and bool(seen))

        while not enough(time.monotonic()):
            argv = (sys.executable, "-c", _READER, HERE / "kill")
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
                assert child.stdout
                child.stdout.read(1)
                time.sleep(chance.uniform(0, 0.05))
                child.kill()
            # the mount is busy and stays, but its RPCs end
            call("umount", "-f", HERE, check=False)
            killed += 1
        over.set()
        for thread in beside:
            thread.join()
        os.close(kept)
        found = {
            "killed": killed, "disconnects": disconnects() - before, "counters": counters(),
            "right": results.count(wanted), "failed": _failures(results),
            "all": len(results), "same": read("kill") == wanted, "state": state(),
        }  # fmt: skip
    return {**found, "server": idle()}


_READER = """
import mmap, os, sys
room = mmap.mmap(-1, 1 << 20)
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
os.write(1, b".")
while True:
    for at in range(32):
        os.preadv(file, [room], at << 20)
"""


def restart(options: str, times: str) -> Any:
    """Restart nfsd while data is read."""
    wanted, over, results = made("restart", 4), threading.Event(), []

    def honest() -> None:
        while not over.is_set():
            results.append(read("restart") == wanted)

    with mounted(options):
        beside = threading.Thread(target=honest)
        beside.start()
        try:
            for _ in range(int(times)):
                time.sleep(2)
                call("systemctl", "restart", "nfs-server")
                # busy: nfsd skips the grace period when no client has state to reclaim
                with suppress(OSError):
                    Path("/proc/fs/nfsd/v4_end_grace").write_text("Y\n")
            time.sleep(2)
        finally:
            over.set()
            beside.join()
        results.append(read("restart") == wanted)
        found = {"results": results, "counters": counters(), "state": state()}
    return {**found, "server": idle()}


@contextmanager
def hostile(port: str, blocks: int) -> Iterator[tuple[Path, bytes]]:
    """A mount of a hostile server, a file of so many blocks on it, and its contents."""
    wanted = random.Random(5).randbytes(BLOCK * blocks)  # noqa: S311 - no secret
    Path("/export/tricks").write_bytes(wanted)
    words = f"vers=3,proto=rdma,port={port},mountproto=tcp,rsize=65536,timeo=100"
    HERE.mkdir(exist_ok=True)
    call("mount", "-t", "nfs", "-o", words, "server:/export", HERE)
    try:
        yield HERE / "tricks", wanted
    finally:
        call("umount", HERE)


def tricks(port: str, count: str) -> Any:
    """Read each block of a server whose lanes play a trick at each, and an honest one between."""
    total, room, same, ended = int(count), mmap.mmap(-1, BLOCK), [], []
    with hostile(port, total + 1) as (path, wanted):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for number in range(total):
            wait_for_lane(file, room, BLOCK * total)
            before = counters()
            got = os.preadv(file, [room], number * BLOCK)
            right = got == BLOCK and room[:] == wanted[number * BLOCK : (number + 1) * BLOCK]
            # the Reply after it may be what the trick spoils
            again = os.preadv(file, [room], total * BLOCK) == BLOCK
            right = right and again and room[:] == wanted[total * BLOCK :]
            same.append(right and counters()["lane_calls"] > before["lane_calls"])
            # the first trick is honest, and ends none
            ended.append(ends(before["lanes_ended"], LIMIT if number else 0.5))
        os.close(file)
        return {"same": same, "ended": ended, "disconnects": disconnects()}


def mutants(port: str, count: str) -> Any:
    """Read each block of a server whose Replies on lanes are mutated, and an honest one between."""
    total, room = int(count), mmap.mmap(-1, BLOCK)
    outcomes: dict[str, int] = {}
    wrong, lanes = [], 0
    with hostile(port, total + 1) as (path, wanted):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for number in range(total):
            wait_for_lane(file, room, BLOCK * total)
            before = counters()["lane_calls"]
            outcome, file = outcome_of(path, file, room, number, wanted)
            lanes += counters()["lane_calls"] > before
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            again, file = outcome_of(path, file, room, total, wanted)
            if outcome == "wrong" or again != "right":
                wrong.append([number, outcome, again])
        os.close(file)
        return {"outcomes": outcomes, "wrong": wrong, "on_lanes": lanes, "state": state()}


def outcome_of(
    path: Path, file: int, room: mmap.mmap, block: int, wanted: bytes
) -> tuple[str, int]:
    """How a read ends, and the file, which is another one if NFS believes that it is."""
    there = wanted[block * BLOCK : (block + 1) * BLOCK]
    try:
        got = os.preadv(file, [room], block * BLOCK)
    except OSError as error:
        if error.errno == errno.ESTALE:
            os.close(file)
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        return "error", file
    if room[:got] != there[:got]:
        return "wrong", file
    return "right" if got == BLOCK else "short", file


def leaving(port: str, block: str, seconds: str) -> Any:
    """Read one block, whose Reply ends its lane, for some time."""
    at, same, began = int(block) * BLOCK, [], time.monotonic()
    with hostile(port, int(block) + 1) as (path, wanted):
        file, room = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            same.append(os.preadv(file, [room], at) == BLOCK and room[:] == wanted[at:])
        os.close(file)
        return {"same": same, "counters": counters(), "seconds": time.monotonic() - began}


def ends(before: int, seconds: float) -> int:
    """Number of lanes that ended since; a worker ends them."""
    end = time.monotonic() + seconds
    while counters()["lanes_ended"] == before and time.monotonic() < end:
        time.sleep(0.05)
    return counters()["lanes_ended"] - before


def wait_for_lane(file: int, room: mmap.mmap, offset: int) -> None:
    """Read until a lane has carried a READ."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        before = counters()["lane_calls"]
        os.preadv(file, [room], offset)
        if counters()["lane_calls"] > before:
            return
        time.sleep(0.1)
    raise TimeoutError("no lane")


def main() -> Any:
    return globals()[sys.argv[1]](*sys.argv[2:])


print(json.dumps(main()))
