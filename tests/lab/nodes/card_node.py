# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: tests modelled cards; ``python3 - NAME`` calls a function and prints JSON.

The tests do not import this file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

FILES = Path("/sys/kernel/debug/nfsrdma_card")
COUNTERS = Path("/sys/class/infiniband/{}/ports/1/hw_counters")
HERE = Path("/mnt/here")
ENDS = {"card0": "v0", "card1": "v1"}
SIZE = 8 << 20
LIMIT = 120.0
FORK = multiprocessing.get_context("fork")
FAILURES = ("break", "link_down", "gone", "deleted")


def call(*argv: str | Path, check: bool = True) -> str:
    return subprocess.run(argv, check=check, capture_output=True, text=True).stdout


def order(card: str, name: str, value: int | str) -> None:
    (FILES / card / name).write_text(f"{value}\n")


def counters(card: str) -> dict[str, int]:
    folder = Path(str(COUNTERS).format(card))
    # the core keeps what it has read for 10 ms
    time.sleep(0.05)
    return {p.name: int(p.read_text()) for p in folder.iterdir() if p.name != "lifespan"}


def wait_for(what: str, there: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)


def is_active(card: str) -> bool:
    return f"link {card}/1 state ACTIVE" in call("rdma", "link", check=False)


@contextmanager
def mounted(options: str) -> Iterator[None]:
    HERE.mkdir(exist_ok=True)
    words = f"proto=rdma,port=20049,{options}"
    call("mount", "-t", "nfs", "-o", words, "server:/export", HERE)
    try:
        yield
    finally:
        call("umount", HERE)


def write(name: str, seed: int, size: int = SIZE) -> str:
    data = hashlib.shake_128(f"{seed}".encode()).digest(size)
    with (HERE / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def read(name: str) -> str:
    # read from the server, not from the page cache
    with (HERE / name).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.sha256(file.read()).hexdigest()


def same(name: str, seed: int) -> bool:
    wanted = write(name, seed)
    there = hashlib.sha256(Path("/export", name).read_bytes()).hexdigest()
    return wanted == there == read(name)


def data() -> Any:
    """Whether data is equal, for each NFS version, and the changes of the counters."""
    good, before = {}, {card: counters(card) for card in ENDS}
    for seed, options in enumerate(("vers=3", "vers=4.2", "vers=4.1,nconnect=4,rsize=8192")):
        with mounted(options):
            good[options] = same("data", seed)
    changes = {card: changed(before[card], counters(card)) for card in ENDS}
    return {"same": good, "counters": changes}


def changed(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in after.items()}


def lost() -> Any:
    """The card loses messages and retransmits them."""
    before = counters("card0")
    with mounted("vers=3"):
        order("card0", "lose", 3)
        good = same("lost", 4)
    return {"same": good, **changed(before, counters("card0"))}


def late() -> Any:
    """Send completions arrive later than the replies."""
    order("card0", "completion_delay", 2_000_000)
    try:
        with mounted("vers=4.2"):
            return {"same": same("late", 5)}
    finally:
        order("card0", "completion_delay", 0)


def cached() -> Any:
    """The translation cache is smaller than a registration."""
    before = counters("card0")["cache_misses"]
    order("card0", "cache_entries", 16)
    order("card0", "cache_miss", 9_000)
    try:
        with mounted("vers=3"):
            good = same("cached", 6)
        return {"same": good, "misses": counters("card0")["cache_misses"] - before}
    finally:
        order("card0", "cache_entries", 0)


def allocated() -> int:
    """Pages that the kernel has allocated since it started."""
    rows = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in rows if name.startswith("pgalloc_"))


