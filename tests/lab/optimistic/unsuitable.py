# SPDX-License-Identifier: Apache-2.0
"""Files that the server must not grant: they do not suit, have no name, or a page is poisoned."""

import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import Event, Process
from pathlib import Path
from typing import NamedTuple

from lab.optimistic.exports import export, make_image, unexport, unmounting
from lab.optimistic.fuse import serve

from testbed.node.grants import (
    ACROSS,
    BLOCK,
    DISK,
    EXPORT,
    MIB,
    THERE,
    Reader,
    answered_without_nfsd,
    connect_second,
    granted,
    made,
    mounted_export,
    nothing_broke,
    shown,
)
from testbed.node.mounts import SERVER, counters
from testbed.node.programs import call, until
from testbed.remote import on


class Granted(NamedTuple):
    """What became of READs: grants, READs that passed nfsd by, and refusals by reason."""

    reads: int
    grants: int
    optimistic: int
    refused: dict[str, int]


class Counts:
    """Counters of the server's grants, from here on."""

    def __init__(self) -> None:
        self._before, self._optimistic = counters(SERVER), answered_without_nfsd()

    def refused(self) -> dict[str, int]:
        """How many READs the server has granted nothing for, by reason."""
        now = counters(SERVER)
        names = [name for name in now if name.startswith("refused_")]
        counts = {name: now[name] - self._before.get(name, 0) for name in names}
        return {name.removeprefix("refused_"): count for name, count in counts.items() if count}

    def of(self, reads: int) -> Granted:
        grants = counters(SERVER)["grants"] - self._before["grants"]
        return Granted(reads, grants, answered_without_nfsd() - self._optimistic, self.refused())


# --- files that do not suit ---


@contextmanager
def _file_of(folder: Path) -> Iterator[Path]:
    path = folder / "unsuitable"
    path.unlink(missing_ok=True)
    made(path, 30, MIB)
    yield path
    path.unlink()


@contextmanager
def _swap_file() -> Iterator[Path]:
    """A swap file, to which nothing is swapped: there is memory."""
    folder = DISK / "swap"
    folder.mkdir()
    with _file_of(folder) as path:
        path.chmod(0o600)
        call("mkswap", path)
        os.sync()
        call("swapon", path)
        try:
            yield path
        finally:
            call("swapoff", path)
    folder.rmdir()


@contextmanager
def _of_another_server() -> Iterator[Path]:
    again = Path("/srv/again")
    with _file_of(EXPORT) as path, mounted_export(f"vers=3,{ACROSS}", again):
        yield again / path.name


@contextmanager
def _overlay(*, copied: bool = False) -> Iterator[Path]:
    """A file of the lower layer of an overlay, both of whose layers are ext4.

    If it is ``copied``, the upper layer has it.
    """
    lower, upper, work = layers = [DISK / name for name in ("lower", "upper", "work")]
    top = Path("/srv/overlay")
    for folder in (*layers, top):
        folder.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work},index=on,nfs_export=on"
    with _file_of(lower) as path:
        call("mount", "-t", "overlay", "-o", options, "overlay", top)
        with unmounting(top):
            if copied:
                made(top / path.name, 31, MIB)
            yield top / path.name
    call("rm", "-r", *layers, top)


@contextmanager
def _fuse(file: Path, *, passthrough: bool) -> Iterator[Path]:
    """A file of FUSE, which is a file of another file system."""
    folder, ready = Path("/srv/fuse"), Event()
    folder.mkdir(exist_ok=True)
    process = Process(target=serve, args=(folder, file, passthrough, ready.set))
    process.start()
    with unmounting(folder):
        assert ready.wait(60), "no file system, or no passthrough"
        yield folder / "file"
    process.join()


@contextmanager
def _in_user_space() -> Iterator[Path]:
    with _file_of(DISK) as file, _fuse(file, passthrough=False) as path:
        yield path


@contextmanager
def _of_xfs() -> Iterator[Path]:
    image, folder = Path("/srv/xfs.img"), Path("/srv/xfs")
    # mkfs.xfs makes no smaller one
    make_image(image, 320, "/run/xfs/mkfs.xfs")
    folder.mkdir(exist_ok=True)
    call("mount", "-o", "loop", image, folder)
    with unmounting(folder), _file_of(folder) as path:
        yield path
    image.unlink()


@contextmanager
def _passed_through() -> Iterator[Path]:
    with _of_xfs() as file, _fuse(file, passthrough=True) as path:
        yield path


@contextmanager
def _exported(path: Path) -> Iterator[None]:
    export(path, 81)
    try:
        yield
    finally:
        unexport(path)


@contextmanager
def _in_its_folder(path: Path) -> Iterator[Path]:
    """Export and mount the folder of a file; yields the path of the client."""
    with _exported(path.parent), mounted_export(at=THERE, folder=path.parent):
        yield THERE / path.name


