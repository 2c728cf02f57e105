# SPDX-License-Identifier: Apache-2.0
"""The application on a mount of a hostile server: the calls that set tricks off."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

__all__ = ["Application", "LibraryApplication", "Mount"]

SIZE, SMALL, PAGE = 8192, 512, 4096
CANARY = b"\x5a" * PAGE
# seconds until a call of the library fails
TIMEOUT = 10.0


class Buffer:
    """Memory for O_DIRECT with pages around it that nobody may write into."""

    def __init__(self, flags: int = mmap.MAP_SHARED) -> None:
        self.pages = memoryview(mmap.mmap(-1, SIZE + 2 * PAGE, flags | mmap.MAP_ANONYMOUS))
        self.middle = self.pages[PAGE : PAGE + SIZE]
        self.pages[:PAGE] = self.pages[PAGE + SIZE :] = CANARY

    def intact(self) -> bool:
        return self.pages[:PAGE] == self.pages[PAGE + SIZE :] == CANARY


class Application:
    """Its calls, and what has to come of them.

    They go to the first of ``mounts``, and with a session to the last one; its files are made and
    removed by an ``honest`` mount of the same folder.
    """

    kinds = frozenset({"read", "small", "list", "write", "session"})
    # whether memory stays registered after a Call, for all access
    keeps = False

    def __init__(self, mounts: Sequence[Mount], honest: Path, seed: str) -> None:
        self.mounts, name = mounts, mounts[0].where.name
        self._make(honest, name, seed)
        self.folder, self.data = (mounts[0].where / path.name for path in self.made)
        self._open()

    def _make(self, honest: Path, name: str, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.image = bytearray(self.rng.randbytes(1 << 16))
        self.buffer = Buffer()
        self.names = {f"a-name-of-some-length-{number}" for number in range(40)}
        self.made = (honest / f"{name}.d", honest / f"{name}.data")
        self.made[0].mkdir()
        for file in self.names:
            (self.made[0] / file).touch()
        self.made[1].write_bytes(self.image)

    def _open(self) -> None:
        self.file = os.open(self.data, os.O_RDWR | os.O_DIRECT)

    def remount(self) -> None:
        """NFS believes a server that says a file is another one, or gone."""
        self._close()
        for mount in self.mounts:
            mount.again()
        self._open()

    def remove(self) -> None:
        self._close()
        shutil.rmtree(self.made[0])
        self.made[1].unlink()

    def _close(self) -> None:
        os.close(self.file)

    def _pread(self, part: memoryview, at: int) -> int:
        return os.preadv(self.file, [part], at)

    def _pwrite(self, part: memoryview, at: int) -> int:
        return os.pwritev(self.file, [part], at)

    def _read(self, size: int) -> bool:
        at = self.rng.randrange(len(self.image) - size)
        part = self.buffer.middle[:size]
        part[:] = bytes(size)
        done = self._pread(part, at)
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
            return self._pwrite(self.buffer.middle, at) == SIZE
        except OSError:
            self._pwrite(self.buffer.middle, at)
            raise

    def list(self) -> bool:
        # a new time makes cached listings stale
        os.utime(self.folder)
        return set(os.listdir(self.folder)) == self.names  # noqa: PTH208 - only names, no objects

    def session(self) -> bool:
        return self.mounts[-1].where.stat().st_ino > 0


class LibraryApplication(Application):
    """The same calls through libnfsrdma, with NFSv3, into a registered region and the arena."""

    kinds = Application.kinds - {"session"}
    keeps = True

    def __init__(self, target: str, port: int, honest: Path, seed: str) -> None:
        self.target, self.port = target, port
        self._make(honest, f"library-{port}", seed)
        self._open()

    def _open(self) -> None:
        from nfsrdma_tools.client import connect

        # not a minute for each call that gets no answer
        self.client = connect(self.target, port=self.port, timeout=TIMEOUT)
        self.region = self.client.register(self.buffer.middle)
        self.opened = self.client.open(self.made[1].name, os.O_RDWR)

    def remount(self) -> None:
        self._close()
        self._open()

    def _close(self) -> None:
        self.client.close()

    def _pread(self, part: memoryview, at: int) -> int:
        return self.opened.pread_into(part, at)

    def _pwrite(self, part: memoryview, at: int) -> int:
        return self.opened.pwrite(part, at)

    def list(self) -> bool:
        return set(self.client.listdir(self.made[0].name)) == self.names


class Mount:
    """A mount by our module, in a ``with`` statement."""

    def __init__(self, where: Path, target: str, options: str) -> None:
        self.where = where
        where.mkdir(exist_ok=True)
        self._argv = ("mount", "-t", "nfs", "-o", f"proto=rdma,{options}", target, where)

    def __enter__(self) -> Self:
        subprocess.run(self._argv, check=True, timeout=300)
        return self

    def __exit__(self, *_: object) -> None:
        # a root that is stale cannot be looked at
        if subprocess.run(("umount", self.where), check=False, timeout=300).returncode:
            subprocess.run(("umount", "-l", self.where), check=True, timeout=300)

    def again(self) -> None:
        """Nothing in it is in use."""
        self.__exit__()
        self.__enter__()
