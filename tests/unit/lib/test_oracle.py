# SPDX-License-Identifier: Apache-2.0
"""Random calls of the client, and the same ones of the kernel in a local directory.

The server restarts nowhere here: test_library_commit.py has sequences in which it loses data.
"""

# Path drops dots and slashes at the end
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH112, PTH115, PTH116, PTH208, PTH211
from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from device import Device
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.client.session import File

__all__ = ["device", "device_library"]

STEPS = 400
NAMES = ("a", "b", "c", "d", "ü", "x" * 255)
SIZES = (0, 1, 3, 4, 500, 4096, 9000, 70_000)
ACCESS = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)
DEPTHS = (0, 1, 5, 127)
SETTINGS: tuple[dict[str, int], ...] = (
    {"late": 100, "read_max": 4096, "write_max": 65536},
    {"shortened": 1, "read_max": 65536, "write_max": 4096},
    {"attributes": 0, "late_sends": 200, "credits": 1},
    {"late": 100, "late_sends": 200, "read_max": 8192, "write_max": 8192},
)
FLAGS = (os.O_CREAT, os.O_TRUNC, os.O_NOFOLLOW, os.O_CREAT | os.O_EXCL)


class Both(NamedTuple):
    """An open file, and the local one."""

    file: File
    descriptor: int


class Oracle:
    """A session, a local directory, and one source of chance for both."""

    flags = 0
    """Flags of all open files."""

    def __init__(self, device: Device, session: Session, root: Path, seed: int) -> None:
        self.device, self.session, self.root = device, session, root
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.open: list[Both] = []
        self.done: list[str] = []
        self.steps: list[Callable[[], None]] = [
            self.stat, self.list, self.make, self.remove, self.link, self.rename,
            self.open_file, self.open_file, self.close_file, self.read, self.read,
            self.write, self.write, self.truncate, self.disturb,
        ]  # fmt: skip

    def path(self) -> str:
        parts = [self.random.choice(NAMES) for _ in range(self.random.choice((1, 1, 1, 2, 2, 3)))]
        if self.random.random() < 0.05:
            parts.insert(0, ".")
        if self.random.random() < 0.05:
            parts.append(self.random.choice((".", "")))
        return "/".join(parts)

    def local(self, path: str) -> str:
        return f"{self.root}/{path}"

    def pick(self) -> Both | None:
        return self.random.choice(self.open) if self.open else None

    def same(self, label: str, call: Callable[[], Any], local: Callable[[], Any]) -> bool:
        """Compare results or errno values; returns whether both succeeded."""
        result, expected = result_of(call), result_of(local)
        self.done.append(f"{label}: {str(result)[:80]}".replace(NAMES[-1], "LONG"))
        assert result == expected, "\n".join(self.done[-30:])
        return result[0] == "result"

    # --- names ---

    def stat(self) -> None:
        path = self.path()
        self.same(
            f"stat {path}",
            lambda: seen(self.session.stat(path)),
            lambda: seen(os.stat(self.local(path))),
        )
        self.same(
            f"lstat {path}",
            lambda: seen(self.session.lstat(path)),
            lambda: seen(os.lstat(self.local(path))),
        )

    def list(self) -> None:
        path = self.random.choice(("", self.path()))
        self.same(
            f"list {path}",
            lambda: sorted(self.session.listdir(path)),
            lambda: sorted(os.listdir(self.local(path))),
        )

    def make(self) -> None:
        path = self.path().rstrip("/.")
        self.same(
            f"mkdir {path}", lambda: self.session.mkdir(path), lambda: os.mkdir(self.local(path))
        )

    def remove(self) -> None:
        path = self.path().rstrip("/.")
        if self.random.random() < 0.5:
            self.same(
                f"rmdir {path}",
                lambda: self.session.rmdir(path),
                lambda: os.rmdir(self.local(path)),
            )
        else:
            self.same(
                f"rm {path}", lambda: self.session.unlink(path), lambda: os.unlink(self.local(path))
            )

    def link(self) -> None:
        text, path = self.path(), self.path().rstrip("/.")
        self.same(
            f"symlink {text} {path}",
            lambda: self.session.symlink(text, path),
            lambda: os.symlink(text, self.local(path)),
        )
        self.same(
            f"readlink {path}",
            lambda: self.session.readlink(path),
            lambda: os.readlink(self.local(path)),
        )

    def rename(self) -> None:
        old, new = self.path().rstrip("/."), self.path().rstrip("/.")
        kinds = {kind_of(self.local(old)), kind_of(self.local(new))}
        # the server in this process does not compare kinds, nor finds circles
        if kinds in ({stat.S_IFREG}, {stat.S_IFREG, 0}):
            self.same(
                f"rename {old} {new}",
                lambda: self.session.rename(old, new),
                lambda: os.rename(self.local(old), self.local(new)),
            )

    # --- files ---

    def open_file(self) -> None:
        path, mode = self.path(), self.random.choice((0o666, 0o600))
        flags = self.random.choice(ACCESS) | self.flags
        for flag in FLAGS:
            flags |= flag if self.random.random() < 0.3 else 0
        if os.path.isdir(self.local(path)):
            # the kernel opens those
            return
        files: list[File] = []
        local: list[int] = []
        if self.same(
            f"open {path} {flags:o}",
            lambda: files.append(self.session.open(path, flags, mode)),
            lambda: local.append(os.open(self.local(path), flags, mode)),
        ):
            self.open.append(Both(files[0], local[0]))

    def close_file(self) -> None:
        if both := self.pick():
            self.open.remove(both)
            removed = not os.fstat(both.descriptor).st_nlink
            try:
                both.file.close()
            except OSError as error:
                # data of a removed file does not get to stable storage
                assert removed and error.errno == errno.ESTALE, "\n".join(self.done[-30:])
            os.close(both.descriptor)

    def read(self) -> None:
        if both := self.pick():
            offset, size = self.random.choice((0, 1, 4095, 80_000)), self.random.choice(SIZES)
            way = self.random.randrange(3)

            def mine() -> bytes:
                out = bytearray(b"#" * (size + 2))
                with memoryview(out)[1:-1] as part:
                    if way == 0:
                        count = both.file.pread_into(part, offset)
                    elif way == 1:
                        count = asyncio.run(both.file.readinto_async(part, offset))
                    else:
                        with self.session.register(out):
                            count = self.session.read_ranges([(both.file, offset, size)], part)[0]
                assert out[:1] + out[count + 1 :] == b"#" * (size + 2 - count)
                return bytes(out[1 : count + 1])

            if size:
                self.same(
                    f"read {both.file.path} {offset} {size}",
                    mine,
                    lambda: (
                        alive(both, both.file.readable())
                        and os.pread(both.descriptor, size, offset)
                    ),
                )

    def write(self) -> None:
        if both := self.pick():
            offset, size = self.random.choice((0, 1, 4095, 80_000)), self.random.choice(SIZES)
            data = self.random.randbytes(size)
            if size:
                self.same(
                    f"write {both.file.path} {offset} {size}",
                    lambda: both.file.pwrite(data, offset),
                    lambda: (
                        alive(both, both.file.writable())
                        and os.pwrite(both.descriptor, data, offset)
                    ),
                )

    def truncate(self) -> None:
        both, size = self.pick(), self.random.choice(SIZES)
        if both and both.file.writable():
            self.same(
                f"truncate {both.file.path} {size}",
                lambda: both.file.truncate(size),
                lambda: alive(both) and resized(both, size),
            )

    def disturb(self) -> None:
        if self.random.random() < 0.5:
            self.device.end_connections()
        else:
            self.device.set(end_after=self.random.randrange(1, 6))

    # --- all of them ---

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.steps)()
            assert not self.device.faults, "\n".join(self.done[-30:])
        while self.open:
            self.close_file()

    def compare(self) -> None:
        """All files have the same bytes, on the disk of the server, too."""
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names):
                if not path.is_symlink():
                    where = f"/export/{path.relative_to(self.root)}"
                    assert self.device.get(where) == self.device.get(where, disk=True)
                    assert self.device.get(where) == path.read_bytes(), where