def pages() -> Any:
    """Pages that the kernel allocates for a direct read of 1 MiB, and for a direct write.

    The kernel counts for the whole machine, and other programs only add to it: of several series
    the one with the fewest pages is the server's.
    """
    size, turns, series = 1 << 20, 16, 6
    room, found = mmap.mmap(-1, size), {}
    with mounted("vers=3,rsize=1048576,wsize=1048576"):
        write("pages", 7, size)
        file = os.open(HERE / "pages", os.O_RDWR | os.O_DIRECT)
        for name, transfer in (("read", os.preadv), ("write", os.pwritev)):
            # what the first series allocates, the module keeps: its count is not the least
            counts = [allocated()]
            for _ in range(series):
                for _ in range(turns):
                    if transfer(file, [room], 0) != size:
                        raise OSError(f"short {name}")
                counts.append(allocated())
            found[name] = min(b - a for a, b in pairwise(counts)) / turns
        os.close(file)
    return found


def direct(file: int, size: int) -> str:
    room = mmap.mmap(-1, size)
    return hashlib.sha256(room[: os.preadv(file, [room], 0)]).hexdigest()


@contextmanager
def deferrals() -> Iterator[tuple[Callable[[str], int], Callable[[], int]]]:
    """Trace nfsd's deferred Calls, and Replies that hold their pages.

    Yields two functions: how many Calls met an event, of which nfsd may defer each more than once,
    and how many Replies hold their pages.
    """
    tracing = Path("/sys/kernel/tracing")
    has_hold = " nfr_mem_transfer_hold\t" in Path("/proc/kallsyms").read_text()
    (tracing / "kprobe_events").write_text(
        "p:tests/held nfr_mem_transfer_hold\n" if has_hold else ""
    )
    events = [
        *tracing.glob("events/sunrpc/svc_defer*/enable"),
        *tracing.glob("events/tests/enable"),
    ]
    trace = tracing / "trace"
    trace.write_text("")
    for event in events:
        event.write_text("1")
    try:
        yield (
            lambda name: len(set(re.findall(rf" {name}: .*xid=(\w+)", trace.read_text()))),
            lambda: trace.read_text().count(" held: "),
        )
    finally:
        for event in events:
            event.write_text("0")
        (tracing / "kprobe_events").write_text("")


@contextmanager
def no_answers() -> Iterator[None]:
    """Stop mountd, after nfsd has forgotten its answers."""
    call("pkill", "-STOP", "rpc.mountd")
    try:
        call("exportfs", "-f")
        yield
    finally:
        call("pkill", "-CONT", "rpc.mountd")


@contextmanager
def slow_wire(latency_ns: int) -> Iterator[None]:
    for card in ENDS:
        order(card, "latency", latency_ns)
    try:
        yield
    finally:
        for card in ENDS:
            order(card, "latency", 0)


def deferred() -> Any:
    """nfsd defers READs, because mountd does not answer; then all threads list folders."""
    size, readers, folders, rounds = 1 << 20, 4, 8, int(sys.argv[2])
    names = {f"f{n}": sorted(f"f{n}-{i}-{'x' * 60}" for i in range(2000)) for n in range(folders)}
    for name, entries in names.items():
        Path("/export", name).mkdir(exist_ok=True)
        for entry in entries:
            Path("/export", name, entry).touch()
    found = {"read": True, "listed": True, "deferred": 0, "held": 0}
    with mounted("vers=3,rsize=1048576,wsize=1048576"), ExitStack() as opened:
        wanted = [write(f"deferred{n}", n, size) for n in range(readers)]
        # before nfsd forgets, so that READs are the first Calls to be deferred
        paths = [HERE / f"deferred{n}" for n in range(readers)]
        files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
        for file in files:
            opened.callback(os.close, file)
        pool = opened.enter_context(FORK.Pool(folders))
        for _ in range(rounds):
            with deferrals() as (calls, held):
                with no_answers():
                    work = [pool.apply_async(direct, (file, size)) for file in files]
                    # each thread waits for some seconds; another one takes what it deferred
                    wait_for("deferred Calls", lambda: calls("svc_defer") >= readers)
                found["read"] &= [each.get(LIMIT) for each in work] == wanted
                found["deferred"] += calls("svc_defer_recv")
                found["held"] += held()
            # the replies are on the wire while the threads build the next ones
            with slow_wire(20_000_000):
                for _ in range(3):
                    Path("/proc/sys/vm/drop_caches").write_text("3")
                    listed = pool.map(os.listdir, [HERE / name for name in names])
                    found["listed"] &= [sorted(entries) for entries in listed] == [*names.values()]
    return found


