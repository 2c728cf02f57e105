# SPDX-License-Identifier: Apache-2.0
"""READs that pass nfsd by, optimistic (grants) and threadless (permits): the node has both ends."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from testbed.node.mounts import HERE, SERVER, connections, counters, mounted, parameters
from testbed.node.programs import until

__all__ = ["ACROSS", "BLOCK", "CARDS", "DISK", "EXPORT", "HUGE", "LIBC", "MIB", "STRICT", "TCP",
           "THERE", "USER", "WAITS", "Crowd", "Reader", "Waits", "answer_of",
           "answered_without_nfsd",
           "as_user", "connect_second", "disconnects", "granted", "made", "mounted_export",
           "nothing_broke", "nothing_in_use", "repeated",
           "rpc_reads", "scattered", "seeded", "shown", "totals",
           "waits_of"]  # fmt: skip

THERE, TCP = Path("/mnt/there"), Path("/mnt/tcp")
EXPORT, DISK, HUGE = Path("/export"), Path("/srv/disk"), Path("/srv/huge")
CARDS = Path("/sys/kernel/debug/nfsrdma_card")
BLOCK, MIB = 4096, 1 << 20
# each open() asks the server which file a name leads to, and whether the user may open it
STRICT = "vers=3,noac,lookupcache=none"
# the last of two equal options counts
ACROSS = "proto=tcp,port=2049,nolock"
# number of READ in the line of NFSv3 procedures, after the number of procedures
_NFSD_READ = 2 + 6
USER = 1000
LIBC = ctypes.CDLL(None, use_errno=True)


def mounted_export(
    options: str = "vers=3,noac",
    at: Path = HERE,
    folder: Path = EXPORT,
    off: tuple[str, ...] = ("umount",),
) -> AbstractContextManager[Path]:
    """Mount a folder of this machine."""
    return mounted(options, at, f"server:{folder}", off=off)


def seeded(seed: int | str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def made(path: Path, seed: int, size: int = 4 * MIB) -> bytes:
    """Make a file on the server, which the page cache has."""
    data = seeded(seed).randbytes(size)
    path.write_bytes(data)
    return data


@contextmanager
def as_user(user: int = USER) -> Iterator[None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def repeated(function: Callable[[], object]) -> Iterator[None]:
    """Call a function again and again in a thread, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            function()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- counts ---


def totals() -> dict[str, int]:
    """The server's counters, and its numbers of resources in use, by name."""
    rows = (line.split() for line in (SERVER / "totals").read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}


def granted() -> int:
    """Pages that clients may read by themselves, and READs that need no thread of nfsd."""
    now = totals()
    return now["granted_pages"] + now["threadless_entries"]


def nothing_in_use() -> None:
    """Wait until no client is connected: the server then keeps nothing for READs."""
    names = ("connections", "granted_pages", "threadless_entries")
    until("nothing in use", lambda: not any(totals()[name] for name in names))


def nothing_broke() -> None:
    """The client's Calls went well, and so did the connection that carries them."""
    assert {each["disconnects"] for each in connections()} == {"0"}
    total = counters()
    assert (total["bad_replies"], total["failed_marshals"]) == (0, 0)


def disconnects() -> int:
    return sum(int(each["disconnects"]) for each in connections())


def answered_without_nfsd() -> int:
    """Optimistic and threadless reads."""
    return counters()["optimistic_reads"] + counters(SERVER).get("threadless_hits", 0)


def rpc_reads() -> int:
    """READs that nfsd has executed."""
    for line in Path("/proc/net/rpc/nfsd").read_text().splitlines():
        if line.startswith("proc3 "):
            return int(line.split()[_NFSD_READ])
    raise ValueError("nfsd has no NFSv3")


# --- reads ---


