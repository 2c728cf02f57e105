# SPDX-License-Identifier: Apache-2.0
"""Readers and writers that are killed in the middle, with a server that answers or does not."""

from __future__ import annotations

import mmap
import os
import random
import time
from multiprocessing import Process
from pathlib import Path

from testbed.faults import silence
from testbed.node.files import opened
from testbed.node.mounts import connections, mounted
from testbed.node.programs import call, hung, until
from testbed.remote import on

__all__ = ["READING", "kill_tasks", "killed", "start_tasks"]

SIZE = 2 << 20
BLOCKS = (4096, 1 << 20)
READING = (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT)
# what a process has written but not the server, it waits for when it ends, killed or not
KILLABLE = (*READING, os.O_WRONLY | os.O_DIRECT)
WAYS = (*KILLABLE, os.O_WRONLY)
# less than the minute after which unanswered Calls end a connection, and are forgotten with it
SETTLED = 45.0


@on("client")
def killed(options: str, silent: bool, seed: str, rounds: int, ours: bool = True) -> None:
    """They die when they are killed, silent: before the server answers again; nothing is left.

    Blocks of files that were written have the old data or the new.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    noise = rng.randbytes(SIZE)
    with mounted(options) as mount:
        assert bool(connections()) == ours, "the mount has the other module"
        folder = mount / "killed"
        for _ in range(rounds):
            tasks = start_tasks(folder, KILLABLE if silent else WAYS, noise)
            time.sleep(rng.uniform(0.05, 1.0))
            alive = killed_in_silence(tasks) if silent else kill_tasks(tasks)
            assert not alive, f"seed {seed}: {alive}"
        # an unanswered Call would end a sound connection after a minute
        until("no Call in flight, none unanswered", lambda: calls() == (0, 0), SETTLED, 0.1)
        wrong = [path.name for path in folder.iterdir() if not is_right(path, noise)]
        assert wrong == [], f"seed {seed}"
        call("rm", "-r", folder)


def is_right(path: Path, noise: bytes) -> bool:
    """Whether a file has this data, or zeros where a process has written them."""
    data, zeros = path.read_bytes(), bytes(min(BLOCKS))
    if not int(path.stem, 8) & os.O_WRONLY:
        return data == noise
    starts = range(0, SIZE, len(zeros))
    blocks = [(data[n : n + len(zeros)], noise[n : n + len(zeros)]) for n in starts]
    return len(data) == SIZE and all(found in (old, zeros) for found, old in blocks)


def start_tasks(folder: Path, ways: tuple[int, ...], noise: bytes) -> list[Process]:
    """One for each way and block size, with a file of its own: direct I/O waits for other."""
    folder.mkdir(exist_ok=True)
    tasks = []
    for flags in ways:
        for block in BLOCKS:
            path = folder / f"{flags:o}.{block}"
            path.write_bytes(noise)
            tasks.append(Process(target=read_or_write, args=(path, flags, block)))
    for task in tasks:
        task.start()
    return tasks


def read_or_write(path: Path, flags: int, block: int) -> None:
    """Read or write a file until killed."""
    memory = memoryview(mmap.mmap(-1, block))
    with opened(path, flags) as file:
        while True:
            for offset in range(0, SIZE, block):
                if flags & os.O_WRONLY:
                    os.pwritev(file, [memory], offset)
                else:
                    os.preadv(file, [memory], offset)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def kill_tasks(tasks: list[Process]) -> list[str]:
    """Kill all; returns the stacks of those that do not die.

    A task ends after the kernel has freed its memory; one that outlives the limit counts as hung.
    """
    for task in tasks:
        task.kill()
    return hung(tasks)


def killed_in_silence(tasks: list[Process]) -> list[str]:
    """The same when nothing comes from the server any more: they die before it does again."""
    with silence():
        # what is answered is; the rest waits
        time.sleep(1)
        alive = [stack for stack in kill_tasks(tasks) if not is_closing(stack)]
    return alive or kill_tasks(tasks)


def is_closing(stack: str) -> bool:
    """A task that exits has consumed its SIGKILL, and NFSv4 has it wait for the reply to CLOSE.

    That happens over each transport where no WRITE or READ in flight keeps the file open.
    """
    return "nfs4_do_close" in stack and "do_exit" in stack


def calls() -> tuple[int, int]:
    """Calls in flight on all connections, and unanswered ones; one that is replaced has none."""
    rows, names = connections(), ("credits_used", "calls_abandoned")
    used, abandoned = (sum(int(row.get(name, "0")) for row in rows) for name in names)
    return used, abandoned
