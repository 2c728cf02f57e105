# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: optimistic reads; ``python3 - NAME ARGUMENT...`` calls a function, prints JSON.

The tests do not import this file.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mmap
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing import Event, Process
from pathlib import Path
from typing import Any

HERE, THERE, TCP = Path("/mnt/here"), Path("/mnt/there"), Path("/mnt/tcp")
EXPORT, DISK, HUGE = Path("/export"), Path("/srv/disk"), Path("/srv/huge")
SLOW = Path("/srv/slow")
CLIENTS = Path("/sys/kernel/debug/nfsrdma")
SERVER = Path("/sys/kernel/debug/nfsrdma-server")
CARDS = Path("/sys/kernel/debug/nfsrdma_card")
PARAMETERS = Path("/sys/module/nfsrdma/parameters")
BLOCK, MIB = 4096, 1 << 20
LIMIT = 120.0
# each open() asks the server which file a name leads to, and whether the user may open it
STRICT = "vers=3,noac,lookupcache=none"
# number of READ in the line of NFSv3 procedures, after the number of procedures
NFSD_READ = 2 + 6
USER = 1000
LIBC = ctypes.CDLL(None, use_errno=True)


def call(*argv: str | Path, check: bool = True) -> str:
    return subprocess.run(argv, check=check, capture_output=True, text=True).stdout