class Reader:
    """A file of a mount, open for direct reads into ``room``."""

    def __init__(self, name: str | Path, at: Path = HERE, room: mmap.mmap | None = None) -> None:
        self.fd = os.open(at / name, os.O_RDONLY | os.O_DIRECT)
        self.room = room or mmap.mmap(-1, 2 * MIB)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int = 0, size: int = BLOCK) -> bytes:
        length = os.preadv(self.fd, [memoryview(self.room)[:size]], offset)
        return self.room[:length]

    def answer(self, offset: int = 0, size: int = BLOCK) -> str:
        """Result of a read, or its error; short enough to be printed."""
        return answer_of(lambda: self.read(offset, size))

    def is_optimistic(self, offset: int = 0, size: int = BLOCK) -> bool:
        before = answered_without_nfsd()
        self.read(offset, size)
        return answered_without_nfsd() > before

    def granted(self, offset: int = 0) -> None:
        """Read until the client does it by itself."""
        until("an optimistic read", lambda: self.is_optimistic(offset))


def scattered(count: int) -> mmap.mmap:
    """Memory for a Reader, of pages in any order."""
    room, pages = mmap.mmap(-1, count * BLOCK), list(range(count))
    room.madvise(mmap.MADV_NOHUGEPAGE)
    seeded(count).shuffle(pages)
    for page in pages:
        room[page * BLOCK] = 1
    return room


def shown(data: bytes) -> str:
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def answer_of(read: Callable[[], bytes]) -> str:
    """Result of a read, or its error; short enough to be printed."""
    try:
        return shown(read())
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def connect_second(folder: Path = EXPORT) -> None:
    """Have the mount make its second connection, as it does when a READ could use it."""
    made(folder / "before", 5)
    with Reader("before") as reader:
        reader.granted()


# --- the time that a change waits ---


class Crowd:
    """Files of one page that a client has read: each has a grant."""

    def __init__(self, count: int) -> None:
        self.folder = EXPORT / "crowd"
        self.folder.mkdir(exist_ok=True)
        self.names = [f"{number:05}" for number in range(count)]
        for number, name in enumerate(self.names):
            path = self.folder / name
            if not path.exists():
                path.write_bytes(bytes([number % 251]) * BLOCK)

    def granted(self) -> int:
        """Read the files until the server has granted them; returns the number of new grants."""
        # what has changed in the last second is not granted
        time.sleep(1.1)
        before = counters(SERVER)["grants"]
        for name in self.names:
            with Reader(f"crowd/{name}") as reader:
                reader.read()
        return counters(SERVER)["grants"] - before

    def opens(self, count: int) -> list[float]:
        """Milliseconds that each of the first opens for writing takes."""
        taken = []
        for name in self.names[:count]:
            began = time.monotonic()
            os.close(os.open(self.folder / name, os.O_WRONLY))
            taken.append(1000 * (time.monotonic() - began))
        return taken


# of each kind of client the delay of its card in milliseconds, the lifetime of its grants in
# seconds, and its connections
WAITS = {
    "answers at once": (0, 3600, 1),
    "answers 1 ms late": (1, 3600, 1),
    "answers 90 ms late": (90, 3600, 1),
    "answers 90 ms late, while all its grants expire": (90, 1, 1),
    "answers 90 ms late on four connections": (90, 3600, 4),
    "does not answer": (60_000, 3600, 1),
}


class Waits(NamedTuple):
    """The grants of a client, the milliseconds of opens for writing, and pages granted then."""

    grants: int
    opens: list[float]
    left: int


def waits_of(kind: str, files: int, opens: int) -> Waits:
    """How long opens for writing of files wait that a client of a kind may read."""
    crowd, (delay, lifetime, number) = Crowd(files), WAITS[kind]
    late = CARDS / "card1" / "completion_delay"
    options = f"vers=3,nocto,actimeo=600,nconnect={number}"
    with (
        parameters(optimistic_lifetime=lifetime, optimistic_memory=1024),
        mounted_export(options),
    ):
        connect_second()
        grants = crowd.granted()
        before = granted()
        late.write_text(str(delay * 1_000_000))
        try:
            if lifetime < 60:
                # all other grants expire meanwhile
                until("expiry", lambda: granted() < before)
            taken = crowd.opens(opens)
        finally:
            late.write_text("0")
        # the end of a connection takes some time
        time.sleep(1)
        left = granted()
    nothing_in_use()
    # a client that made others wait gets no grants for a minute
    time.sleep(61)
    return Waits(grants, taken, left)