@contextmanager
def load() -> Iterator[dict[str, Any]]:
    """Write and read files during the block, and compare each."""
    # a process: with a thread, each command would flush the open file in its fork, and wait
    files, differ, ends = FORK.Value("i", 0), FORK.Value("i", 0), FORK.Event()

    def work() -> None:
        while not ends.is_set():
            differ.value += not same("load", files.value)
            files.value += 1

    process = FORK.Process(target=work)
    process.start()
    state: dict[str, Any] = {}
    try:
        wait_for("a file", lambda: files.value)
        yield state
        now = files.value
        wait_for("a file after it", lambda: files.value > now + 1)
    finally:
        ends.set()
        process.join(LIMIT)
    state |= {"files": files.value, "same": not differ.value and process.exitcode == 0}


def add(card: str) -> None:
    call("rdma", "link", "add", card, "type", "nfsrdma_card", "netdev", ENDS[card])
    wait_for(card, lambda: is_active(card))


def broken() -> Any:
    """The card fails under load, in four ways; the mount recovers."""
    found = {}
    with mounted("vers=3,timeo=50"):
        for name in FAILURES:
            with load() as state:
                fail(name)
            found[name] = state
    return found


def storm() -> Any:
    """The card fails at random under load."""
    rng = random.Random(8166)  # noqa: S311
    with mounted("vers=3,timeo=50"), load() as state:
        for _ in range(int(sys.argv[2])):
            fail(rng.choice(FAILURES))
            time.sleep(rng.uniform(0, 2))
    return state


def fail(name: str) -> None:
    if name == "break":
        order("card0", "break", 0)
    elif name == "link_down":
        order("card0", "link_down", 1)
        wait_for("down", lambda: not is_active("card0"))
        order("card0", "link_down", 0)
    else:
        if name == "gone":
            order("card0", "gone", 1)
        else:
            call("rdma", "link", "delete", "card0")
        wait_for("removal", lambda: not Path("/sys/class/infiniband/card0").exists())
        add("card0")


def unplugged() -> Any:
    """Remove the network device of a card."""
    call("ip", "link", "add", "lab9", "type", "dummy")
    call("ip", "link", "set", "lab9", "up")
    call("rdma", "link", "add", "card9", "type", "nfsrdma_card", "netdev", "lab9")
    refused = subprocess.run(
        ("rdma", "link", "add", "card8", "type", "nfsrdma_card", "netdev", "lab9"),
        check=False, capture_output=True,
    ).returncode  # fmt: skip
    call("ip", "link", "delete", "lab9")
    wait_for("removal", lambda: not Path("/sys/class/infiniband/card9").exists())
    return {"second_refused": refused != 0}


def slabs() -> dict[str, int]:
    for path in Path("/sys/kernel/slab").glob("kmalloc-*/shrink"):
        path.write_text("1\n")
    rows = [line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:]]
    return {row[0]: int(row[1]) for row in rows if row[0].startswith("kmalloc")}


def loads() -> Any:
    """Unload the module under a mount and reload it; returns the objects in use, round by round."""
    file, rounds = Path("/run/nfsrdma_card.ko"), int(sys.argv[2])
    found = []
    with mounted("vers=3,timeo=50"):
        # nfsd keeps its replies to WRITEs for two minutes, which would look like a leak
        wanted = write("loads", 0)
        for _ in range(rounds):
            good = read("loads") == wanted
            call("rmmod", "nfsrdma_card")
            call("insmod", file)
            for card in ENDS:
                add(card)
            found.append({"same": good, "slabs": slabs()})
    return found


print(json.dumps(globals()[sys.argv[1]]()))