@contextmanager
def _by_itself(path: Path) -> Iterator[Path]:
    """Export and mount a file: its handle names the export, and has no file id.

    mount.nfs mounts folders only: the kernel does without it.
    """
    at = Path("/mnt/itself")
    at.touch()
    address = socket.gethostbyname("server")
    options = f"vers=3,noac,nolock,proto=rdma,port=20049,addr={address},mountproto=tcp"
    with _exported(path):
        call("mount", "-i", "-t", "nfs", "-o", options, f"server:{path}", at)
        try:
            yield at
        finally:
            call("umount", "-i", at)


Source = Callable[[], AbstractContextManager[Path]]
UNSUITABLE: dict[str, tuple[Source, Callable[[Path], AbstractContextManager[Path]]]] = {
    "file system of another server": (_of_another_server, _in_its_folder),
    "file system in user space": (_in_user_space, _in_its_folder),
    "lower layer of an overlay": (_overlay, _in_its_folder),
    "upper layer of an overlay": (lambda: _overlay(copied=True), _in_its_folder),
    "file of an overlay by itself": (_overlay, _by_itself),
    "file of tmpfs by itself": (lambda: _file_of(EXPORT), _by_itself),
    "file of ext4 by itself": (lambda: _file_of(DISK), _by_itself),
    "swap file": (_swap_file, _in_its_folder),
    # the handle has an id of FUSE, which XFS would understand, and the reply has pages of XFS
    "file of XFS through user space": (_passed_through, _in_its_folder),
    # this one may be granted
    "file of XFS": (_of_xfs, _in_its_folder),
}


@on("client", timeout=900)
def read_unsuitable(name: str) -> Granted:
    """Read a file that the server must not grant while it grants another."""
    source, way = UNSUITABLE[name]
    with mounted_export(), source() as file, way(file) as path:
        data = file.read_bytes()
        # its file has changed later than this one: no READ of this one is too early for a grant
        connect_second()
        with Reader(path) as reader:
            counts, places = Counts(), 2 * list(range(0, 32 * BLOCK, BLOCK))
            for at in places:
                assert reader.read(at) == data[at : at + BLOCK]
            nothing_broke()
            return counts.of(len(places))


# --- files without a name ---


@on("client", timeout=900)
def read_nameless(folder: Path) -> Granted:
    """Read a file that has no name any more, and that a process has open.

    nfsd answers all READs, or does not find it; returns the grants of those that it answers.
    """
    path = folder / "nameless"
    data = made(path, 37, MIB)
    with mounted_export(folder=folder), Reader("nameless") as reader, path.open("rb"):
        reader.granted()
        path.unlink()
        assert granted() == 0
        # until what has changed later is granted
        connect_second(folder)
        counts, served = Counts(), 0
        for at in range(0, 32 * BLOCK, BLOCK):
            answer = reader.answer(at)
            assert answer in (shown(data[at : at + BLOCK]), "ESTALE")
            served += answer != "ESTALE"
        result = counts.of(served)
        assert result.optimistic == 0
        return result


# --- pages that are broken ---

POISONED = 5


def _poison(path: Path) -> bool:
    """Have the kernel take a page of a file for broken. Returns false if it cannot."""
    process = Process(target=_poison_mapped, args=(path,))
    process.start()
    process.join()
    # the kernel kills who has the page mapped
    return process.exitcode in (0, -signal.SIGBUS)


def _poison_mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        assert room[POISONED * BLOCK] is not None
        # MADV_HWPOISON
        room.madvise(100, POISONED * BLOCK, BLOCK)


@on("client", timeout=900)
def read_poisoned(folder: Path) -> bool:
    """Read a file of tmpfs around a page that a machine check has taken.

    The page stays in the page cache, and its neighbours are granted.  Returns whether the kernel
    poisons pages.
    """
    path, count = folder / "poisoned", 16
    path.unlink(missing_ok=True)
    data = made(path, 39, count * BLOCK)
    if not _poison(path):
        return False
    with mounted_export(), mounted_export(at=THERE, folder=folder):
        connect_second()
        with Reader("poisoned", THERE) as reader:
            reader.granted()
            before = answered_without_nfsd()
            assert {reader.answer(POISONED * BLOCK) for _ in range(10)} == {"EIO"}
            assert answered_without_nfsd() == before
            for at in (n * BLOCK for n in range(count) if n != POISONED):
                # the grants of both sides are of one extent, and replace each other
                until("an optimistic read", partial(reader.is_optimistic, at))
                assert reader.read(at) == data[at : at + BLOCK]
            for size in range(1, count + 1):
                sound = shown(data[: min(size, POISONED) * BLOCK])
                assert reader.answer(0, size * BLOCK) in (
                    (sound,) if size <= POISONED else (sound, "EIO")
                )
    path.unlink()
    return True
