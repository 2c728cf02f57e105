# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: READs that bypass nfsd, beside a permission listener and ends of access.

``python3 -m lab.nodes.bypass_node NAME ARGUMENT...`` calls a function, and prints JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import select
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab.nodes.optimistic_node import (
    BLOCK,
    DISK,
    LIBC,
    MIB,
    STRICT,
    TCP,
    USER,
    Reader,
    answered_without_nfsd,
    as_user,
    call,
    counters,
    idle,
    made,
    mounted,
    parameters,
    shown,
    state,
    until,
)

# include/uapi/linux/fanotify.h
CLASS_CONTENT, CLASS_PRE_CONTENT, CLOEXEC = 4, 8, 1
MARK_ADD, MARK_MOUNT, MARK_FILE_SYSTEM = 1, 0x10, 0x100
ACCESS_PERM, PRE_ACCESS, EVENT_ON_CHILD = 0x20000, 0x100000, 0x08000000
ALLOW, DENY = 1, 2
INFO_RANGE = 6
EVENT, HEADER, RANGE = struct.Struct("=IBBHQii"), struct.Struct("=BBH"), struct.Struct("=IQQ")
AT_FDCWD = -100
# what is marked, and how
PLACES: dict[str, tuple[Callable[[Path], Path], int, int]] = {
    "file system": (lambda file: DISK, MARK_FILE_SYSTEM, 0),
    "mount": (lambda file: DISK, MARK_MOUNT, 0),
    "parent": (lambda file: file.parent, 0, EVENT_ON_CHILD),
    "file": (lambda file: file, 0, 0),
}
# seconds without a READ that passes the listener by: longer than a permit
QUIET = 2.5


