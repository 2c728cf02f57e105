# SPDX-License-Identifier: Apache-2.0
"""The application on a mount of a hostile server: the calls that set tricks off."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SESSION", "Application", "mounted"]

SESSION = Path("/mnt/session")
SIZE, SMALL, PAGE = 8192, 512, 4096
CANARY = b"\x5a" * PAGE


class Buffer:
    """Memory for O_DIRECT with pages around it that nobody may write into."""

    def __init__(self) -> None:
        self.pages = memoryview(mmap.mmap(-1, SIZE + 2 * PAGE))
        self.middle = self.pages[PAGE : PAGE + SIZE]
        self.pages[:PAGE] = self.pages[PAGE + SIZE :] = CANARY

    def intact(self) -> bool:
        return self.pages[:PAGE] == self.pages[PAGE + SIZE :] == CANARY


class Application:
    """Its calls, and what has to come of them; files of its own below ``where``."""

    def __init__(self, where: Path, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.image = bytearray(self.rng.randbytes(1 << 16))
        self.buffer = Buffer()
        self.folder, self.data = where / f"{where.name}.d", where / f"{where.name}.data"
        self.folder.mkdir()
        self.names = {f"a-name-of-some-length-{number}" for number in range(40)}
        for name in self.names:
            (self.folder / name).touch()
        self.data.write_bytes(self.image)
        self.file = os.open(self.data, os.O_RDWR | os.O_DIRECT)

    def remove(self) -> None:
        os.close(self.file)
        for name in self.names:
            (self.folder / name).unlink()
        self.folder.rmdir()
        self.data.unlink()

    def _read(self, size: int) -> bool:
        at = self.rng.randrange(len(self.image) - size)
        part = self.buffer.middle[:size]
        part[:] = bytes(size)
        done = os.preadv(self.file, [part], at)
        return done == size and part == self.image[at : at + size]

    def read(self) -> bool:
        return self._read(SIZE)

    def small(self) -> bool:
        return self._read(SMALL)

    def write(self) -> bool:
        at, data = self.rng.randrange(len(self.image) - SIZE), self.rng.randbytes(SIZE)
        self.buffer.middle[:] = data
        # whatever happens: what is there is one or the other, and is not looked at again
        self.image[at : at + SIZE] = data
        try:
            return os.pwritev(self.file, [self.buffer.middle], at) == SIZE
        except OSError:
            os.pwritev(self.file, [self.buffer.middle], at)
            raise

    def list(self) -> bool:
        # what was listed before is stale
        os.utime(self.folder)
        return set(os.listdir(self.folder)) == self.names  # noqa: PTH208 - names are what is asked

    def session(self) -> bool:
        return SESSION.stat().st_ino > 0


@contextmanager
def mounted(where: Path, target: str, options: str) -> Iterator[None]:
    """A mount by our module."""
    where.mkdir(exist_ok=True)
    words = f"proto=rdma,{options}"
    subprocess.run(("mount", "-t", "nfs", "-o", words, target, where), check=True, timeout=300)
    try:
        yield
    finally:
        subprocess.run(("umount", where), check=True, timeout=300)
