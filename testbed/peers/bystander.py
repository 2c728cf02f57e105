# SPDX-License-Identifier: Apache-2.0
"""Unrelated applications: they work with files in a ``with`` statement, at whose end no operation
may have failed."""

from __future__ import annotations

import mmap
import os
import random
import threading
from pathlib import Path
from time import monotonic
from typing import Self

from testbed.node.files import read_from_server

__all__ = ["Asker", "Bystander", "LibraryBystander", "Reader", "Writer"]

CHUNK = 1 << 20


class Bystander(threading.Thread):
    """Writes a file and reads it back, again and again.

    Each kind has a file of its own, which it removes in the end.
    """

    kind = "bystander"

    def __init__(self, folder: Path, rest: float = 0.3) -> None:
        """``rest``: seconds between rounds."""
        super().__init__()
        self.rest = rest
        self.path, self.stop = folder / f"{self.kind}-{os.getpid()}", threading.Event()
        self.rounds, self.errors = 0, list[str]()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stop.set()
        self.join()
        if not error:
            assert self.errors == [], f"{type(self).__name__}: {self.errors}"
            assert self.rounds > 0

    def run(self) -> None:
        rng = random.Random(1)  # noqa: S311 - no secret
        while not self.stop.wait(self.rest):
            try:
                self._round(rng.randbytes(rng.choice((100, 5000, 100000))))
            except OSError as error:
                # str() names the file
                self.errors.append(f"round {self.rounds}: {error}")
            self.rounds += 1
        self.path.unlink(missing_ok=True)

    def _round(self, data: bytes) -> None:
        self.path.write_bytes(data)
        if read_from_server(self.path) != data:
            self.errors.append("wrong data")


class LibraryBystander(Bystander):
    """Reads a file of an optimistic server by reference through libnfsrdma, again and again.

    It begins after the server has granted the file, and removes it in the end.
    """

    SIZE, PAGE = 65536, 4096
    # seconds until the server has granted the file
    GRANTED_WITHIN = 60

    def __init__(self, target: str, path: Path) -> None:
        super().__init__(path.parent)
        from nfsrdma_tools.client import connect

        self.path, self.data = path, random.Random(2).randbytes(self.SIZE)  # noqa: S311
        self.path.write_bytes(self.data)
        os.sync()
        self.session = connect(target, optimistic=True)
        self.file = self.session.open(path.name)
        end = monotonic() + self.GRANTED_WITHIN
        while not self.session.stats.by_reference:
            self._round(b"")
            if monotonic() > end:
                raise TimeoutError(f"the server granted nothing in {self.GRANTED_WITHIN} s")
        self.before = self.session.stats.by_reference

    def __exit__(self, error: object, *_: object) -> None:
        super().__exit__(error)
        by_reference = self.session.stats.by_reference - self.before
        self.session.close()
        assert by_reference > 0.9 * self.rounds * self.SIZE / self.PAGE

    def _round(self, data: bytes) -> None:
        del data
        for at in range(0, self.SIZE, self.PAGE):
            if self.file.pread(self.PAGE, at) != self.data[at : at + self.PAGE]:
                self.errors.append("wrong data")


class Timed(Bystander):
    """Repeats one operation past the cache, and measures the longest, in seconds."""

    def __init__(self, folder: Path, rest: float = 0.05) -> None:
        super().__init__(folder, rest)
        self.folder, self.longest = folder, 0.0

    def _round(self, data: bytes) -> None:
        del data
        began = monotonic()
        self._operate()
        self.longest = max(self.longest, monotonic() - began)

    def _operate(self) -> None:
        raise NotImplementedError


class Asker(Timed):
    """Has the server say how much room it has: a Call and a Reply without chunks."""

    kind = "asker"

    def _operate(self) -> None:
        os.statvfs(self.folder)


class Chunks(Timed):
    """Moves 1 MiB of a file."""

    flags = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path.write_bytes(bytes(CHUNK))
        self.file = os.open(self.path, self.flags | os.O_DIRECT)
        self.buffer = mmap.mmap(-1, CHUNK)

    def __exit__(self, error: object, *_: object) -> None:
        super().__exit__(error)
        os.close(self.file)


class Reader(Chunks):
    """Reads 1 MiB."""

    kind, flags = "reader", os.O_RDONLY

    def _operate(self) -> None:
        if os.preadv(self.file, [self.buffer], 0) != CHUNK:
            self.errors.append("a short read")


class Writer(Chunks):
    """Writes 1 MiB."""

    kind, flags = "writer", os.O_WRONLY

    def _operate(self) -> None:
        if os.pwritev(self.file, [self.buffer], 0) != CHUNK:
            self.errors.append("a short write")