def until(what: str, there: Callable[[], Any], limit: float = LIMIT, pause: float = 0.02) -> Any:
    """Wait for a condition; returns its value."""
    end = time.monotonic() + limit
    while not (found := there()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(pause)
    return found


@contextmanager
def mounted(
    options: str = "vers=3,noac",
    at: Path = HERE,
    folder: Path = EXPORT,
    *,
    tcp: bool = False,
    port: str = "20049",
    off: tuple[str, ...] = ("umount",),
) -> Iterator[None]:
    at.mkdir(parents=True, exist_ok=True)
    proto = "proto=tcp,nolock" if tcp else f"proto=rdma,port={port}"
    call("mount", "-t", "nfs", "-o", f"{proto},{options}", f"server:{folder}", at)
    try:
        yield
    finally:
        call(*off, at)


@contextmanager
def parameters(**values: int | str) -> Iterator[None]:
    files = {PARAMETERS / name: str(value) for name, value in values.items()}
    before = {file: file.read_text() for file in files}
    try:
        for file, value in files.items():
            file.write_text(value)
        yield
    finally:
        for file, value in before.items():
            file.write_text(value)


def lines(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def summed(folder: Path) -> dict[str, int]:
    """Sums of the counters of all connections below a folder of debugfs."""
    total: dict[str, int] = {}
    for each in folder.iterdir():
        # a connection may end meanwhile
        with suppress(OSError):
            for name, value in lines(each / "counters").items():
                total[name] = total.get(name, 0) + int(value)
    return total


def counters() -> dict[str, int]:
    return summed(CLIENTS)


def served() -> dict[str, int]:
    return summed(SERVER)


def state(folder: Path = CLIENTS) -> list[dict[str, str]]:
    """State of all connections below a folder of debugfs: of all client transports."""
    found = []
    for each in folder.glob("[0-9]*"):
        # a transport ends a while after its last mount
        with suppress(OSError):
            found.append(lines(each / "connection"))
    return found


def disconnects() -> int:
    return sum(int(each["disconnects"]) for each in state())


def totals() -> dict[str, int]:
    """Totals of the server."""
    return {name: int(text.split()[0]) for name, text in lines(SERVER / "totals").items()}


@contextmanager
def _graph(functions: tuple[str, ...], *called: str) -> Iterator[list[str]]:
    """Trace functions and, of what they call, some: lines of ftrace's function_graph.

    Times are without those at which the task had no processor. The lines are there at the end.
    """
    folder, lines = Path("/sys/kernel/tracing"), list[str]()
    size = (folder / "buffer_size_kb").read_text().split()[0]
    try:
        for name, text in (
            ("buffer_size_kb", "16384"),
            ("set_ftrace_filter", "\n".join((*functions, *called))),
            ("set_graph_function", "\n".join(functions)),
            ("options/sleep-time", "0"),
            ("current_tracer", "function_graph"),
        ):
            (folder / name).write_text(text)
        yield lines
        # what happens while the lines are read does not count
        (folder / "tracing_on").write_text("0")
        lines += (folder / "trace").read_text().splitlines()
    finally:
        for name, text in (
            ("current_tracer", "nop"),
            ("tracing_on", "1"),
            ("options/sleep-time", "1"),
            ("set_graph_function", ""),
            ("set_ftrace_filter", ""),
            ("buffer_size_kb", size),
        ):
            (folder / name).write_text(text)


def granted() -> int:
    """Pages that clients may read by themselves, and READs that need no thread of nfsd."""
    return totals()["granted_pages"] + totals()["threadless_entries"]


def answered_without_nfsd() -> int:
    """Optimistic and threadless reads."""
    return counters()["optimistic_reads"] + served().get("threadless_hits", 0)


def idle() -> dict[str, int]:
    """Resources of the server when no client is connected any more, or after a limit."""

    def found() -> dict[str, int]:
        names = ("connections", "granted_pages", "threadless_entries")
        return {name: totals()[name] for name in names}

    with suppress(TimeoutError):
        until("idle", lambda: not any(found().values()))
    return found()


def rpc_reads() -> int:
    """READs that nfsd has executed."""
    for line in Path("/proc/net/rpc/nfsd").read_text().splitlines():
        if line.startswith("proc3 "):
            return int(line.split()[NFSD_READ])
    raise ValueError("nfsd has no NFSv3")


def made(path: Path, seed: int, size: int = 4 * MIB) -> bytes:
    """Make a file on the server, which the page cache has."""
    data = random.Random(seed).randbytes(size)  # noqa: S311 - no secret
    path.write_bytes(data)
    return data


class Reader:
    """A file of the mount, open for direct reads."""

    def __init__(self, name: str, at: Path = HERE) -> None:
        self.fd = os.open(at / name, os.O_RDONLY | os.O_DIRECT)
        self.room = mmap.mmap(-1, 2 * MIB)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int, size: int = BLOCK) -> bytes:
        got = os.preadv(self.fd, [memoryview(self.room)[:size]], offset)
        return self.room[:got]

    def said(self, offset: int, size: int = BLOCK) -> str:
        """Result of a read, or its error; short enough to be printed."""
        return said(lambda: self.read(offset, size))

    def is_optimistic(self, offset: int, size: int = BLOCK) -> bool:
        before = answered_without_nfsd()
        self.read(offset, size)
        return answered_without_nfsd() > before

    def granted(self, offset: int = 0) -> None:
        """Read until the client does it by itself."""
        until("an optimistic read", lambda: self.is_optimistic(offset))


def connect_second(folder: Path = EXPORT) -> None:
    """Have the mount make its second connection, as it does when a READ could use it."""
    made(folder / "before", 5)
    with Reader("before") as reader:
        reader.granted()


def shown(data: bytes) -> str:
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def said(read: Callable[[], bytes]) -> str:
    """Result of a read, or its error; short enough to be printed."""
    try:
        return shown(read())
    except OSError as error:
        return errno.errorcode[error.errno or 0]


# --- data ---


def kinds(options: str, folder: str = "/export") -> Any:
    """Reads of many sizes and offsets, direct and buffered: what was wrong, and the counters."""
    data, wrong = made(Path(folder, "kinds"), 1, 3 * MIB + 5000), []
    chance = random.Random(2)  # noqa: S311 - no secret
    with mounted(options, folder=Path(folder)), Reader("kinds") as reader:
        if "vers=3" in options:
            reader.granted()
        before = served()
        sizes = [1, 511, 512, 4095, 4096, 4097, 10000, 65535, 65536, 100000, MIB, MIB + 4096]
        for number in range(400):
            size = chance.choice(sizes)
            # around the end of the file and of extents, too
            near = chance.choice((0, MIB, 2 * MIB, len(data)))
            at = chance.choice((chance.randrange(len(data)), near + chance.randrange(-9000, 9000)))
            at = max(at, 0)
            if reader.read(at, size) != data[at : at + size]:
                wrong.append([number, at, size])
        direct, after = counters(), served()
        call("sysctl", "-qw", "vm.drop_caches=1")
        whole = (HERE / "kinds").read_bytes() == data
        found = {"wrong": wrong, "whole": whole, "counters": counters(), "direct": direct,
                 "served": {name: after[name] - before[name] for name in after},
                 "state": state()}  # fmt: skip
    return {**found, "server": idle()}


def first_pass(size: str) -> Any:
    """Read each block of a file once, in random order: the READs that nfsd executed."""
    data = made(EXPORT / "pass", 3, int(size))
    blocks = list(range(len(data) // BLOCK))
    random.Random(4).shuffle(blocks)  # noqa: S311 - no secret
    # on a slow machine, READs that renew references would count, too
    with parameters(optimistic_lifetime=3600), mounted():
        connect_second()
        with Reader("pass") as reader:
            count, start = rpc_reads(), counters()
            wrong = [n for n in blocks if reader.read(n * BLOCK) != data[n * BLOCK :][:BLOCK]]
            after = counters()
            found = {
                "wrong": wrong, "rpcs": rpc_reads() - count, "reads": len(blocks),
                "optimistic": after["optimistic_reads"] - start["optimistic_reads"],
            }  # fmt: skip
    (EXPORT / "pass").unlink()
    return {**found, "server": idle()}


def second_mount() -> Any:
    """Reads of a mount for whose first READ the transport already has a grant.

    The mount shares the transport of another one, but not what the NFS client has learned.
    """
    data, rest = made(EXPORT / "first", 7, MIB), made(EXPORT / "rest", 8)
    options = "vers=3,rsize=524288,nosharecache"
    with mounted(options), Reader("first") as reader:
        reader.granted()
        with mounted(options, at=THERE), Reader("first", THERE) as other:
            found = {
                "state": state(),
                "optimistic": [other.is_optimistic(0), other.is_optimistic(0)],
                "same": other.read(BLOCK) == data[BLOCK : 2 * BLOCK],
                "rest": said((THERE / "rest").read_bytes),
            }
    return {**found, "wanted": shown(rest), "server": idle()}


# --- changes ---


def _overwrite(path: Path, view: str) -> None:
    with path.open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"overwritten" * 300)


def _append(path: Path, view: str) -> None:
    with path.open("ab") as file:
        file.write(b"appended" * 1000)


def _direct(path: Path, view: str) -> None:
    room = mmap.mmap(-1, BLOCK)
    room.write(b"direct  " * (BLOCK // 8))
    file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    os.pwritev(file, [room], BLOCK)
    os.close(file)


def _mapped(path: Path, view: str) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        room[BLOCK : 2 * BLOCK] = b"mapped  " * (BLOCK // 8)


def _punch(path: Path, view: str) -> None:
    call("fallocate", "--punch-hole", "--offset", "5000", "--length", "9000", path)


def _replace(path: Path, view: str) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"replaced" * 100_000)
    other.rename(path)


def _recreate(path: Path, view: str) -> None:
    path.unlink()
    path.write_bytes(b"created " * 100_000)


def _give_away(path: Path, view: str) -> None:
    os.chown(path, 1, 1)
    path.chmod(0o600)


CHANGES: dict[str, Callable[[Path, str], Any]] = {
    "overwrite": _overwrite,
    "append": _append,
    "direct write": _direct,
    "mapped write": _mapped,
    "truncate": lambda path, view: os.truncate(path, 5000),
    "truncate to nothing": lambda path, view: os.truncate(path, 0),
    "extend": lambda path, view: os.truncate(path, MIB),
    "open with O_TRUNC": lambda path, view: path.write_bytes(b"short"),
    "punch": _punch,
    "rename over": _replace,
    "unlink and create": _recreate,
    "unlink": lambda path, view: path.unlink(),
    "chmod": lambda path, view: path.chmod(0o600),
    "chown": _give_away,
    "acl": lambda path, view: call("setfacl", "-m", f"u:{USER}:---", path),
}
LOCAL_ONLY = ("punch", "acl")


def changes(folder: str, view: str) -> Any:
    """Change a granted file in each way: what the next reads of a user return, and the grants."""
    root, found = Path(folder), {}
    with ExitStack() as mounts:
        mounts.enter_context(mounted(STRICT, folder=root))
        if view == "tcp":
            mounts.enter_context(mounted(STRICT, at=TCP, folder=root, tcp=True))
        for name, change in CHANGES.items():
            if view == "tcp" and name in LOCAL_ONLY:
                continue
            found[name] = _changed(root, TCP if view == "tcp" else root, change, view)
        end = {"counters": counters(), "state": state()}
    return {**end, "changes": found, "server": idle()}


OFFSETS = (0, BLOCK, 2 * BLOCK, 300_000, 300_000 // BLOCK * BLOCK)


def _changed(root: Path, way: Path, change: Callable[[Path, str], Any], view: str) -> Any:
    path = root / "changed"
    path.unlink(missing_ok=True)
    # 300,000 bytes end inside of a block
    before = made(path, 6, 300_000)
    path.chmod(0o644)
    # the credentials of the open file are those of its READs
    with as_user():
        reader = Reader("changed")
    with reader:
        reader.granted()
        pages = granted()
        change(way / "changed", view)
        # the system call has returned: nothing of the file is granted
        after = granted()
        got = [reader.said(offset) for offset in OFFSETS]
    there = path.read_bytes() if path.exists() else b""
    may = path.exists() and _may_read(path)
    return {
        "granted": pages, "left": after, "got": got, "may": may,
        "new": [shown(there[offset : offset + BLOCK]) for offset in OFFSETS],
        "old": [shown(before[offset : offset + BLOCK]) for offset in OFFSETS],
        "again": _again() if path.exists() and may else "",
        "there": shown(there),
    }  # fmt: skip


def _may_read(path: Path) -> bool:
    with as_user():
        return os.access(path, os.R_OK, effective_ids=True)


def _again() -> str:
    """Result of a read after an open() that follows the change."""
    with as_user(), Reader("changed") as reader:
        return shown(reader.read(0, 2 * MIB))


@contextmanager
def as_user(user: int = USER) -> Iterator[None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


def credentials(seconds: str) -> Any:
    """One user may read, another one may not any more: each read of the latter fails."""
    path, denied = EXPORT / "credentials", dict[str, int]()
    path.unlink(missing_ok=True)
    data, over = made(path, 21, MIB), threading.Event()

    def read_on(reader: Reader) -> None:
        while not over.is_set():
            said = reader.said(0)
            denied[said] = denied.get(said, 0) + 1

    with mounted(STRICT), Reader("credentials") as first:
        with as_user():
            second = Reader("credentials")
        with second:
            second.granted()
            path.chmod(0o600)
            beside = threading.Thread(target=read_on, args=(second,))
            before, same = answered_without_nfsd(), []
            beside.start()
            end = time.monotonic() + float(seconds)
            while time.monotonic() < end:
                same.append(first.read(0) == data[:BLOCK])
                time.sleep(random.choice((0, 0, 0, 0.03)))  # noqa: S311 - no secret
            over.set()
            beside.join()
            optimistic = answered_without_nfsd() - before
    return {"denied": denied, "reads": len(same), "same": all(same), "optimistic": optimistic,
            "server": idle()}  # fmt: skip


def shared() -> Any:
    """Users read one extent, each with a reference of its own."""
    data, users = made(EXPORT / "shared", 26), (0, USER, USER + 1)
    with mounted(), ExitStack() as stack:
        connect_second()
        grants, readers = served()["grants"], []
        for user in users:
            with as_user(user):
                readers.append(stack.enter_context(Reader("shared")))
        before, same = answered_without_nfsd(), []
        for at in range(0, len(data), 16 * BLOCK):
            same += [reader.read(at) == data[at : at + BLOCK] for reader in readers]
        optimistic = answered_without_nfsd() - before
        found = {"same": all(same), "reads": len(same), "optimistic": optimistic}
        found["grants"] = served()["grants"] - grants
    return {**found, "server": idle()}


def full_table(references: str, users: str) -> Any:
    """Users fill the client's table of references with small files; then another user reads."""
    folder = EXPORT / "table"
    folder.mkdir()
    count = int(references) // int(users) + 16
    data = {f"table/{n}": made(folder / str(n), n, BLOCK) for n in range(count)}
    some = [*data][:64]
    # few RPCs besides the READs
    with mounted("vers=3,nocto,actimeo=3600"):
        connect_second()
        same = [_read_by(USER + n, name) == data[name] for n in range(int(users)) for name in data]
        full = int(state()[0]["references"])
        another = USER + int(users)
        same += [_read_by(another, name) == data[name] for name in some]
        before = answered_without_nfsd()
        same += [_read_by(another, name) == data[name] for name in some]
        found = {"same": all(same), "full": full, "references": int(state()[0]["references"])}
        found["optimistic"] = answered_without_nfsd() - before
    call("rm", "-r", folder)
    return {**found, "server": idle()}


def _read_by(user: int, name: str) -> bytes:
    with as_user(user), Reader(name) as reader:
        return reader.read(0)


@contextmanager
def slow_disk() -> Iterator[Callable[[int], None]]:
    """Export an ext4 file system; the function delays reads of its disk by milliseconds."""
    image = Path("/srv/slow.img")
    SLOW.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    call("mkfs.ext4", "-q", image)
    disk = call("losetup", "--find", "--show", image).strip()

    def delay(milliseconds: int) -> None:
        table = f"0 {64 * MIB // 512} delay {disk} 0 {milliseconds} {disk} 0 0"
        call("dmsetup", "load", "slow", "--table", table)
        # udev reads the device, too: do not wait for it while reads are slow
        call("dmsetup", "resume", *(["--noudevsync"] if milliseconds else []), "slow")

    call("modprobe", "dm-delay")
    call("dmsetup", "create", "slow", "--notable")
    delay(0)
    call("mount", "/dev/mapper/slow", SLOW)
    _export(SLOW, 79)
    try:
        yield delay
    finally:
        delay(0)
        _unexport(SLOW)
        until("unmounting", lambda: _unmounted(SLOW))
        call("dmsetup", "remove", "slow")
        call("losetup", "--detach", disk)
        image.unlink()


def nfsd_waits() -> bool:
    return "D" in call("ps", "-C", "nfsd", "-o", "state=", check=False)


@contextmanager
def _clock() -> Iterator[Callable[[str], None]]:
    """The function sets the clock forward or back by seconds; at the end it is right again."""
    right = time.time() - time.monotonic()

    def step(seconds: str) -> None:
        if float(seconds):
            time.clock_settime(time.CLOCK_REALTIME, time.time() + float(seconds))

    try:
        yield step
    finally:
        time.clock_settime(time.CLOCK_REALTIME, right + time.monotonic())


def withdrawn_meanwhile(before: str = "0", after: str = "0") -> Any:
    """Withdraw access to a file while nfsd reads it for a user: later reads fail.

    The server's clock steps by seconds before and after that.
    """
    with slow_disk() as delay, _clock() as step:
        path = SLOW / "late"
        data = made(path, 22, MIB)
        os.sync()
        with mounted(STRICT), mounted(STRICT, at=TCP, folder=SLOW):
            connect_second()
            with as_user():
                # both mounts have one transport
                reader = Reader("late", at=TCP)
            with reader:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                delay(60_000)
                first = []
                beside = threading.Thread(target=lambda: first.append(reader.said(0)))
                reads = rpc_reads()
                beside.start()
                until("a READ", lambda: rpc_reads() > reads)
                until("a thread of nfsd that waits for the disk", nfsd_waits)
                step(before)
                path.chmod(0o600)
                step(after)
                meanwhile = beside.is_alive()
                # ends the delay of what waits, too
                delay(0)
                beside.join()
                # a grant would arrive behind the Reply
                time.sleep(0.5)
                later = [reader.said(0) for _ in range(5)]
                found = {
                    "meanwhile": meanwhile, "first": first[0], "later": later,
                    "data": shown(data[:BLOCK]), "optimistic": answered_without_nfsd(),
                }  # fmt: skip
    return {**found, "server": idle()}


# another option of an export replaces the former ones
_CHANGED = "rw,insecure,no_subtree_check,fsid=77"
WITHDRAWALS: dict[str, Callable[[], Any]] = {
    "exportfs -u": lambda: call("exportfs", "-u", f"*:{DISK}"),
    "all_squash": lambda: call("exportfs", "-o", f"{_CHANGED},all_squash", f"*:{DISK}"),
    "sec=krb5": lambda: call("exportfs", "-o", f"{_CHANGED},sec=krb5", f"*:{DISK}"),
}


def withdrawn(how: str, limit: str) -> Any:
    """Withdraw the access of a user by an export: which reads that begin later still have data.

    ``limit`` is the time in seconds that the server may take, and the lifetime of references.
    """
    data = made(DISK / "withdrawn", 25, MIB)
    os.chown(DISK / "withdrawn", USER, USER)
    (DISK / "withdrawn").chmod(0o600)
    reads: list[tuple[float, str]] = []
    with parameters(optimistic_lifetime=limit), mounted(STRICT, folder=DISK):
        connect_second(DISK)
        with as_user():
            reader = Reader("withdrawn")
        with reader:
            reader.granted()
            before = answered_without_nfsd()
            WITHDRAWALS[how]()
            end = time.monotonic() + float(limit)
            while not reads or reads[-1][0] < 3:
                reads.append((time.monotonic() - end, reader.said(0)))
            found = {"without_nfsd": answered_without_nfsd() - before}
            call("exportfs", "-r")
            until("access", lambda: reader.said(0) == shown(data[:BLOCK]))
    (DISK / "withdrawn").unlink()
    late = {what for at, what in reads if at > 0}
    last = max((at for at, what in reads if what == shown(data[:BLOCK])), default=None)
    return {**found, "late": sorted(late), "last": last, "server": idle()}


def opened_for_writing() -> Any:
    """A process of the server has a file open for writing: grants, before, meanwhile and after."""
    data = made(EXPORT / "opened", 7)
    with mounted(), Reader("opened") as reader:
        reader.granted()
        with (EXPORT / "opened").open("r+b"):
            left = granted()
            meanwhile = [reader.is_optimistic(n * BLOCK) for n in range(50)]
            same = reader.read(0, MIB) == data[:MIB]
            pages = granted()
        reader.granted()
        found = {"left": left, "meanwhile": any(meanwhile), "same": same, "pages": pages}
    return {**found, "server": idle()}


@contextmanager
def _unreported(path: Path) -> Iterator[int]:
    """A file, open for writing, of which fsnotify reports neither the open nor writes.

    fanotify gives such a file to the process that receives an event: fanotify(7).
    """
    # FAN_CLASS_NOTIF, FAN_MARK_ADD, FAN_OPEN, and AT_FDCWD
    group = LIBC.fanotify_init(0, os.O_RDWR)
    mark = LIBC.fanotify_mark(group, 1, ctypes.c_uint64(0x20), -100, os.fsencode(path))
    assert group >= 0 == mark, os.strerror(ctypes.get_errno())
    with path.open("rb"):
        # length, version, reserved, length of this header; mask, file, process
        fd = int(struct.unpack("=IBBHQii", os.read(group, 24))[5])
    os.close(group)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _two_readers(name: str) -> Iterator[tuple[Reader, Reader]]:
    """A reader with a grant, and one with other credentials, whose READ goes by RPC."""
    with mounted(folder=DISK), Reader(name) as first:
        with as_user():
            second = Reader(name)
        with second:
            first.granted()
            yield first, second


def unreported() -> Any:
    """A writer that fsnotify does not report: what READs by RPC find of its changes."""
    new, path, punched = bytes(range(256)) * 16, DISK / "unreported", DISK / "punched"
    data = made(path, 24, MIB)
    made(punched, 25, MIB)
    with _two_readers("unreported") as (first, second), _unreported(path) as fd:
        os.pwrite(fd, new, 0)
        found = {
            "open": granted(),
            "optimistic": first.is_optimistic(0),
            "through": first.read(0) == new,
            "second": second.read(BLOCK) == data[BLOCK : 2 * BLOCK],
        }
        # another thread may have the mutex of the grants
        until("no grant", lambda: second.read(BLOCK) and not granted())
    with _two_readers("punched") as (first, second):
        with _unreported(punched) as fd:
            # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            offset, length = ctypes.c_int64(0), ctypes.c_int64(BLOCK)
            assert not LIBC.fallocate(fd, 3, offset, length), os.strerror(ctypes.get_errno())
        found["punched"] = granted()
        found["second"] &= second.read(0) == bytes(BLOCK)
        # the server checks no READ that began within two ticks of a change
        until("the hole", lambda: second.read(0) == first.read(0) == bytes(BLOCK))
    return {**found, "server": idle()}


# in the attribute system.nfs4_acl: type DENY, no flags, READ_DATA
_DENY_READ = struct.pack(">III", 1, 0, 1)


def _deny_by_nfs4(path: Path) -> None:
    """Deny USER to read a file, by the access list of NFSv4 (RFC 7530, section 6)."""
    acl = os.getxattr(path, "system.nfs4_acl")
    who = str(USER).encode()
    entry = _DENY_READ + struct.pack(">I", len(who)) + who
    (count,) = struct.unpack(">I", acl[:4])
    os.setxattr(path, "system.nfs4_acl", struct.pack(">I", count + 1) + entry + acl[4:])


def acl_by_nfs(folder: str, version: str) -> Any:
    """Deny a user to read a file by an ACL set over NFS, which fsnotify does not report."""
    path = Path(folder, "acl")
    path.unlink(missing_ok=True)
    made(path, 27, MIB)
    path.chmod(0o644)
    options = f"{STRICT},acl" if version == "3" else f"vers={version},noac"
    with (
        parameters(optimistic_lifetime=3600),
        mounted(STRICT, folder=Path(folder)),
        mounted(options, at=TCP, folder=Path(folder), tcp=True),
    ):
        with as_user():
            reader = Reader("acl")
        with reader:
            reader.granted()
            if version == "3":
                call("setfacl", "-m", f"u:{USER}:---", TCP / "acl")
            else:
                _deny_by_nfs4(TCP / "acl")
            began, tcp = time.monotonic(), _may_read(path)
            until("the end of access", lambda: reader.said(0) == "EACCES")
            found = {
                "may": tcp, "seconds": time.monotonic() - began,
                "later": [reader.said(n * BLOCK) for n in range(5)],
            }  # fmt: skip
    return {**found, "server": idle()}


# --- what is not granted ---


@contextmanager
def _exported(path: Path) -> Iterator[None]:
    _export(path, 81)
    try:
        yield
    finally:
        _unexport(path)


@contextmanager
def _unmounting(folder: Path) -> Iterator[None]:
    """Unmount a file system of the server afterwards, which nfsd may still use."""
    try:
        yield
    finally:
        until("unmounting", lambda: _unmounted(folder))


@contextmanager
def _file_of(folder: Path) -> Iterator[Path]:
    path = folder / "unsuitable"
    path.unlink(missing_ok=True)
    made(path, 30, MIB)
    yield path
    path.unlink()


def _of_tmpfs() -> AbstractContextManager[Path]:
    return _file_of(EXPORT)


def _of_ext4() -> AbstractContextManager[Path]:
    return _file_of(DISK)


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
    with _of_tmpfs() as path, mounted("vers=3", at=again, tcp=True):
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
        with _unmounting(top):
            if copied:
                made(top / path.name, 31, MIB)
            yield top / path.name
    call("rm", "-r", *layers, top)


def _copied_up() -> AbstractContextManager[Path]:
    return _overlay(copied=True)


@contextmanager
def _fuse(file: Path, kind: str) -> Iterator[Path]:
    """A file of FUSE, which is a file of another file system: see fuse_node.py."""
    folder = Path("/srv/fuse")
    folder.mkdir(exist_ok=True)
    argv = (sys.executable, "/run/fuse_node.py", folder, file, kind)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        answer = program.stdout.readline()
        with _unmounting(folder):
            assert answer == "ready\n", answer
            yield folder / "file"


@contextmanager
def _in_user_space() -> Iterator[Path]:
    with _of_ext4() as file, _fuse(file, "copied") as path:
        yield path


@contextmanager
def _of_xfs() -> Iterator[Path]:
    image, folder = Path("/srv/xfs.img"), Path("/srv/xfs")
    with image.open("wb") as file:
        # mkfs.xfs makes no smaller one
        file.truncate(320 * MIB)
    call("/run/xfs/mkfs.xfs", "-q", image)
    folder.mkdir(exist_ok=True)
    call("mount", "-o", "loop", image, folder)
    with _unmounting(folder), _file_of(folder) as path:
        yield path
    image.unlink()


@contextmanager
def _passed_through() -> Iterator[Path]:
    with _of_xfs() as file, _fuse(file, "passthrough") as path:
        yield path


@contextmanager
def _in_its_folder(path: Path) -> Iterator[Path]:
    """Export and mount the folder of a file; yields the path of the client."""
    with _exported(path.parent), mounted(at=THERE, folder=path.parent):
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


UNSUITABLE: dict[str, tuple[Callable[[], AbstractContextManager[Path]], Callable[..., Any]]] = {
    "file system of another server": (_of_another_server, _in_its_folder),
    "file system in user space": (_in_user_space, _in_its_folder),
    "lower layer of an overlay": (_overlay, _in_its_folder),
    "upper layer of an overlay": (_copied_up, _in_its_folder),
    "file of an overlay by itself": (_overlay, _by_itself),
    "file of tmpfs by itself": (_of_tmpfs, _by_itself),
    "file of ext4 by itself": (_of_ext4, _by_itself),
    "swap file": (_swap_file, _in_its_folder),
    # the handle has an id of FUSE, which XFS would understand, and the reply has pages of XFS
    "file of XFS through user space": (_passed_through, _in_its_folder),
    # this one may be granted
    "file of XFS": (_of_xfs, _in_its_folder),
}


def unsuitable(name: str) -> Any:
    """Read a file that the server must not grant while it grants another: counts, and reasons."""
    source, way = UNSUITABLE[name]
    with mounted(), source() as file, way(file) as path:
        data = file.read_bytes()
        # its file has changed later than this one: no READ of this one is too early for a grant
        connect_second()
        with Reader(path) as reader:
            before, optimistic = served(), answered_without_nfsd()
            places = 2 * list(range(0, 32 * BLOCK, BLOCK))
            wrong = [at for at in places if reader.read(at) != data[at : at + BLOCK]]
            after = served()
            optimistic = answered_without_nfsd() - optimistic
        found = {
            "wrong": wrong, "reads": len(places), "optimistic": optimistic,
            "grants": after["grants"] - before["grants"], "refused": _reasons(before, after),
            "state": state(), "counters": counters(),
        }  # fmt: skip
    return {**found, "server": idle()}


def _reasons(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """How many READs the server granted nothing for meanwhile, by reason."""
    names = [name for name in after if name.startswith("refused_")]
    counts = {name: after[name] - before.get(name, 0) for name in names}
    return {name.removeprefix("refused_"): count for name, count in counts.items() if count}


def nameless(folder: str) -> Any:
    """Read a file of the server that has no name any more, and that a process has open."""
    path, other = Path(folder, "nameless"), Path(folder, "before")
    data = made(path, 37, MIB)
    with mounted(folder=Path(folder)), Reader("nameless") as reader, path.open("rb"):
        reader.granted()
        path.unlink()
        left = granted()
        made(other, 38, MIB)
        # until what has changed later is granted
        with Reader("before") as another:
            another.granted()
        before, optimistic = served(), answered_without_nfsd()
        said = [reader.said(n * BLOCK) for n in range(32)]
        optimistic = answered_without_nfsd() - optimistic
        after = served()
        found = {
            "left": left, "said": said, "optimistic": optimistic,
            "wanted": [shown(data[n * BLOCK :][:BLOCK]) for n in range(32)],
            "grants": after["grants"] - before["grants"], "refused": _reasons(before, after),
        }  # fmt: skip
    return {**found, "server": idle()}


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


def poisoned(folder: str) -> Any:
    """Read a file of tmpfs around a page that a machine check has taken."""
    path, count = Path(folder, "poisoned"), 16
    path.unlink(missing_ok=True)
    data = made(path, 39, count * BLOCK)
    if not _poison(path):
        return {"can": False}
    with mounted(), mounted(at=THERE, folder=Path(folder)):
        connect_second()
        with Reader("poisoned", THERE) as reader:
            reader.granted()
            before, said = answered_without_nfsd(), []
            bad = {reader.said(POISONED * BLOCK) for _ in range(10)}
            found = {
                "can": True, "bad": sorted(bad),
                "optimistic_bad": answered_without_nfsd() - before,
            }  # fmt: skip
            for at in [n * BLOCK for n in range(count) if n != POISONED]:
                # the grants of both sides are of one extent, and replace each other
                until("an optimistic read", lambda at=at: reader.is_optimistic(at))
                said.append(reader.said(at))
            across = [reader.said(0, size * BLOCK) for size in range(1, count + 1)]
        found |= {
            "said": said, "across": across,
            "wanted": [shown(data[n * BLOCK :][:BLOCK]) for n in range(count) if n != POISONED],
            "prefixes": [shown(data[: n * BLOCK]) for n in range(count + 1)],
        }  # fmt: skip
    path.unlink()
    return {**found, "server": idle()}


MEMORY = Path("/sys/devices/system/memory")


@contextmanager
def _movable_memory() -> Iterator[range]:
    """Have a block of memory in the movable zone; yields its page frames."""
    size = int((MEMORY / "block_size_bytes").read_text(), 16)
    blocks = sorted(MEMORY.glob("memory[0-9]*"), key=lambda path: -int(path.name[6:]))

    def offline(block: Path) -> bool:
        with suppress(OSError):
            (block / "state").write_text("offline")
        return (block / "state").read_text() == "offline\n"

    block = next(filter(offline, blocks))
    (block / "state").write_text("online_movable")
    first = int(block.name[6:]) * size // BLOCK
    try:
        yield range(first, first + size // BLOCK)
    finally:
        until("moved pages", lambda: offline(block))
        (block / "state").write_text("online_kernel")


def _frames(path: Path) -> list[int]:
    """The page frames of a file of tmpfs: Documentation/admin-guide/mm/pagemap.rst."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        pages = len(room) // BLOCK
        assert sum(room[n * BLOCK] for n in range(pages)) > 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        with Path("/proc/self/pagemap").open("rb") as pagemap:
            pagemap.seek(address // BLOCK * 8)
            entries = struct.unpack(f"={pages}Q", pagemap.read(8 * pages))
    return [entry & (1 << 55) - 1 for entry in entries]


def movable() -> Any:
    """Read a file whose pages are in the movable zone, where none may stay for long."""
    path, count = EXPORT / "movable", 32
    with mounted():
        connect_second()
        with _movable_memory() as frames:
            data = made(path, 40, count * BLOCK)
            there = sum(frame in frames for frame in _frames(path))
            with Reader("movable") as reader:
                before, optimistic, same = served(), answered_without_nfsd(), []

                def read_all() -> bool:
                    same.append(reader.read(0, count * BLOCK) == data)
                    return _reasons(before, served()).get("pages", 0) > 20

                until("READs that are granted nothing", read_all)
                after = served()
                optimistic = answered_without_nfsd() - optimistic
            found = {
                "there": there, "pages": count, "same": all(same), "optimistic": optimistic,
                "grants": after["grants"] - before["grants"], "refused": _reasons(before, after),
            }  # fmt: skip
            path.unlink()
        made(path, 40, count * BLOCK)
        with Reader("movable") as reader:
            # in another zone, the same file is granted
            reader.granted()
    path.unlink()
    return {**found, "server": idle()}


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

    def granted(self) -> None:
        """Read the files until the server has granted all of them."""
        # what has changed in the last second is not granted
        time.sleep(1.1)
        room, before = mmap.mmap(-1, BLOCK), served()
        for name in self.names:
            file = os.open(HERE / "crowd" / name, os.O_RDONLY | os.O_DIRECT)
            os.preadv(file, [room], 0)
            os.close(file)
        after = served()
        self.grants = after["grants"] - before["grants"]

    def opens(self, count: int, pause: float = 0.0) -> list[float]:
        """Milliseconds that each of the first opens for writing takes."""
        taken = []
        for name in self.names[:count]:
            time.sleep(pause)
            began = time.monotonic()
            os.close(os.open(self.folder / name, os.O_WRONLY))
            taken.append(1000 * (time.monotonic() - began))
        return taken


def _wait_case(crowd: Crowd, opens: int, delay: int, lifetime: int, connections: int) -> Any:
    """A client whose card is late by milliseconds: what opens for writing take."""
    late = CARDS / "card1" / "completion_delay"
    options = f"vers=3,nocto,actimeo=600,nconnect={connections}"
    with parameters(optimistic_lifetime=lifetime, optimistic_memory=1024), mounted(options):
        connect_second()
        crowd.granted()
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
    idle()
    # a client that made others wait gets no grants for a minute
    time.sleep(61)
    return {
        "grants": crowd.grants, "left": left, "opens": len(taken), "max": max(taken),
        "sum": sum(taken), "waited": sum(each > 5 for each in taken),
    }  # fmt: skip


WAITS = {
    "answers at once": (0, 3600, 1),
    "answers 1 ms late": (1, 3600, 1),
    "answers 90 ms late": (90, 3600, 1),
    "answers 90 ms late, while all its grants expire": (90, 1, 1),
    "answers 90 ms late on four connections": (90, 3600, 4),
    "does not answer": (60_000, 3600, 1),
}


def waits(files: str, opens: str, *names: str) -> Any:
    """For each kind of client the time that opens for writing wait, of files that it may read."""
    crowd = Crowd(int(files))
    found = {name: _wait_case(crowd, int(opens), *WAITS[name]) for name in names or WAITS}
    return {"clients": found, "server": idle()}


# --- what the worker costs ---

# the check of each watched file, and the end of watches
WORKERS = ("nfr_svc_watches_check", "nfr_svc_watches_end")
# of the graph tracer: the time of a worker alone, or its end if it called another function
_WORKER_TIME = re.compile(rf"([\d.]+) us +\| +({'|'.join(WORKERS)}|}})")


def _worked(seconds: float, load: Callable[[], int], *called: str) -> dict[str, float]:
    """Do something for some time: the runs of the worker, their time, and what they called."""
    count, optimistic = 0, answered_without_nfsd()
    with _graph(WORKERS, *called) as lines:
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            count += load()
        taken = time.monotonic() - began
    times = [float(found[1]) for line in lines if (found := _WORKER_TIME.search(line))]
    calls = {name: sum(f"{name} [" in line or f"{name}()" in line for line in lines)
             for name in called}  # fmt: skip
    return {
        "files": count, "seconds": taken, "runs": len(times), "instructions": 1000 * sum(times),
        "optimistic": answered_without_nfsd() - optimistic, **calls,
    }  # fmt: skip


class Pace:
    """Open and read files of a folder in random order, 10,000 per second or as many as can be."""

    def __init__(self, folder: Path, names: list[str], flags: int) -> None:
        self.folder, self.names, self.flags = folder, names, flags
        self.chance, self.room = random.Random(47), mmap.mmap(-1, BLOCK)  # noqa: S311 - no secret
        self.next = time.monotonic()

    def __call__(self) -> int:
        for name in self.chance.sample(self.names, 100):
            file = os.open(self.folder / name, self.flags)
            os.preadv(file, [self.room], 0)
            os.close(file)
        self.next = max(self.next + 0.01, time.monotonic() - 0.1)
        time.sleep(max(0, self.next - time.monotonic()))
        return 100


def _rest() -> int:
    time.sleep(0.1)
    return 0


def worker(files: str, seconds: str) -> Any:
    """The cost of the worker on the instruction clock, where a nanosecond is an instruction.

    ``loads`` are without other traced functions; ``called`` is the same load with the functions
    that the worker calls for each file, whose tracing takes instructions, too.
    """
    crowd, length = Crowd(int(files)), float(seconds)
    client = Pace(HERE / "crowd", crowd.names, os.O_RDONLY | os.O_DIRECT)
    server = Pace(crowd.folder, crowd.names, os.O_RDONLY)
    options, loads, called = "vers=3,nocto,actimeo=3600", dict[str, Any](), dict[str, Any]()
    with parameters(optimistic_lifetime=3600, optimistic_memory=1024), mounted(options):
        connect_second()
        crowd.granted()
        loads["idle"] = _worked(length, _rest)
        loads["clients read"] = _worked(length, client)
        loads["the server reads"] = _worked(length, server)
        called["clients read"] = _worked(length, client, "nfr_svc_revoke_check")
    # most READs find no room for a grant, and leave a watch without one
    with parameters(optimistic_lifetime=3600, optimistic_memory=4), mounted(options):
        connect_second()
        loads["no room"] = _worked(length, client)
        called["no room"] = _worked(length, client, "fsnotify_destroy_mark")
    return {"grants": crowd.grants, "loads": loads, "called": called, "server": idle()}


def shares(connections: str) -> Any:
    """A client with several connections reads more than its share: the most that is granted."""
    data, most, over = made(EXPORT / "shares", 28, 16 * MIB), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], granted())

    options = f"vers=3,noac,nconnect={connections}"
    with parameters(optimistic_memory=16), mounted(options), Reader("shares") as reader:
        reader.granted()
        beside = threading.Thread(target=watch)
        beside.start()
        wrong = 0
        for number in range(600):
            at = number * 37 * BLOCK % len(data)
            wrong += reader.read(at) != data[at : at + BLOCK]
        over.set()
        beside.join()
        found = {"wrong": wrong, "most": most[0], "transports": len(state())}
    return {**found, "server": idle()}


def slow_invalidation(stuck: str) -> Any:
    """The server's card completes invalidations too late: the change does not wait for them.

    The card refuses to end the access of the client a given number of times.
    """
    path, stays = EXPORT / "slow", CARDS / "card1" / "stuck"
    data, delay = made(path, 25, MIB), CARDS / "card1" / "completion_delay"
    with mounted(), Reader("slow") as reader:
        reader.granted()
        before = counters()["optimistic_connects"]
        # 3 s, in nanoseconds
        delay.write_text("3000000000")
        stays.write_text(stuck)
        try:
            os.truncate(path, BLOCK)
        finally:
            delay.write_text("0")
            left = int(stays.read_text())
            stays.write_text("0")
        said = [reader.said(0), reader.said(BLOCK)]
        reader.granted()
        found = {
            "said": said, "wanted": [shown(data[:BLOCK]), shown(b"")],
            "connects": counters()["optimistic_connects"] - before, "state": state(),
            "counters": counters(), "left": left,
        }  # fmt: skip
    return {**found, "server": idle()}


# --- how long, and how much ---


def expires() -> Any:
    """Nobody reads: the grants end after their lifetime, and reading goes on by new ones."""
    data = made(EXPORT / "expires", 8)
    with parameters(optimistic_lifetime=1), mounted(), Reader("expires") as reader:
        # a grant may expire before it is counted
        before = until("a grant", lambda: reader.is_optimistic(0) and granted())
        until("the end of the grants", lambda: not granted())
        same = reader.read(MIB) == data[MIB:][:BLOCK]
        reader.granted(BLOCK)
        found = {"before": before, "same": same, "revoked": served()["grants_revoked"]}
    return {**found, "server": idle()}


def renewed(seconds: str) -> Any:
    """A file is read all the time: its grants are renewed."""
    data, wrong, reads = made(EXPORT / "renewed", 9, MIB), 0, 0
    with parameters(optimistic_lifetime=2), mounted(), Reader("renewed") as reader:
        reader.granted()
        rpcs, before = rpc_reads(), answered_without_nfsd()
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            at = reads * BLOCK % MIB
            wrong += reader.read(at) != data[at : at + BLOCK]
            reads += 1
        found = {
            "reads": reads, "wrong": wrong, "rpcs": rpc_reads() - rpcs, "served": served(),
            "optimistic": answered_without_nfsd() - before,
        }  # fmt: skip
    return {**found, "server": idle()}


def bounded(mib: str) -> Any:
    """Read more than the server may grant: the largest number of pages seen."""
    data, most, over = made(EXPORT / "bounded", 10, 16 * MIB), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], granted())

    with parameters(optimistic_memory=mib), mounted(), Reader("bounded") as reader:
        reader.granted()
        beside = threading.Thread(target=watch)
        beside.start()
        chance = random.Random(11)  # noqa: S311 - no secret
        places = [chance.randrange(len(data) // BLOCK) * BLOCK for _ in range(500)]
        wrong = [at for at in places if reader.read(at) != data[at : at + BLOCK]]
        over.set()
        beside.join()
        found = {"wrong": wrong, "most": most[0], "served": served(), "counters": counters()}
    return {**found, "server": idle()}


def _counted_at_once() -> dict[str, int] | None:
    """The server's grants and pages; None if a revocation is complete between two readings."""
    before, counts, pages = granted(), served(), granted()
    if before != pages:
        return None
    return {"grants": counts["grants"] - counts["grants_revoked"], "pages": pages}


def small_files(mib: str, count: str) -> Any:
    """Read files of one page: the number of grants that the server has, and what they count for."""
    names = [f"small{number}" for number in range(int(count))]
    data, wrong = [made(EXPORT / name, 14, BLOCK) for name in names], []
    with parameters(optimistic_memory=mib), mounted():
        made(EXPORT / "first", 15, BLOCK)
        with Reader("first") as reader:
            # the second connection is there
            reader.granted()
        for name, content in zip(names, data, strict=True):
            with Reader(name) as reader:
                wrong += [name] * (reader.read(0) != content)
        found = {"wrong": wrong, **until("counts of one moment", _counted_at_once)}
    for name in names:
        (EXPORT / name).unlink()
    return {**found, "server": idle()}


def pressure() -> Any:
    """Drop caches while a file is read; a shrinker returns the pages of all grants."""
    data, wrong = made(EXPORT / "pressure", 12), []
    with mounted(), Reader("pressure") as reader:
        for kind in "123":
            reader.granted()
            before = granted()
            Path("/proc/sys/vm/drop_caches").write_text(kind)
            # the pages return when the invalidations are complete
            until("memory", lambda before=before: granted() < before)
            after = granted()
            if reader.read(0, 2 * MIB) != data[: 2 * MIB]:
                wrong.append(kind)
        reader.granted()
        found = {"wrong": wrong, "before": before, "after": after}
    return {**found, "server": idle()}


def hog() -> Any:
    """A process takes nearly all memory: the server's grants shrink, and data is right."""
    data = made(EXPORT / "hog", 13, 48 * MIB)
    with parameters(optimistic_memory=256), mounted(), Reader("hog") as reader:
        reader.granted()
        for at in range(0, len(data), MIB):
            until("a grant", lambda at=at: reader.is_optimistic(at))
        before = least = granted()
        limit = lines(Path("/proc/meminfo"))["MemAvailable:"].split()[0]
        # more than there is: reclaim goes through all shrinkers before the OOM killer comes, which
        # kills a worker of stress-ng; another one takes its place
        size = int(limit) // 1024 + 200
        argv = ["stress-ng", "--vm", "1", "--vm-bytes", f"{size}m", "--vm-keep", "--vm-populate"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wrong, end = 0, time.monotonic() + LIMIT
            while least == before and time.monotonic() < end:
                at = random.randrange(len(data) // BLOCK) * BLOCK  # noqa: S311 - no secret
                wrong += reader.read(at) != data[at : at + BLOCK]
                least = min(least, granted())
            process.terminate()
        found = {"before": before, "least": least, "wrong": wrong}
    (EXPORT / "hog").unlink()
    return {**found, "server": idle()}


# --- the end ---


def make_huge() -> Any:
    """Export a tmpfs with large folios."""
    HUGE.mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", "size=256m,huge=always", "huge", HUGE)
    HUGE.chmod(0o777)
    _export(HUGE, 78)
    return {}


def make_disk() -> Any:
    """Export an ext4 file system on a loop device."""
    DISK.mkdir(parents=True, exist_ok=True)
    image = Path("/srv/disk.img")
    with image.open("wb") as file:
        # room for 50,000 files of a block, and for their inodes
        file.truncate(320 * MIB)
    call("mkfs.ext4", "-q", image)
    call("mount", "-o", "loop", image, DISK)
    DISK.chmod(0o777)
    _export(DISK, 77)
    return {}


def _exports(folder: Path) -> Path:
    return Path(f"/etc/exports.d/{folder.name}.exports")


def _export(folder: Path, number: int) -> None:
    """Export a folder or a file, and again whenever nfsd starts."""
    file = _exports(folder)
    file.parent.mkdir(exist_ok=True)
    options = f"rw,no_root_squash,insecure,no_subtree_check,fsid={number}"
    file.write_text(f"{folder} *({options})\n")
    # it exports a file, and complains
    call("exportfs", "-r", check=folder.is_dir())


def _unexport(folder: Path) -> None:
    _exports(folder).unlink()
    call("exportfs", "-u", f"*:{folder}")
    # nfsd forgets what it knows of exports, and closes files
    call("exportfs", "-f")


def drop_disk() -> Any:
    _unexport(DISK)
    until("unmounting", lambda: not os.path.ismount(DISK) or _unmounted(DISK))
    Path("/srv/disk.img").unlink()
    return {}


def _unmounted(folder: Path) -> bool:
    return not subprocess.run(["umount", folder], check=False, capture_output=True).returncode


def unmounts() -> Any:
    """Unmount an exported file system whose pages are granted."""
    make_disk()
    data = made(DISK / "unmounts", 14)
    with mounted(folder=DISK), Reader("unmounts") as reader:
        reader.granted()
        before = granted()
        same = reader.read(0, MIB) == data[:MIB]
        _unexport(DISK)
        # the client has the file open, and grants
        until("unmounting", lambda: _unmounted(DISK))
        after = granted()
        # one extent may be known to the client, none may be readable
        said = [reader.said(n * BLOCK) for n in range(4)]
    Path("/srv/disk.img").unlink()
    return {"before": before, "after": after, "same": same, "said": said, "server": idle()}


def unloads() -> Any:
    """Unload the module while an exported file system, whose files are watched, is unmounted."""
    names = [f"unloads{number}" for number in range(8)]
    for number, name in enumerate(names):
        made(DISK / name, number, MIB)
    with mounted(folder=DISK):
        for name in names:
            with Reader(name) as reader:
                reader.granted()
    _unexport(DISK)
    # systemd would take longer than the watches last
    Path("/proc/fs/nfsd/threads").write_text("0")
    unmount = threading.Thread(
        target=until, args=("unmounting", lambda: _unmounted(DISK)), daemon=True
    )
    unmount.start()
    until("unloading", lambda: not subprocess.run(["rmmod", "nfsrdma"], check=False).returncode)
    unmount.join(LIMIT)
    Path("/srv/disk.img").unlink()
    return {"unmounted": not os.path.ismount(DISK)}


def unloads_at_once() -> Any:
    """Unload the module while a file is watched that clients have just read."""
    made(EXPORT / "unloads", 50, MIB)
    with mounted(), Reader("unloads") as reader:
        reader.granted()
    Path("/proc/fs/nfsd/threads").write_text("0")
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        # one that hangs in the kernel cannot be killed
        process = subprocess.Popen(["rmmod", "nfsrdma"], stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            if not process.wait(LIMIT):
                return {"unloaded": True}
    return {"unloaded": False}


class Visitors:
    """Threads that open files of a mount by turns, read a block, and count what they get."""

    def __init__(self, files: dict[str, bytes], count: int) -> None:
        self.files, self.over, self.got = files, threading.Event(), Counter[str]()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def _run(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - no secret
        names = list(self.files)
        while not self.over.is_set():
            name = chance.choice(names)
            at = chance.randrange(len(self.files[name]) // BLOCK) * BLOCK
            try:
                with Reader(name) as reader:
                    same = reader.read(at) == self.files[name][at : at + BLOCK]
                self.got["right" if same else "wrong"] += 1
            except OSError as error:
                self.got[errno.errorcode[error.errno or 0]] += 1
                self.over.wait(0.01)

    def __enter__(self) -> Visitors:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def more(self) -> None:
        before = self.got["right"]
        until("reads", lambda: self.got["right"] > before)


def _is_free(device: str) -> bool:
    """Check that no file system has a device: only one may open it like this."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def unmount_races(rounds: str, seed: str) -> Any:
    """Unmount a file system under reads, at any moment of the interval of the server's worker.

    Watches of some of its files have lost their grants before, and the worker ends them. Returns
    how often the file system was up, or had grants, when umount() returned.
    """
    folder, image, chance = Path("/srv/races"), Path("/srv/races.img"), random.Random(seed)  # noqa: S311
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    call("mkfs.ext4", "-q", image)
    device = call("losetup", "--find", "--show", image).strip()
    folder.mkdir(exist_ok=True)
    call("mount", device, folder)
    files = {f"race{n}": made(folder / f"race{n}", n, 4 * BLOCK) for n in range(64)}
    _export(folder, 80)
    found = Counter[str]()
    try:
        with parameters(optimistic_lifetime=1), mounted(folder=folder):
            with Visitors(files, 3) as visitors:
                for _ in range(int(rounds)):
                    visitors.more()
                    more_optimistic_reads()
                    # the interval of the worker, and half a second that a watch stays
                    time.sleep(chance.uniform(0, 1.5))
                    for name in chance.sample(list(files), 32):
                        (folder / name).open("r+b").close()
                    time.sleep(chance.choice((0, chance.uniform(0, 1))))
                    found["grants"] += granted() > 0
                    _unexport(folder)
                    until("unmounting", lambda: _unmounted(folder))
                    found["up"] += not _is_free(device)
                    found["granted"] += granted() > 0
                    found["rounds"] += 1
                    call("mount", device, folder)
                    _export(folder, 80)
                visitors.more()
            optimistic = answered_without_nfsd()
    finally:
        _unexport(folder)
        until("unmounting", lambda: _unmounted(folder))
        call("losetup", "--detach", device)
        image.unlink()
    return {**found, "got": visitors.got, "optimistic": optimistic, "server": idle()}


# --- a second connection that does not come about ---


@contextmanager
def _silence() -> Iterator[None]:
    """Nobody answers the question for the link address of the server."""
    call("ip", "link", "set", "v1", "arp", "off")
    call("ip", "neigh", "del", _address(), "dev", "v0")
    try:
        yield
    finally:
        link = Path("/sys/class/net/v1/address").read_text().strip()
        call("ip", "link", "set", "v1", "arp", "on")
        call("ip", "neigh", "replace", _address(), "lladdr", link, "dev", "v0", "nud", "permanent")


def _address() -> str:
    return socket.gethostbyname("server")


@contextmanager
def _no_route() -> Iterator[None]:
    """No packet is sent to the server: see lab-node for the table."""
    route = call("ip", "route", "show", _address(), "table", "100").split()
    call("ip", "route", "replace", "blackhole", _address(), "table", "100")
    try:
        yield
    finally:
        call("ip", "route", "del", "blackhole", _address(), "table", "100")
        call("ip", "route", "replace", *route, "table", "100")


def _connects_second() -> bool:
    """Whether a worker of the client is making a second connection."""
    for stack in Path("/proc").glob("[0-9]*/stack"):
        # a process may end meanwhile
        with suppress(OSError):
            if "nfr_client_branch_open_work" in stack.read_text():
                return True
    return False


def _attempts() -> int:
    """The recorded attempts to make a second connection; the test has recording begin."""
    return Path("/sys/kernel/tracing/trace").read_text().count(" nfsrdma_lane: ")


UNREACHABLE = {"silence": _silence, "no route": _no_route}


def unresolved(way: str, rounds: str) -> Any:
    """Unmount while the second connection looks for the server's address, or has no route."""
    data, same, connects = made(EXPORT / "unresolved", 43, MIB), [], 0
    for _ in range(int(rounds)):
        # umount.nfs sends mountd no UMNT without this server
        with ExitStack() as later, mounted(off=("umount", "-i")):
            with Reader("unresolved") as reader:
                later.enter_context(UNREACHABLE[way]())
                same.append(reader.read(0) == data[:BLOCK])
            if way == "silence":
                until("a second connection that is being made", _connects_second)
            else:
                # an unmount may be faster than the worker, which then makes no attempt
                until("the attempt", lambda: _attempts() >= len(same))
            connects += counters()["optimistic_connects"]
            later.callback(until, "the end of the transport", lambda: not any(CLIENTS.iterdir()))
    return {"same": all(same), "connects": connects, "server": idle()}


def lost_meanwhile() -> Any:
    """Break the first connection while the second one resolves the server's address."""
    data = made(EXPORT / "lost", 44, MIB)
    with mounted(), Reader("lost") as reader:
        with _silence():
            same = [reader.read(0) == data[:BLOCK]]
            until("a second connection that is being made", _connects_second)
            (CARDS / "card0" / "break").write_text(queue_pairs()[0])
            until("the end of the connection", lambda: disconnects() == 1)
        same.append(reader.read(BLOCK) == data[BLOCK : 2 * BLOCK])
        reader.granted()
        found = {"same": all(same), "disconnects": disconnects()}
    return {**found, "server": idle()}


# --- processes that are killed ---


def killed(rounds: str) -> Any:
    """Kill processes that read."""
    data = made(EXPORT / "killed", 15)
    chance = random.Random(16)  # noqa: S311 - no secret
    with mounted(), Reader("killed") as reader:
        reader.granted()
        before = disconnects()
        for _ in range(int(rounds)):
            argv = (sys.executable, "-c", _READER, HERE / "killed")
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
                assert child.stdout
                child.stdout.read(1)
                time.sleep(chance.uniform(0, 0.05))
                child.kill()
        same = b"".join(reader.read(n * MIB, MIB) for n in range(4)) == data
        found = {"same": same, "disconnects": disconnects() - before, "counters": counters()}
    return {**found, "server": idle()}


def _names_on(folder: Path, begun: Any) -> None:
    """List a folder whose pages the client has dropped, until killed."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    begun.set()
    while True:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        for _ in os.scandir(file):
            pass


def _regions() -> int:
    """Memory regions of the client's transports; one that connects again has none."""
    return sum(int(each.get("mrs", 0)) for each in state())


def killed_listings(seconds: str) -> Any:
    """Kill processes that list folders, while another one reads: `timeout -s KILL .01 ls -lR`.

    They are forked, because a program takes longer than that to start in a slow machine.
    """
    folder = EXPORT / "listed"
    folder.mkdir()
    for name in range(300):
        (folder / f"a-name-{name:0100}").touch()
    data, chance, kills = made(EXPORT / "beside", 15), random.Random(16), 0  # noqa: S311
    with mounted("vers=3"), Steady("beside", data, 64 * BLOCK) as steady:
        until("reads", lambda: steady.reads > 10)
        before, regions = disconnects(), [_regions()]
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            begun = Event()
            listing = Process(target=_names_on, args=(HERE / "listed", begun))
            listing.start()
            begun.wait()
            time.sleep(chance.uniform(0, 0.03))
            listing.kill()
            listing.join()
            kills += 1
            regions.append(_regions())
        found = {
            "disconnects": disconnects() - before, "kills": kills,
            "regions": [regions[0], max(regions)],
            "reasons": [each["last_disconnect"] for each in state()], **steady.result(),
        }  # fmt: skip
    call("rm", "-r", folder)
    return {**found, "server": idle()}


_READER = """
import mmap, os, random, sys
room = mmap.mmap(-1, 4096)
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
os.write(1, b".")
while True:
    os.preadv(file, [room], random.randrange(1024) * 4096)
"""


def _read_on(path: Path, size: int) -> None:
    """Read a file at random places, until killed."""
    room, blocks = mmap.mmap(-1, size), 4 * MIB // size
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    while True:
        os.preadv(file, [room], random.randrange(blocks) * size)  # noqa: S311 - no secret


def _list_on(folder: Path) -> None:
    """List a folder, until killed. A kill ends these Calls; it does not end a READ."""
    while True:
        list(folder.iterdir())


def _change_on(folder: Path) -> None:
    """Change a folder of the server, so that each listing asks the server."""
    while True:
        (folder / "changing").touch()
        (folder / "changing").unlink()


class Users:
    """Processes that use the mount: some read a file, most list a folder."""

    def __init__(self, chance: random.Random) -> None:
        targets = [(_read_on, (HERE / "storm", chance.choice((BLOCK, 65536)))) for _ in range(4)]
        lists = [(_list_on, (HERE / "storm.d",)) for _ in range(12)]
        self.processes = [Process(target=target, args=args) for target, args in targets + lists]
        for process in self.processes:
            process.start()

    def schedule(self, policy: int) -> None:
        """Set the scheduling policy of all."""
        for process in self.processes:
            # a process that has ended is not waited for yet
            os.sched_setscheduler(process.pid or 0, policy, os.sched_param(0))

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def alive(self) -> int:
        """Wait for the ends of killed processes; returns how many a limit finds alive."""
        end = time.monotonic() + LIMIT
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        return sum(process.is_alive() for process in self.processes)


def _connects() -> int:
    return sum(int(each["connects"]) for each in state())


def _break_all() -> None:
    (CARDS / "card0" / "break").write_text("0")


def _round(users: Users, chance: random.Random) -> None:
    """Break the connection; when it is there again, kill its users, and break it again.

    Users that wait for the new connection send at once, and one sends the Calls of all. sunrpc
    hands another one the lock if it has begun to wait and has not yet seen that its Call is sent
    (xprt_prepare_transmit() in net/sunrpc/xprt.c): a race of few instructions, which users that
    run late may lengthen and no round can force.
    """
    # Replies wait for local invalidations
    more("local_invalidations", 20)
    connects = _connects()
    users.schedule(os.SCHED_IDLE)
    _break_all()
    until("a new connection", lambda: _connects() > connects, pause=0.001)
    time.sleep(chance.uniform(0, 0.05))
    for step in chance.sample((users.kill, _break_all), 2):
        step()


def _storm(rounds: int, chance: random.Random) -> int:
    """Kill users of the mount, and break its connection, again and again.

    Ends when users survive a kill, and returns their number.
    """
    # this process is on time; those that it starts are not
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    for _ in range(rounds):
        users = Users(chance)
        try:
            _round(users, chance)
        finally:
            users.kill()
        users.schedule(os.SCHED_OTHER)
        if alive := users.alive():
            return alive
    return 0


@contextmanager
def _beside(*targets: tuple[Callable[..., None], tuple[Any, ...]]) -> Iterator[None]:
    """Run endless processes meanwhile."""
    processes = [Process(target=target, args=args) for target, args in targets]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def killed_in_storm(rounds: str, personality: str, seed: str) -> Any:
    """Kill readers while their connection breaks again and again, and Replies take some time.

    A client that invalidates by itself, with a card that is late, has Replies that wait when the
    connection breaks. Processes that spin have idle-class processes run late. ``taken`` counts how
    often the worker of the client took the lock from a killed task.
    """
    folder, late = EXPORT / "storm.d", CARDS / "card0" / "completion_delay"
    folder.mkdir()
    for n in range(100):
        (folder / f"a-name-{n:050}").touch()
    data = made(EXPORT / "storm", 45)
    with (
        parameters(registration="frwr-local", inline_recv=1024, personality=personality),
        mounted("vers=3,noac,rsize=65536"),
    ):
        # 20 ms, in nanoseconds
        late.write_text("20000000")
        try:
            with (
                _beside((_change_on, (folder,)), (_spin, ()), (_spin, ())),
                _graph(("nfr_client_unlock_worker",), "xprt_release_xprt") as calls,
            ):
                alive = _storm(int(rounds), random.Random(seed))  # noqa: S311 - no secret
        finally:
            late.write_text("0")
        with Reader("storm") as reader:
            same = b"".join(reader.read(n * 65536, 65536) for n in range(64)) == data
        found = {
            "alive": alive, "same": same, "disconnects": disconnects(), "state": state(),
            "taken": sum("xprt_release_xprt" in line for line in calls),
        }  # fmt: skip
    call("rm", "-r", folder)
    return {**found, "server": idle()}


class Steady:
    """A thread that reads a file all the time and counts blocks that are wrong."""

    def __init__(self, name: str, data: bytes, size: int = BLOCK) -> None:
        self.name, self.data, self.size = name, data, size
        self.over, self.reads, self.wrong = threading.Event(), 0, 0
        self.errors: list[str] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        chance = random.Random(17)  # noqa: S311 - no secret
        with Reader(self.name) as reader:
            while not self.over.is_set():
                at = chance.randrange(len(self.data) // self.size) * self.size
                try:
                    got = reader.read(at, self.size)
                    self.wrong += got != self.data[at : at + self.size]
                    self.reads += 1
                except OSError as error:
                    self.errors.append(errno.errorcode[error.errno or 0])

    def __enter__(self) -> Steady:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def result(self) -> dict[str, Any]:
        return {"reads": self.reads, "wrong": self.wrong, "errors": self.errors}


def more(name: str, count: int = 1) -> None:
    """Wait until a counter of the client has grown."""
    before = counters()[name]
    until(name, lambda: counters()[name] >= before + count)


def more_optimistic_reads() -> None:
    before = answered_without_nfsd()
    # the server's counters end with their connection
    until("reads without nfsd", lambda: answered_without_nfsd() != before)


def restart(times: str) -> Any:
    """Restart nfsd while a file is read."""
    data = made(EXPORT / "restart", 18)
    with mounted():
        with Steady("restart", data) as steady:
            for _ in range(int(times)):
                more_optimistic_reads()
                call("systemctl", "restart", "nfs-server")
                with suppress(OSError):
                    Path("/proc/fs/nfsd/v4_end_grace").write_text("Y\n")
            more_optimistic_reads()
        found = {**steady.result(), "counters": counters(), "state": state()}
    return {**found, "server": idle()}


def _remove(card: str, *, surprise: bool) -> None:
    """Remove a card, as an administrator or as one that is pulled out, and add it again."""
    links = json.loads(call("rdma", "-j", "link"))
    netdev = next(link["netdev"] for link in links if link["ifname"] == card)
    if surprise:
        (CARDS / card / "gone").write_text("1")
    else:
        call("rdma", "link", "delete", card)
    until("removal", lambda: not Path("/sys/class/infiniband", card).exists())
    call("rdma", "link", "add", card, "type", "nfsrdma_card", "netdev", netdev)
    until(card, lambda: f"link {card}/1 state ACTIVE" in call("rdma", "link", check=False))


def _pages(path: Path) -> int:
    """Pages of a file in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as room:
        flags = (ctypes.c_ubyte * (-(-len(room) // BLOCK)))()
        start = ctypes.c_char.from_buffer(room)
        failed = LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(len(room)), flags)
        # it would keep the mapping
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(flag & 1 for flag in flags)


def removed(times: str) -> Any:
    """Remove the device of the server or of the client while replies to READs are in flight.

    The card reports completions 0.2 seconds late, and each reply keeps its pages until then. A
    page that a reply still holds afterwards stays in the page cache when the caches are dropped.
    """
    file, flights = DISK / "removed", list[dict[str, Any]]()
    data = made(file, 46)
    os.sync()
    with mounted("vers=3,noac,timeo=50", folder=DISK):
        with ExitStack() as stack:
            sizes = (BLOCK, BLOCK, 16 * BLOCK, 16 * BLOCK)
            readers = [stack.enter_context(Steady("removed", data, size)) for size in sizes]
            for number in range(int(times)):
                more_optimistic_reads()
                folder = SERVER if number % 2 else CLIENTS
                (card,) = {each["device"] for each in state(folder)}
                serving = {each["device"] for each in state(SERVER)}
                for each in serving:
                    (CARDS / each / "completion_delay").write_text("200000000")
                more_optimistic_reads()
                pages = until("replies in flight", lambda: totals()["reply_pages"])
                _remove(card, surprise=number % 4 > 1)
                for each in serving - {card}:
                    (CARDS / each / "completion_delay").write_text("0")
                flights.append({"card": card, "pages": pages})
            more_optimistic_reads()
        found = {
            "reads": [each.reads for each in readers], "wrong": sum(r.wrong for r in readers),
            "errors": [error for each in readers for error in each.errors],
            "flights": flights, "disconnects": disconnects(), "state": state(),
        }  # fmt: skip
    server = {**idle(), "reply_pages": totals()["reply_pages"]}

    def dropped() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        return not _pages(file)

    held = _pages(file)
    with suppress(TimeoutError):
        until("an empty page cache", dropped, limit=20)
    found |= {"held": held, "left": _pages(file), "server": server}
    file.unlink()
    return found


def queue_pairs() -> list[str]:
    """The numbers of the client's connected queue pairs; the first one of a mount is the oldest."""
    rows = json.loads(call("rdma", "-j", "-d", "resource", "show", "qp"))
    numbers = [
        row["lqpn"] for row in rows
        if row.get("ifname") == "card0" and row["type"] == "RC" and row["state"] == "RTS"
    ]  # fmt: skip
    return [str(number) for number in sorted(numbers)]


def second_numbers() -> list[str]:
    return queue_pairs()[1:]


def broken(times: str) -> Any:
    """Break the second connection by force while a file is read."""
    data, done = made(EXPORT / "broken", 19), 0
    with mounted():
        before = disconnects()
        with Steady("broken", data) as steady:
            for _ in range(int(times)):
                more_optimistic_reads()
                for number in until("a second queue pair", second_numbers):
                    (CARDS / "card0" / "break").write_text(number)
                    done += 1
            more_optimistic_reads()
        found = {
            **steady.result(), "broken": done, "disconnects": disconnects() - before,
            "counters": counters(), "state": state(),
        }  # fmt: skip
    return {**found, "server": idle()}


# --- staleness ---


def _disturb(over: threading.Event, seed: int, faults: str) -> dict[str, int]:
    """Do what must not harm, until the readers end."""
    chance, done = random.Random(seed), dict.fromkeys(filter(None, faults.split(",")), 0)  # noqa: S311
    while done and not over.wait(chance.uniform(0.5, 4)):
        name = chance.choice(list(done))
        FAULTS[name]()
        done[name] += 1
    return done


def _restart_nfsd() -> None:
    call("systemctl", "restart", "nfs-server")
    with suppress(OSError):
        Path("/proc/fs/nfsd/v4_end_grace").write_text("Y\n")


def _remount() -> None:
    """One more mount of the server comes, reads and goes."""
    at = Path("/mnt/more")
    with mounted("vers=3,noac,nosharecache", at=at), suppress(OSError):
        (at / "more").read_bytes()


def _break_second() -> None:
    for number in second_numbers()[:1]:
        (CARDS / "card0" / "break").write_text(number)


def _squeeze() -> None:
    """Allocate three quarters of the available memory and touch it."""
    size = int(lines(Path("/proc/meminfo"))["MemAvailable:"].split()[0]) * 3 // 4
    argv = ("stress-ng", "--vm", "1", "--vm-bytes", f"{size}k", "--vm-populate", "--timeout", "2s")
    call(*argv, check=False)


FAULTS: dict[str, Callable[[], Any]] = {
    "drop caches": lambda: Path("/proc/sys/vm/drop_caches").write_text("3"),
    "squeeze": _squeeze,
    "remount": _remount,
    "restart nfsd": _restart_nfsd,
    "break": _break_second,
    "sync": os.sync,
}


def staleness(
    seconds: str, seed: str, folder: str, rest: str, faults: str, writer: str, users: str
) -> Any:
    """Run staleness.c; returns what it found, the faults, and the counters."""
    root, over, done = Path(folder) / "stale", threading.Event(), dict[str, int]()
    root.mkdir(exist_ok=True)
    root.chmod(0o777)
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("Y")
    where = Path(folder)
    over_tcp = f"{writer},noac,lookupcache=none"
    with mounted(STRICT, folder=where), mounted(over_tcp, at=TCP, folder=where, tcp=True):
        before = counters(), rpc_reads()
        argv: list[str | Path] = [
            "/run/staleness",
            seconds,
            seed,
            rest,
            "4",
            HERE / "stale",
            root,
            TCP / "stale",
            *((f"server:{root}", users) if int(users) else ()),
        ]
        beside = threading.Thread(target=lambda: done.update(_disturb(over, int(seed), faults)))
        beside.start()
        try:
            result = subprocess.run(argv, check=False, capture_output=True, text=True)
        finally:
            over.set()
            beside.join()
        if result.returncode:
            raise SystemExit(f"staleness: status {result.returncode}: {result.stderr.strip()}")
        after = counters()
        rpcs = rpc_reads() - before[1]
        found = {
            **json.loads(result.stdout), "faults": done, "rpcs": rpcs,
            "threadless": {n: k for n, k in served().items() if n.startswith("threadless")},
            "optimistic": {
                name: value - before[0].get(name, 0)
                for name, value in after.items() if name.startswith("optimistic")
            },
            "served": {name: n for name, n in served().items() if name.startswith("grants")},
            "state": state(),
        }  # fmt: skip
        pages = granted()
    for file in root.iterdir():
        file.unlink()
    root.rmdir()
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("N")
    return {**found, "granted": pages, "server": idle()}


# --- hostile servers ---


def tricks(port: str, count: str) -> Any:
    """Read each MiB of a file of a server whose notices play a trick behind the first READ.

    After a few tricks the file is mounted again: the delay between two second connections
    doubles with each that ended soon.
    """
    total, few = int(count), 6
    wanted, found = made(EXPORT / "tricks", 20, total * MIB), list[dict[str, Any]]()
    ends, same = Counter[str](), True
    # a Call that times out ends the first connection, and the server is slow on a busy host
    options = "vers=3,mountproto=tcp,rsize=65536,timeo=600,noac,nolock"
    for first in range(0, total, few):
        with mounted(options, port=port), Reader("tricks") as reader:
            for number in range(first, min(first + few, total)):
                found.append(_tricked(reader, wanted, number * MIB))
            same = same and reader.read(0, 8 * BLOCK) == wanted[: 8 * BLOCK]
            ends.update(counters(), disconnects=disconnects())
    (EXPORT / "tricks").unlink()
    return {"ends": ends, "found": found, "same": same}


def _is_ready() -> bool:
    found = state()
    # the transport of the mount before may not have ended yet
    return len(found) == 1 and (
        (found[0]["optimistic_connection"], found[0]["optimistic_paused"]) == ("yes", "no")
    )


def _tricked(reader: Reader, wanted: bytes, at: int) -> dict[str, Any]:
    """Read around a place by RPC, and then again and again."""
    place = at
    # a READ, of another MiB that was played already, has a second connection made
    until("a second connection", lambda: _is_ready() or not reader.read(0))
    before, same = counters(), []
    for number in range(12):
        same.append(reader.read(place, BLOCK) == wanted[place : place + BLOCK])
        # the last block of an extent, too
        place = at + (0, BLOCK, MIB - BLOCK)[number % 3]
        time.sleep(0.05)
    after = counters()
    names = ("optimistic_reads", "optimistic_refused", "optimistic_connects")
    return {"same": all(same), **{name: after[name] - before[name] for name in names}}


def user_tricks(port: str, count: str) -> Any:
    """Do the same by libnfsrdma, with a session in the place of each mount."""
    from nfsrdma_tools.client import connect

    total, few = int(count), 6
    # the last MiB has no trick: reads of it show whether the next one finds a second connection
    wanted, found = made(EXPORT / "tricks", 20, (total + 1) * MIB), list[dict[str, Any]]()
    ends, same = Counter[str](), True
    for first in range(0, total, few):
        with connect(f"server:{EXPORT}", port=int(port), timeout=60, optimistic=True) as session:
            with session.open("tricks") as file:
                for number in range(first, min(first + few, total)):
                    found.append(_user_tricked(session, file, wanted, number * MIB))
                same = same and file.pread(8 * BLOCK, 0) == wanted[: 8 * BLOCK]
            ends.update(session.stats._asdict(), sessions=1)
    (EXPORT / "tricks").unlink()
    return {"ends": ends, "found": found, "same": same}


def _user_tricked(session: Any, file: Any, wanted: bytes, at: int) -> dict[str, Any]:
    """Read around a place by RPC, and then again and again."""

    def is_ready() -> bool:
        earlier = session.stats
        good = file.pread(BLOCK, len(wanted) - MIB) == wanted[-MIB : BLOCK - MIB]
        later = session.stats
        return good and (later.no_second, later.paused) == (earlier.no_second, earlier.paused)

    until("a second connection", is_ready)
    place, before, same = at, session.stats, list[bool]()
    for number in range(12):
        same.append(file.pread(BLOCK, place) == wanted[place : place + BLOCK])
        # the last block of an extent, too
        place = at + (0, BLOCK, MIB - BLOCK)[number % 3]
        time.sleep(0.05)
    names = ("by_reference", "refused", "second_connects")
    after = session.stats
    return {"same": all(same),
            **{name: getattr(after, name) - getattr(before, name) for name in names}}  # fmt: skip


def main() -> Any:
    return globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    print(json.dumps(main()))
