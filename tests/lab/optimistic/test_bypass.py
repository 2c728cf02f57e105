# SPDX-License-Identifier: Apache-2.0
"""READs that bypass nfsd, beside what nfsd would have checked: listeners and withdrawn access.

Threadless reads are on, and so is the personality optimistic where a test names it.
"""

import ctypes
import errno
import os
import re
import select
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from lab.optimistic.access import check_withdrawn_meanwhile
from lab.optimistic.exports import make_disks

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.labs import OURS, Record, cards_lab, choose, counts_listeners, serve
from testbed.mounts import set_to
from testbed.node.grants import (
    ACROSS,
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
    made,
    mounted_export,
    nothing_broke,
    seeded,
    shown,
)
from testbed.node.mounts import connections, parameters
from testbed.node.programs import call, until
from testbed.remote import on

PERSONALITIES = ("read-write", "optimistic")
# seconds of the guest after which no grant from before a listener may be left: the server looks for
# listeners each second, and grants expire after 60 otherwise
ENDED = 20


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; the server answers READs without a thread."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "bypass") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "client", "server_threadless", "65536")
        make_disks(lab)
        yield lab


# --- permission listeners ---

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
            raise error_of("fanotify_init")
        where, flags, more = PLACES[place]
        for path in {where(file) for file in files}:
            word = ctypes.c_uint64(mask | more)
            if LIBC.fanotify_mark(self.group, MARK_ADD | flags, word, AT_FDCWD, bytes(path)):
                raise error_of("fanotify_mark")
        self._end = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Listener":
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
            offset = offset_in(events[at + header : at + length])
            denied = self.denies(sum(self.decided.values()), offset)
            self.decided[os.fstat(fd).st_ino, denied] += 1
            os.write(self.group, struct.pack("=iI", fd, DENY if denied else ALLOW))
            os.close(fd)
            at += length

    def count(self, file: Path) -> tuple[int, int]:
        """How many READs of a file were allowed, and denied."""
        number = file.stat().st_ino
        return self.decided[number, False], self.decided[number, True]


def error_of(call_name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call_name}: {os.strerror(number)}")


def offset_in(records: bytes) -> int:
    at = 0
    while at < len(records):
        kind, _, length = HEADER.unpack_from(records, at)
        if kind == INFO_RANGE:
            return int(RANGE.unpack_from(records, at + HEADER.size)[1])
        at += length
    return 0


def passes(reader: Reader) -> bool:
    """Whether a READ, which may fail, is answered without nfsd."""
    before = answered_without_nfsd()
    reader.answer()
    return answered_without_nfsd() > before


def wait_until_none_passes(reader: Reader) -> tuple[int, float]:
    """READs until none has passed nfsd by for a while: how many did, and when the last one."""
    began = last = time.monotonic()
    count = 0
    while (now := time.monotonic()) - last < QUIET and now - began < 30:
        if passes(reader):
            count, last = count + 1, time.monotonic()
    return count, last - began


def each_second(number: int, offset: int) -> bool:
    return bool(number % 2)


def second_half(number: int, offset: int) -> bool:
    return offset >= MIB // 2


@on("client", timeout=900)
def check_listeners(personality: str, places: tuple[str, ...], *, pre: bool = False) -> None:
    """READs of a file whose grants and permits precede a listener, and of one that it precedes.

    The listener denies each second READ, or with ``pre`` the second half of the file
    (FAN_PRE_ACCESS).
    """
    earlier, later = DISK / "listened/earlier", DISK / "listened/later"
    call("rm", "-rf", earlier.parent)
    earlier.parent.mkdir()
    earlier.parent.chmod(0o755)
    made(earlier, 41, MIB)
    data = made(later, 42, MIB)
    with mounted_export(STRICT, folder=DISK):
        for place in places:
            with Reader("listened/earlier") as reader:
                reader.granted()
                denies = second_half if pre else each_second
                with Listener(place, [earlier, later], denies, pre=pre) as listener:
                    count, seconds = wait_until_none_passes(reader)
                    # no READ without a thread; of grants, those that end at once
                    assert personality == "optimistic" or count == 0, place
                    assert seconds < ENDED, place
                    check_beside(listener, later, data, pre=pre)
            # nfsd has it open as it was without a listener, or with the last one
            call("exportfs", "-f")
            with Reader("listened/later") as reader:
                reader.granted()
                assert reader.read() == data[:BLOCK], place
        nothing_broke()
        assert {state["personality"] for state in connections()} == {personality}
    call("rm", "-r", earlier.parent)


