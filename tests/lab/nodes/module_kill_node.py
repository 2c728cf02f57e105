# SPDX-License-Identifier: Apache-2.0
"""Readers and writers that are killed in the middle, with a server that answers or does not.

Runs in the node as ``python3 - NAME SEED ROUNDS`` and prints what it found as JSON; /mnt/here is
mounted by our module.  Never imported by the tests.
"""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Process
from pathlib import Path
from typing import Any

HERE = Path("/mnt/here/killed")
CONNECTIONS = Path("/sys/kernel/debug/nfsrdma")
SIZE = 2 << 20
BLOCKS = (4096, 1 << 20)
# what a process has written but not the server, it waits for when it ends, killed or not
KILLABLE = (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT, os.O_WRONLY | os.O_DIRECT)
WAYS = (*KILLABLE, os.O_WRONLY)
DROP = "udp dport 4791 drop; tcp dport 20049 drop; tcp sport 20049 drop;"
IN = f"chain in {{ type filter hook input priority 0; {DROP} }}"
# a killed task ends when its memory is taken back; what takes longer never ends
LIMIT = 60.0
# less than the minute after which unanswered Calls end a connection, and are forgotten with it
SETTLED = 45.0


def endless(path: Path, flags: int, block: int) -> None:
    """Read or write a file until killed."""
    memory = memoryview(mmap.mmap(-1, block))
    file = os.open(path, flags)
    while True:
        for offset in range(0, SIZE, block):
            if flags & os.O_WRONLY:
                os.pwritev(file, [memory], offset)
            else:
                os.preadv(file, [memory], offset)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def victims(ways: tuple[int, ...], noise: bytes) -> list[Process]:
    """One for each way and block size, with a file of its own: direct I/O waits for other."""
    made = []
    for flags in ways:
        for block in BLOCKS:
            path = HERE / f"{flags:o}-{block}"
            path.write_bytes(noise)
            made.append(Process(target=endless, args=(path, flags, block)))
    for process in made:
        process.start()
    return made


def end(processes: list[Process]) -> list[str]:
    """Kill all; returns the stacks of those that do not die."""
    for process in processes:
        process.kill()
    until = time.monotonic() + LIMIT
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    return [Path(f"/proc/{p.pid}/stack").read_text() for p in processes if p.is_alive()]


def total(name: str) -> int:
    """A figure of all connections together."""
    lines = [line.split() for one in CONNECTIONS.glob("*/connection") for line in one.open()]
    return sum(int(words[1]) for words in lines if words[0] == name)


def used() -> int:
    """Calls under way on all connections."""
    return total("credits_used")


def settle() -> dict[str, int]:
    """Work under way when there should be none any more, and Calls that count as unanswered.

    Unanswered Calls would end a sound connection after a minute.
    """
    until = time.monotonic() + SETTLED
    while True:
        left = {"left": used(), "lost": total("calls_abandoned")}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.1)


def answered(rng: random.Random, noise: bytes) -> dict[str, Any]:
    processes = victims(WAYS, noise)
    time.sleep(rng.uniform(0.05, 1.0))
    return {"alive": end(processes)}


def silent(rng: random.Random, noise: bytes) -> dict[str, Any]:
    """The same when nothing comes from the server any more: they die before it does again."""
    processes = victims(KILLABLE, noise)
    time.sleep(rng.uniform(0.05, 1.0))
    subprocess.run(("nft", f"table inet silent {{ {IN}; }}"), check=True)
    try:
        # what is answered is; the rest waits
        time.sleep(1)
        blocked, alive = used(), [stack for stack in end(processes) if not is_closing(stack)]
    finally:
        subprocess.run(("nft", "delete", "table", "inet", "silent"), check=True)
    return {"blocked": blocked, "alive": alive or end(processes)}


def is_closing(stack: str) -> bool:
    """A task that exits has consumed its SIGKILL, and NFSv4 has it wait for the reply to CLOSE.

    That happens over each transport where no WRITE or READ in flight keeps the file open.
    """
    return "nfs4_do_close" in stack and "do_exit" in stack


def removed(rng: random.Random, noise: bytes) -> dict[str, Any]:
    """Readers when the RDMA device goes, and does not come back.

    What writers have under way ends in a COMMIT that is made too late to be given up.
    """
    processes = victims(KILLABLE[:2], noise)
    time.sleep(rng.uniform(0.05, 1.0))
    (device,) = Path("/sys/class/infiniband").iterdir()
    subprocess.run(("rdma", "link", "delete", device.name), check=True)
    time.sleep(1)
    return {"alive": end(processes)}


def killed(
    one: Callable[[random.Random, bytes], dict[str, Any]], seed: str, rounds: int
) -> dict[str, Any]:
    rng = random.Random(seed)  # noqa: S311 - no secret
    noise = rng.randbytes(SIZE)
    HERE.mkdir()
    found = [one(rng, noise) for _ in range(rounds)]
    if one is removed:
        return {"rounds": found}
    left = settle()
    wrong = [
        path.name
        for path in HERE.iterdir()
        if not int(path.name.split("-")[0], 8) & os.O_WRONLY and path.read_bytes() != noise
    ]
    subprocess.run(("rm", "-r", HERE), check=True)
    return {"rounds": found, **left, "wrong": wrong}


def main() -> Any:
    _, name, seed, rounds = sys.argv
    return killed(globals()[name], seed, int(rounds))