def result_of(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "result", call()
    except OSError as error:
        return "error", error.errno


def seen(attributes: os.stat_result) -> tuple[int, int]:
    """What the server in this process has of the attributes."""
    kind = stat.S_IFMT(attributes.st_mode)
    return kind, attributes.st_size if kind == stat.S_IFREG else 0


def kind_of(path: str) -> int:
    return stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else 0


def alive(both: Both, allowed: bool = True) -> bool:
    """A server forgets a file that is removed; ``allowed``: the mode of the file is looked at."""
    if allowed and not os.fstat(both.descriptor).st_nlink:
        raise OSError(errno.ESTALE, "")
    return True


def resized(both: Both, size: int) -> int:
    os.ftruncate(both.descriptor, size)
    return size


@pytest.fixture
def no_umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("seed", range(4))
def test_calls_do_what_those_of_the_kernel_do(device: Device, tmp_path: Path, seed: int) -> None:
    settings = SETTINGS[seed % len(SETTINGS)]
    device.set(seed=seed, spurious=3, **settings)
    (tmp_path / "data").write_bytes(device.get("/export/data") or b"")
    with connect("server:/export", depth=DEPTHS[seed % len(DEPTHS)], arena=65536) as session:
        oracle = Oracle(device, session, tmp_path, seed)
        oracle.run()
    oracle.compare()
