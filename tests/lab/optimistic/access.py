# SPDX-License-Identifier: Apache-2.0
"""Data of READs that pass nfsd by, and changes of a file or of who may read it."""

import mmap
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lab.optimistic.exports import SLOW, nfsd_waits, slow_disk

from testbed.node.files import drop_from_cache
from testbed.node.grants import (
    ACROSS,
    BLOCK,
    DISK,
    EXPORT,
    MIB,
    STRICT,
    TCP,
    USER,
    Reader,
    answered_without_nfsd,
    as_user,
    connect_second,
    granted,
    made,
    mounted_export,
    nothing_broke,
    repeated,
    rpc_reads,
    seeded,
    shown,
)
from testbed.node.mounts import HERE, SERVER, connections, counters, parameters
from testbed.node.programs import call, until
from testbed.remote import on

# --- data ---


class Reads(NamedTuple):
    """Counters of the client for direct reads and all reads, and of the server for direct reads.

    Those of the server are those after the first optimistic or threadless read.
    """

    direct: dict[str, int]
    all: dict[str, int]
    server: dict[str, int]


@on("client", timeout=900)
def read_all_kinds(options: str, folder: Path, personality: str) -> Reads:
    """Check reads of many sizes and offsets, direct and buffered."""
    data, chance = made(folder / "kinds", 1, 3 * MIB + 5000), seeded(2)
    with mounted_export(options, folder=folder), Reader("kinds") as reader:
        if "vers=3" in options:
            reader.granted()
        before = counters(SERVER)
        sizes = [1, 511, 512, 4095, 4096, 4097, 10000, 65535, 65536, 100000, MIB, MIB + 4096]
        for _ in range(400):
            size = chance.choice(sizes)
            # around the end of the file and of extents, too
            near = chance.choice((0, MIB, 2 * MIB, len(data)))
            at = chance.choice((chance.randrange(len(data)), near + chance.randrange(-9000, 9000)))
            at = max(at, 0)
            assert reader.read(at, size) == data[at : at + size]
        direct, after = counters(), counters(SERVER)
        call("sysctl", "-qw", "vm.drop_caches=1")
        assert (HERE / "kinds").read_bytes() == data
        assert {state["personality"] for state in connections()} == {personality}
        nothing_broke()
        return Reads(direct, counters(), {name: after[name] - before[name] for name in after})


# --- changes ---


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"overwritten" * 300)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"appended" * 1000)