def check_beside(listener: Listener, path: Path, data: bytes, *, pre: bool) -> None:
    """READs beside a listener: what it decided is what the reader got, and none passed nfsd by."""
    results, reads = Counter[str](), 60
    # nfsd opens the file anew, and asks
    call("exportfs", "-f")
    before, passed = listener.count(path), answered_without_nfsd()
    with Reader(f"listened/{path.name}") as reader:
        for number in range(reads):
            half = number % 2 * (MIB // 2) if pre else 0
            offset = half + number // 2 * BLOCK % (MIB // 4)
            answer = reader.answer(offset)
            right = answer == shown(data[offset : offset + BLOCK])
            results[f"data of half {half // (MIB // 2)}" if right else answer] += 1
            # some of them longer apart than nfsd's answer takes, all together several seconds
            time.sleep(0.04)
    assert answered_without_nfsd() == passed
    allowed, denied = (now - then for now, then in zip(listener.count(path), before, strict=True))
    assert results["EPERM"] == denied > 0
    assert allowed + denied == reads
    assert sum(results.values()) == reads
    assert not pre or results == {"data of half 0": reads // 2, "EPERM": reads // 2}


def has_listeners(lab: Lab) -> None:
    if lab.config.kernel in CHECKING:
        pytest.skip(f"kernel {lab.config.kernel} has no fanotify; missed: permission listeners")


@pytest.mark.parametrize(
    ("personality", "places"),
    [
        ("read-write", ("mount",)),
        ("optimistic", ("parent",)),
        *(
            pytest.param(name, tuple(PLACES), marks=pytest.mark.nightly, id=f"{name}-all")
            for name in PERSONALITIES
        ),
    ],
)
def test_no_read_passes_a_listener_by(
    cards: Lab, personality: str, places: tuple[str, ...]
) -> None:
    """The listener denies each second READ (FAN_ACCESS_PERM)."""
    has_listeners(cards)
    choose(cards, personality)
    check_listeners(cards, personality, places)


@on("client")
def has_pre_access() -> bool:
    """Whether the kernel has FAN_PRE_ACCESS for files of the disk."""
    file = DISK / "pre"
    made(file, 1, BLOCK)
    try:
        with Listener("file", [file], second_half, pre=True):
            return True
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        file.unlink()


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_no_read_passes_a_listener_for_ranges_by(cards: Lab, personality: str) -> None:
    """The listener denies offsets in the second half of a file (FAN_PRE_ACCESS)."""
    has_listeners(cards)
    if not has_pre_access(cards):
        pytest.skip(f"kernel {cards.config.kernel} has no FAN_PRE_ACCESS; missed: ranges")
    choose(cards, personality)
    check_listeners(cards, personality, ("file system",), pre=True)


# --- access that is withdrawn ---


@pytest.mark.parametrize(("before", "after"), [(0, 10), (-10, 0), (-10, 20)])
def test_a_step_of_the_clock_hides_no_withdrawn_access(cards: Lab, before: int, after: int) -> None:
    """The clock steps before or after access ends, while nfsd waits for a disk."""
    choose(cards, "optimistic")
    check_withdrawn_meanwhile(cards, before, after)


def acl_of(permission: int) -> bytes:
    """The attribute system.posix_acl_access of a file that USER may read or not."""
    entries = ((1, 6, -1), (2, permission, USER), (4, 4, -1), (16, 4, -1), (32, 4, -1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


@contextmanager
def delayed(module: str) -> Iterator[dict[str, int]]:
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


def is_denied(reader: Reader) -> bool:
    return reader.answer() == "EACCES"


class Withdrawals:
    """Rounds in which access to each file ends while it is read."""

    def __init__(self, data: dict[str, str], *, at_once: bool) -> None:
        self.data, self.chance = data, seeded(71)
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
                reader.answer()
                self.length += (time.monotonic() - began - self.length) / 8
            self._end(name, reader)
            if self.at_once:
                self._read_later(name, reader)
        if not self.at_once:
            for name, reader in readers.items():
                began = time.monotonic()
                until(f"the end of access to {name}", partial(is_denied, reader))
                self.slowest = max(self.slowest, time.monotonic() - began)
                self._read_later(name, reader)

    def allow(self, name: str) -> None:
        self._set(name, 4)

    def _set(self, name: str, permission: int) -> None:
        path = TCP / "withdrawn" / name
        os.setxattr(path, "system.posix_acl_access", acl_of(permission))

    def _end(self, name: str, reader: Reader) -> None:
        answers: list[str] = []
        beside = threading.Thread(target=lambda: answers.append(reader.answer()))
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
        self._count(self.raced, name, answers[0])

    def _read_later(self, name: str, reader: Reader) -> None:
        for _ in range(3):
            self._count(self.later, name, reader.answer())

    def _count(self, counts: Counter[str], name: str, answer: str) -> None:
        counts["data" if answer == self.data[name] else answer] += 1


class Withdrawn(NamedTuple):
    """Answers to READs beside the end of access, and what the worker or a READ took in seconds."""

    raced: dict[str, int]
    slowest: float
    length: float


@on("client", timeout=900)
def check_withdrawals(module: str, seconds: float, files: int, *, at_once: bool) -> Withdrawn:
    """End a user's access to files at any moment of a READ: READs that begin later fail.

    They do ``at_once``, or after the server's worker, which compares ctime each second.
    """
    folder, names = DISK / "withdrawn", [str(number) for number in range(files)]
    call("rm", "-rf", folder)
    folder.mkdir()
    folder.chmod(0o755)
    data = {name: shown(made(folder / name, 70 + int(name), BLOCK)) for name in names}
    os.sync()
    rounds = Withdrawals(data, at_once=at_once)
    with (
        # a grant that outlives the check of the worker is found
        parameters(optimistic_lifetime=3600),
        mounted_export(STRICT, folder=DISK),
        mounted_export(f"{STRICT},acl,{ACROSS}", TCP, DISK),
        delayed(module) as counts,
        ExitStack() as stack,
    ):
        with as_user():
            readers = {n: stack.enter_context(Reader(f"withdrawn/{n}")) for n in names}
        began = time.monotonic()
        while time.monotonic() < began + seconds or rounds.tries < 2 * len(names):
            rounds.round(readers)
        # a READ of these files may bypass nfsd
        rounds.allow(names[0])
        readers[names[0]].granted()
    call("rm", "-r", folder)
    assert counts["functions"] > 5
    assert counts["delays"] > rounds.tries >= files
    # some READs came too late, and some in time
    assert rounds.raced.keys() == {"data", "EACCES"}
    assert rounds.later.keys() == {"EACCES"}
    return Withdrawn(dict(rounds.raced), rounds.slowest, rounds.length)


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="no module is built: root mounts the image")
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_no_read_succeeds_when_access_has_ended(
    cards: Lab, long: bool, personality: str, record_property: Record
) -> None:
    """An ACL of another NFS client ends it, which fsnotify does not report.

    Each threadless read compares ctime. Of READs by reference, a worker of the server compares it
    each second. A module of the tests (``delays``) delays nfsd between its steps, where access may
    end.
    """
    choose(cards, personality)
    module = "/run/nfsrdma_delays.ko"
    kernel_modules.place(cards, Path(__file__).parents[1] / "delays", module, "client")
    at_once = personality != "optimistic"
    result = check_withdrawals(cards, module, 120 if long else 8, 40, at_once=at_once)
    record_property("withdrawals", result)