class Listener:
    """Decides on accesses, in a thread: ``denies`` gets an event's number and its offset.

    An offset is that of FAN_PRE_ACCESS; it is 0 for FAN_ACCESS_PERM.
    """

    def __init__(
        self, place: str, files: list[Path], denies: Callable[[int, int], bool], *, pre: bool
    ) -> None:
        kind, mask = (CLASS_PRE_CONTENT, PRE_ACCESS) if pre else (CLASS_CONTENT, ACCESS_PERM)
        self.denies, self.decided = denies, Counter[tuple[int, bool]]()
        self.group = LIBC.fanotify_init(kind | CLOEXEC, os.O_RDONLY)
        if self.group < 0:
            raise _error("fanotify_init")
        where, flags, more = PLACES[place]
        for path in {where(file) for file in files}:
            word = ctypes.c_uint64(mask | more)
            if LIBC.fanotify_mark(self.group, MARK_ADD | flags, word, AT_FDCWD, bytes(path)):
                raise _error("fanotify_mark")
        self._end = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._end, 1)
        self._thread.join()
        # allows what waits
        os.close(self.group)
        os.close(self._end)

    def _run(self) -> None:
        poller = select.poll()
        for fd in (self.group, self._end):
            poller.register(fd, select.POLLIN)
        while self._end not in (ready := [fd for fd, _ in poller.poll()]):
            if self.group in ready:
                self._decide(os.read(self.group, 65536))

    def _decide(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            length, _, _, header, _, fd, _ = EVENT.unpack_from(events, at)
            offset = _offset(events[at + header : at + length])
            denied = self.denies(sum(self.decided.values()), offset)
            self.decided[os.fstat(fd).st_ino, denied] += 1
            os.write(self.group, struct.pack("=iI", fd, DENY if denied else ALLOW))
            os.close(fd)
            at += length

    def count(self, file: Path) -> dict[str, int]:
        """How many READs of a file were allowed, and denied."""
        number = file.stat().st_ino
        return {"allowed": self.decided[number, False], "denied": self.decided[number, True]}


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _offset(records: bytes) -> int:
    at = 0
    while at < len(records):
        kind, _, length = HEADER.unpack_from(records, at)
        if kind == INFO_RANGE:
            return int(RANGE.unpack_from(records, at + HEADER.size)[1])
        at += length
    return 0


def _passed(read: Callable[[], object]) -> bool:
    """Whether a READ was answered without nfsd."""
    before = answered_without_nfsd()
    read()
    return answered_without_nfsd() > before


def _last_passed(read: Callable[[], object], limit: float) -> dict[str, Any]:
    """READs until none has passed nfsd by for a while: how many did, and when the last one."""
    began = last = time.monotonic()
    count = 0
    while (now := time.monotonic()) - last < QUIET and now - began < limit:
        if _passed(read):
            count, last = count + 1, time.monotonic()
    return {"passed": count, "seconds": last - began}


def _each_second(number: int, offset: int) -> bool:
    return bool(number % 2)


def _second_half(number: int, offset: int) -> bool:
    return offset >= MIB // 2


def listens(kind: str, reads: str, *places: str) -> Any:
    """READs of a file whose grants and permits precede a listener, and of one that it precedes.

    ``kind`` "each second" denies each second READ, "second half" denies offsets (FAN_PRE_ACCESS).
    """
    earlier, later = DISK / "listened/earlier", DISK / "listened/later"
    call("rm", "-rf", earlier.parent)
    earlier.parent.mkdir()
    earlier.parent.chmod(0o755)
    data = {path: made(path, 41 + number, MIB) for number, path in enumerate((earlier, later))}
    pre, found = kind == "second half", {}
    with mounted(STRICT, folder=DISK):
        for place in places:
            with Reader(str(earlier.relative_to(DISK))) as reader:
                reader.granted()
                denies = _second_half if pre else _each_second
                with Listener(place, [earlier, later], denies, pre=pre) as listener:
                    after = _last_passed(lambda reader=reader: reader.said(0), 30)
                    heard = _beside(listener, later, data[later], int(reads), pre=pre)
            found[place] = {"after": after, **heard}
            # nfsd has it open as it was without a listener, or with the last one
            call("exportfs", "-f")
            with Reader(str(later.relative_to(DISK))) as reader:
                reader.granted()
                found[place]["same"] = reader.said(0) == shown(data[later][:BLOCK])
        end = {"counters": counters(), "state": state()}
    call("rm", "-r", earlier.parent)
    return {**end, "places": found, "server": idle()}


def _beside(listener: Listener, path: Path, data: bytes, reads: int, *, pre: bool) -> Any:
    """READs beside a listener: what came, what it decided, and what passed nfsd by."""
    got = Counter[str]()
    # nfsd opens the file anew, and asks
    call("exportfs", "-f")
    before, passed = listener.count(path), answered_without_nfsd()
    with Reader(str(path.relative_to(DISK))) as reader:
        for number in range(reads):
            half = number % 2 * (MIB // 2) if pre else 0
            offset = half + number // 2 * BLOCK % (MIB // 4)
            said = reader.said(offset)
            right = said == shown(data[offset : offset + BLOCK])
            got[f"data of half {half // (MIB // 2)}" if right else said] += 1
            # some of them longer apart than nfsd's answer takes, all together several seconds
            time.sleep(0.04)
    after = listener.count(path)
    return {
        "got": got, "passed": answered_without_nfsd() - passed,
        **{name: after[name] - before[name] for name in after},
    }  # fmt: skip


def pre_access() -> bool:
    """Whether the kernel has FAN_PRE_ACCESS for files of the disk."""
    file = DISK / "pre"
    made(file, 1, BLOCK)
    try:
        with Listener("file", [file], _second_half, pre=True):
            return True
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        file.unlink()


# --- access that ends ---


def _acl(permission: int) -> bytes:
    """The attribute system.posix_acl_access of a file that USER may read or not."""
    entries = ((1, 6, -1), (2, permission, USER), (4, 4, -1), (16, 4, -1), (32, 4, -1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


@contextmanager
def _delayed(module: str) -> Iterator[dict[str, int]]:
    """Delay nfsd in functions of our module that are about files; how many, at the end."""
    about = re.compile(r"file|watch|permit|grant")
    with Path("/proc/kallsyms").open() as symbols:
        rows = [line.split() for line in symbols if "[nfsrdma]" in line]
    names = {row[2] for row in rows if row[2].startswith("nfr_svc_") and about.search(row[2])}
    counts = dict[str, int]()
    call("insmod", module, f"names={','.join(sorted(names))}")
    try:
        yield counts
        for name in ("functions", "delays"):
            file = Path("/sys/module/nfsrdma_delays/parameters", name)
            counts[name] = int(file.read_text())
    finally:
        call("rmmod", "nfsrdma_delays")


def withdrawals(module: str, seconds: str, files: str, ends: str) -> Any:
    """End a user's access to files at any moment of a READ; what READs get that begin later.

    ``ends`` "at once" demands that of the next READ, "soon" waits for the server's worker, which
    compares ctime each second.
    """
    folder, names = DISK / "withdrawn", [str(number) for number in range(int(files))]
    call("rm", "-rf", folder)
    folder.mkdir()
    folder.chmod(0o755)
    data = {name: shown(made(folder / name, 70 + int(name), BLOCK)) for name in names}
    os.sync()
    found = Withdrawals(data, at_once=ends == "at once")
    with (
        # a grant that outlives the check of the worker is found
        parameters(optimistic_lifetime=3600),
        mounted(STRICT, folder=DISK),
        mounted(f"{STRICT},acl", at=TCP, folder=DISK, tcp=True),
        _delayed(module) as counts,
        ExitStack() as stack,
    ):
        with as_user():
            readers = {n: stack.enter_context(Reader(f"withdrawn/{n}")) for n in names}
        began = time.monotonic()
        while time.monotonic() < began + float(seconds) or found.tries < 2 * len(names):
            found.round(readers)
        # a READ of these files may bypass nfsd
        found.allow(names[0])
        readers[names[0]].granted()
    call("rm", "-r", folder)
    return {**found.result(), **counts, "server": idle()}


class Withdrawals:
    """Rounds in which access to each file ends while it is read."""

    def __init__(self, data: dict[str, str], *, at_once: bool) -> None:
        self.data, self.chance = data, random.Random(71)  # noqa: S311 - no secret
        self.at_once = at_once
        self.tries, self.slowest = 0, 0.0
        self.raced, self.later = Counter[str](), Counter[str]()
        # of a READ by nfsd, in seconds
        self.length = 0.02

    def round(self, readers: dict[str, Reader]) -> None:
        for name in readers:
            self.allow(name)
        # a file that changed in the last second gets neither permit nor grant
        time.sleep(1.3)
        for name, reader in readers.items():
            # nfsd may permit the second READ only
            if self.chance.random() < 0.7:
                began = time.monotonic()
                reader.said(0)
                self.length += (time.monotonic() - began - self.length) / 8
            self._end(name, reader)
            if self.at_once:
                self._read_later(name, reader)
        if not self.at_once:
            for name, reader in readers.items():
                began = time.monotonic()
                until(f"the end of access to {name}", lambda r=reader: r.said(0) == "EACCES")
                self.slowest = max(self.slowest, time.monotonic() - began)
                self._read_later(name, reader)

    def allow(self, name: str) -> None:
        self._set(name, 4)

    def _set(self, name: str, permission: int) -> None:
        path = TCP / "withdrawn" / name
        os.setxattr(path, "system.posix_acl_access", _acl(permission))

    def _end(self, name: str, reader: Reader) -> None:
        got: list[str] = []
        beside = threading.Thread(target=lambda: got.append(reader.said(0)))
        first, wait = self.chance.random() < 0.3, self.chance.uniform(0, 1.5 * self.length)
        if first:
            beside.start()
            time.sleep(wait)
            self._set(name, 0)
        else:
            ends = threading.Thread(target=self._set, args=(name, 0))
            ends.start()
            time.sleep(wait)
            beside.start()
            ends.join()
        beside.join()
        self.tries += 1
        self._count(self.raced, name, got[0])

    def _read_later(self, name: str, reader: Reader) -> None:
        for _ in range(3):
            self._count(self.later, name, reader.said(0))

    def _count(self, counts: Counter[str], name: str, got: str) -> None:
        counts["data" if got == self.data[name] else got] += 1

    def result(self) -> dict[str, Any]:
        return {"tries": self.tries, "raced": self.raced, "later": self.later,
                "slowest": self.slowest, "length": self.length}  # fmt: skip


def main() -> Any:
    return globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    print(json.dumps(main()))