def _direct(path: Path) -> None:
    room = mmap.mmap(-1, BLOCK)
    room.write(b"direct  " * (BLOCK // 8))
    file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    os.pwritev(file, [room], BLOCK)
    os.close(file)


def _mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        room[BLOCK : 2 * BLOCK] = b"mapped  " * (BLOCK // 8)


def _punch(path: Path) -> None:
    call("fallocate", "--punch-hole", "--offset", "5000", "--length", "9000", path)


def _replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"replaced" * 100_000)
    other.rename(path)


def _recreate(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"created " * 100_000)


def _give_away(path: Path) -> None:
    os.chown(path, 1, 1)
    path.chmod(0o600)


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwrite": _overwrite,
    "append": _append,
    "direct write": _direct,
    "mapped write": _mapped,
    "truncate": lambda path: os.truncate(path, 5000),
    "truncate to nothing": lambda path: os.truncate(path, 0),
    "extend": lambda path: os.truncate(path, MIB),
    "open with O_TRUNC": lambda path: path.write_bytes(b"short"),
    "punch": _punch,
    "rename over": _replace,
    "unlink and create": _recreate,
    "unlink": Path.unlink,
    "chmod": lambda path: path.chmod(0o600),
    "chown": _give_away,
    "acl": lambda path: call("setfacl", "-m", f"u:{USER}:---", path),
}
LOCAL_ONLY = ("punch", "acl")
# of these, a reader who has the file open may find the old content
KEPT = ("rename over", "unlink and create", "unlink")
WITHDRAWN = ("chmod", "chown", "acl")
OFFSETS = (0, BLOCK, 2 * BLOCK, 300_000, 300_000 // BLOCK * BLOCK)


@on("client", timeout=900)
def check_changes(folder: Path, view: str) -> None:
    """Change a granted file in each way, at the server or over TCP, while a user reads it."""
    with ExitStack() as mounts:
        mounts.enter_context(mounted_export(STRICT, folder=folder))
        way = folder
        if view == "tcp":
            way = mounts.enter_context(mounted_export(f"{STRICT},{ACROSS}", TCP, folder))
        for name, change in CHANGES.items():
            if view == "server" or name not in LOCAL_ONLY:
                _check_change(name, folder / "changed", partial(change, way / "changed"))
        nothing_broke()


def _check_change(name: str, path: Path, change: Callable[[], object]) -> None:
    """After a change, a user gets what the file has, or what the access allows."""
    path.unlink(missing_ok=True)
    # 300,000 bytes end inside of a block
    before = made(path, 6, 300_000)
    path.chmod(0o644)
    # the credentials of the open file are those of its READs
    with as_user():
        reader = Reader("changed")
    with reader:
        reader.granted()
        assert granted() > 0, name
        change()
        # the system call has returned: nothing of the file is granted
        assert granted() == 0, name
        answers = [reader.answer(offset) for offset in OFFSETS]
    after = path.read_bytes() if path.exists() else b""
    for offset, answer in zip(OFFSETS, answers, strict=True):
        old, new = (shown(data[offset : offset + BLOCK]) for data in (before, after))
        if name in WITHDRAWN:
            assert answer == "EACCES", name
        else:
            # nfsd may keep the old file open for a while
            assert answer in ((old, "ESTALE") if name in KEPT else (new,)), name
    if path.exists() and _may_read(path):
        # an open() that follows the change
        with as_user(), Reader("changed") as reader:
            assert reader.answer(0, 2 * MIB) == shown(after), name


def _may_read(path: Path) -> bool:
    with as_user():
        return os.access(path, os.R_OK, effective_ids=True)


@on("client", timeout=900)
def check_opened_for_writing() -> None:
    """nfsd answers all READs of a file that a process of the server has open for writing."""
    data = made(EXPORT / "opened", 7)
    with mounted_export(), Reader("opened") as reader:
        reader.granted()
        with (EXPORT / "opened").open("r+b"):
            assert granted() == 0
            assert not any(reader.is_optimistic(n * BLOCK) for n in range(50))
            assert reader.read(0, MIB) == data[:MIB]
            assert granted() == 0
        reader.granted()


# --- access ---


@on("client", timeout=900)
def check_credentials(seconds: float, share: float) -> None:
    """One user may read, another one may not any more: each read of the latter fails.

    ``share`` is the least share of the former's reads that pass nfsd by.
    """
    path, answers, chance = EXPORT / "credentials", Counter[str](), seeded(28)
    path.unlink(missing_ok=True)
    data, reads = made(path, 21, MIB), 0
    with mounted_export(STRICT), Reader("credentials") as first:
        with as_user():
            second = Reader("credentials")
        with second:
            second.granted()
            path.chmod(0o600)
            before, end = answered_without_nfsd(), time.monotonic() + seconds
            with repeated(lambda: answers.update((second.answer(),))):
                while time.monotonic() < end:
                    assert first.read() == data[:BLOCK]
                    reads += 1
                    time.sleep(chance.choice((0, 0, 0, 0.03)))
            assert answers.keys() == {"EACCES"}
            assert answered_without_nfsd() - before > share * reads


@contextmanager
def _clock() -> Iterator[Callable[[float], None]]:
    """The function sets the clock forward or back by seconds; at the end it is right again."""
    right = time.time() - time.monotonic()

    def step(seconds: float) -> None:
        if seconds:
            time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)

    try:
        yield step
    finally:
        time.clock_settime(time.CLOCK_REALTIME, right + time.monotonic())


@on("client", timeout=900)
def check_withdrawn_meanwhile(before: float = 0, after: float = 0) -> int:
    """Withdraw access to a file while nfsd reads it for a user: later reads fail.

    The server's clock steps by seconds before and after that.  Returns the READs that passed nfsd
    by, of other files too.
    """
    path, answers = SLOW / "late", list[str]()
    with slow_disk() as delay, _clock() as step:
        data = made(path, 22, MIB)
        os.sync()
        with mounted_export(STRICT), mounted_export(STRICT, TCP, SLOW):
            connect_second()
            with as_user():
                # both mounts have one transport
                reader = Reader("late", at=TCP)
            with reader:
                drop_from_cache(path)
                delay(60_000)
                beside = threading.Thread(target=lambda: answers.append(reader.answer()))
                reads = rpc_reads()
                beside.start()
                until("a READ", lambda: rpc_reads() > reads)
                until("a thread of nfsd that waits for the disk", nfsd_waits)
                step(before)
                path.chmod(0o600)
                step(after)
                assert beside.is_alive(), "the READ was faster than the disk"
                # ends the delay of what waits, too
                delay(0)
                beside.join()
                assert answers == [shown(data[:BLOCK])]
                # a grant would arrive behind the Reply
                time.sleep(0.5)
                assert {reader.answer() for _ in range(5)} == {"EACCES"}
                return answered_without_nfsd()


# another option of an export replaces the former ones
_CHANGED = "rw,insecure,no_subtree_check,fsid=77"
WITHDRAWALS = {
    "exportfs -u": ("-u",),
    "all_squash": ("-o", f"{_CHANGED},all_squash"),
    "sec=krb5": ("-o", f"{_CHANGED},sec=krb5"),
}


@on("client", timeout=900)
def check_withdrawn(how: str, limit: int) -> None:
    """Withdraw the access of a user by an export: reads that begin ``limit`` seconds later fail.

    ``limit`` is what the pages state, and the lifetime of references.
    """
    path, late = DISK / "withdrawn", set[str]()
    data = made(path, 25, MIB)
    os.chown(path, USER, USER)
    path.chmod(0o600)
    with parameters(optimistic_lifetime=limit), mounted_export(STRICT, folder=DISK):
        connect_second(DISK)
        with as_user():
            reader = Reader("withdrawn")
        with reader:
            reader.granted()
            call("exportfs", *WITHDRAWALS[how], f"*:{DISK}")
            end = time.monotonic() + limit
            while (began := time.monotonic()) < end + 3:
                answer = reader.answer()
                if began > end:
                    late.add(answer)
            call("exportfs", "-r")
            until("access", lambda: reader.answer() == shown(data[:BLOCK]))
    path.unlink()
    assert late in ({"EACCES"}, {"EPERM"}, {"ESTALE"})


# in the attribute system.nfs4_acl: type DENY, no flags, READ_DATA
_DENY_READ = struct.pack(">III", 1, 0, 1)


def _deny_by_nfs4(path: Path) -> None:
    """Deny USER to read a file, by the access list of NFSv4 (RFC 7530, section 6)."""
    acl = os.getxattr(path, "system.nfs4_acl")
    who = str(USER).encode()
    entry = _DENY_READ + struct.pack(">I", len(who)) + who
    (count,) = struct.unpack(">I", acl[:4])
    os.setxattr(path, "system.nfs4_acl", struct.pack(">I", count + 1) + entry + acl[4:])


@on("client", timeout=900)
def check_acl_by_nfs(folder: Path, version: str) -> None:
    """Deny a user to read a file by an ACL set over NFS, which fsnotify does not report."""
    path = folder / "acl"
    path.unlink(missing_ok=True)
    made(path, 27, MIB)
    path.chmod(0o644)
    options = f"{STRICT},acl" if version == "3" else f"vers={version},noac"
    with (
        parameters(optimistic_lifetime=3600),
        mounted_export(STRICT, folder=folder),
        mounted_export(f"{options},{ACROSS}", TCP, folder),
    ):
        with as_user():
            reader = Reader("acl")
        with reader:
            reader.granted()
            if version == "3":
                call("setfacl", "-m", f"u:{USER}:---", TCP / "acl")
            else:
                _deny_by_nfs4(TCP / "acl")
            assert not _may_read(path), "the ACL does not deny access"
            until("the end of access", lambda: reader.answer() == "EACCES")
            assert {reader.answer(n * BLOCK) for n in range(5)} == {"EACCES"}
