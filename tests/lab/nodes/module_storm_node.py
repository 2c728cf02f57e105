# SPDX-License-Identifier: Apache-2.0
"""Work that knows what it has to find, done while everything else breaks; runs in the node.

``python3 - work SEED MEMORY WORKERS...`` works in /mnt/here until /run/storm.stop is there, then
reads all of it once more.  MEMORY is ``forgets`` if the server may forget which Calls it has
executed, or ``remembers``.  Prints its folder there and what each worker did as JSON.  Never
imported by the tests.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

# several clients may work in one export
HERE = Path("/mnt/here") / f"storm-{platform.node()}"
STOP = Path("/run/storm.stop")
SIZE = 4 << 20
PAGE = 4096
# an inline message, a page, one memory region, several, the largest request
SIZES = (1, 100, 3000, PAGE, 65536, 262144, 1 << 20)
# after the storm: what is hung then hangs for good
LIMIT = 400.0


class Slowest:
    """How long the slowest operation took, in seconds."""

    def __init__(self) -> None:
        self.since, self.seconds = time.monotonic(), 0.0

    def next(self) -> None:
        now = time.monotonic()
        self.since, self.seconds = now, max(self.seconds, now - self.since)


class WrongError(Exception):
    """Something is not what it was made to be."""


def data(name: str, rng: random.Random, again: Callable[[], bool], direct: bool) -> dict[str, Any]:
    """Random pieces of a file written and read; what it has to contain is kept in memory."""
    path, image, memory = HERE / name, bytearray(SIZE), memoryview(mmap.mmap(-1, 1 << 20))
    file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0), 0o644)
    os.ftruncate(file, SIZE)
    while again():
        size = rng.choice(SIZES)
        offset = rng.randrange(SIZE - size + 1)
        part = memory[:size]
        if rng.random() < 0.5:
            image[offset : offset + size] = part[:] = rng.randbytes(size)
            done = os.pwritev(file, [part], offset)
        else:
            if not direct:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            done = os.preadv(file, [part], offset)
            if part != image[offset : offset + size]:
                raise WrongError(f"{size} bytes at {offset}")
        if done != size:
            raise WrongError(f"{done} of {size} bytes at {offset}")
    os.fsync(file)
    os.close(file)
    if path.read_bytes() != image:
        raise WrongError("the whole file at the end")
    return {"sha256": hashlib.sha256(image).hexdigest()}


def buffered(name: str, rng: random.Random, again: Callable[[], bool]) -> dict[str, Any]:
    return data(name, rng, again, direct=False)


def direct(name: str, rng: random.Random, again: Callable[[], bool]) -> dict[str, Any]:
    return data(name, rng, again, direct=True)


class Names:
    """A folder and what has to be in it.

    With ``forgets``, a server that executed a Call, and was restarted before its reply arrived,
    may say of the Call that is sent again that the name is gone.  That counts as done if the
    folder shows it.
    """

    def __init__(self, folder: Path, rng: random.Random, forgets: bool) -> None:
        self.folder, self.rng, self.forgets = folder, rng, forgets
        self.there: list[str] = []
        self.again = 0
        folder.mkdir()

    def make(self, name: str) -> None:
        (self.folder / name).write_bytes(self.rng.randbytes(self.rng.randrange(6000)))
        self.there.append(name)

    def rename(self, name: str) -> None:
        old = self.any()
        self.there.append(name)
        with self.executed_before():
            (self.folder / old).rename(self.folder / name)

    def remove(self, _: str) -> None:
        old = self.any()
        with self.executed_before():
            (self.folder / old).unlink()

    @contextmanager
    def executed_before(self) -> Iterator[None]:
        """Accept that a name is gone, if the folder is what it has to be afterwards."""
        try:
            yield
        except FileNotFoundError:
            if not self.forgets:
                raise
            self.again += 1
            # the client lists what it knows until it asks for the folder's attributes again
            end = time.monotonic() + LIMIT
            while not self.is_sound() and time.monotonic() < end:
                time.sleep(1)
            self.list("")

    def is_sound(self) -> bool:
        return {path.name for path in self.folder.iterdir()} == set(self.there)

    def list(self, _: str) -> None:
        if not self.is_sound():
            raise WrongError("the list of names")

    def any(self) -> str:
        """One that will not be there any more."""
        return self.there.pop(self.rng.randrange(len(self.there)))


def names(name: str, rng: random.Random, again: Callable[[], bool]) -> dict[str, Any]:
    """Files that come, are renamed and go; none of it may happen twice, or not at all."""
    folder, number = Names(HERE / name, rng, sys.argv[3] == "forgets"), 0
    while again():
        number += 1
        ways = (folder.make, folder.make, folder.rename, folder.remove, folder.list)
        rng.choice(ways if folder.there else ways[:1])(f"a-rather-long-name-{number}")
    folder.list("")
    while folder.there:
        folder.remove("")
    folder.folder.rmdir()
    return {"executed before": folder.again}


def worker(answers: Queue[dict[str, Any]], seed: str, kind: str, number: int) -> None:
    done, slowest = 0, Slowest()

    def again() -> bool:
        nonlocal done
        done += 1
        slowest.next()
        # each has done something, however short the storm was
        return done < 5 or not STOP.exists()

    name = f"{kind}-{number}"
    about: dict[str, Any] = {"worker": name}
    try:
        about |= globals()[kind](name, random.Random(f"{seed} {name}"), again)  # noqa: S311 - no secret
    except (OSError, WrongError) as error:
        about["error"] = repr(error)
    answers.put({**about, "operations": done, "slowest": round(slowest.seconds, 1)})


def stack(process: Process) -> str:
    return Path(f"/proc/{process.pid}/stack").read_text()


def work(seed: str, kinds: list[str]) -> dict[str, Any]:
    STOP.unlink(missing_ok=True)
    HERE.mkdir()
    answers: Queue[dict[str, Any]] = Queue()
    workers = [
        Process(target=worker, args=(answers, seed, kind, i)) for i, kind in enumerate(kinds)
    ]
    for process in workers:
        process.start()
    while not STOP.exists():
        time.sleep(0.1)
    end = time.monotonic() + LIMIT
    while any(process.is_alive() for process in workers) and time.monotonic() < end:
        time.sleep(0.1)
    hung = [stack(process) for process in workers if process.is_alive()]
    done = [answers.get() for process in workers if not process.is_alive()]
    return {"folder": HERE.name, "done": done, "hung": hung}


def main() -> Any:
    _, _, seed, _, *kinds = sys.argv
    return work(seed, kinds)
