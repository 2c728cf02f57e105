# SPDX-License-Identifier: Apache-2.0
"""Optimistic reads: data, changes that revoke, limits, the ends of things, and staleness."""

import ctypes
import errno
import mmap
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from lab.optimistic.access import (
    WITHDRAWALS,
    check_acl_by_nfs,
    check_changes,
    check_credentials,
    check_opened_for_writing,
    check_withdrawn,
    check_withdrawn_meanwhile,
    read_all_kinds,
)
from lab.optimistic.exports import export, make_disks, make_image, unexport, unmount
from lab.optimistic.faults import (
    break_pairs,
    check_restarts,
    check_unmounts,
    more_optimistic_reads,
    queue_pairs,
    steady,
    unload,
)
from lab.optimistic.graph import graph
from lab.optimistic.killed import check_killed_listings, check_killed_readers, check_storm
from lab.optimistic.staleness import FAULTS, SEED, USERS, Round, campaign, misreads_holes, stale
from lab.optimistic.unsuitable import Counts, read_nameless, read_poisoned, read_unsuitable

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.client.session import File
from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import damageable, finished, serving
from testbed.kernel_events import recorded
from testbed.labs import OURS, Record, cards_lab, choose, counts_listeners, serve
from testbed.mounts import mounted, nothing_lost
from testbed.node import mounts
from testbed.node.grants import (
    BLOCK,
    CARDS,
    DISK,
    EXPORT,
    HUGE,
    LIBC,
    MIB,
    THERE,
    USER,
    Crowd,
    Reader,
    Waits,
    answer_of,
    answered_without_nfsd,
    as_user,
    connect_second,
    disconnects,
    granted,
    made,
    mounted_export,
    nothing_broke,
    nothing_in_use,
    repeated,
    rpc_reads,
    seeded,
    shown,
    waits_of,
)
from testbed.node.memory import meminfo
from testbed.node.mounts import CLIENTS, HERE, connections, counters, parameters
from testbed.node.programs import call, until
from testbed.peers import optimistic_client, optimistic_server
from testbed.programs import bring_xfs
from testbed.remote import on

# NFR_REFERENCES of kmod/client/optimistic/reference.c
REFERENCES = 8192


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards and their provider; both ends are optimistic."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "optimistic") as lab:
        prepare(lab)
        make_disks(lab)
        yield lab


def prepare(lab: Lab) -> None:
    serve(lab, "server", OURS)
    choose(lab, "optimistic")


def served() -> dict[str, int]:
    return counters(mounts.SERVER)


# --- data ---


@pytest.mark.parametrize("folder", [EXPORT, DISK], ids=str)
def test_data_of_every_size_and_offset_is_right(cards: Lab, folder: Path) -> None:
    with nothing_lost(cards, "client"):
        reads = read_all_kinds(cards, "vers=3,noac,rsize=65536", folder, "optimistic")
    # the rest are first reads of extents, reads that cross them, and reads of the end of the file
    assert reads.direct["optimistic_reads"] > 100
    assert reads.direct["optimistic_bytes"] > 5 * MIB
    assert reads.all["optimistic_reads"] > reads.direct["optimistic_reads"]


@on("client", timeout=900)
def first_pass() -> int:
    """Read each block of a file once, in random order: the READs that nfsd executed."""
    data = made(EXPORT / "pass", 3)
    blocks = list(range(len(data) // BLOCK))
    seeded(4).shuffle(blocks)
    # on a slow machine, READs that renew references would count, too
    with parameters(optimistic_lifetime=3600), mounted_export():
        connect_second()
        with Reader("pass") as reader:
            rpcs, before = rpc_reads(), counters()["optimistic_reads"]
            for number in blocks:
                assert reader.read(number * BLOCK) == data[number * BLOCK :][:BLOCK]
            rpcs = rpc_reads() - rpcs
            assert rpcs + counters()["optimistic_reads"] - before == len(blocks)
    (EXPORT / "pass").unlink()
    return rpcs


def test_a_first_pass_needs_an_rpc_for_each_extent(cards: Lab, record_property: Record) -> None:
    rpcs: list[int] = []
    # a READ that is on its way before the grant arrives goes by RPC, too: many do if a busy host
    # stops the processor that handles the grant, so that one of five passes decides
    while len(rpcs) < 5 and min(rpcs, default=9) > 8:
        rpcs.append(first_pass(cards))
    record_property("RPCs of each first pass", rpcs)
    assert 4 <= min(rpcs) <= 8, rpcs


def test_version_4_makes_no_optimistic_read(cards: Lab) -> None:
    reads = read_all_kinds(cards, "vers=4.2,noac", EXPORT, "optimistic")
    assert reads.all["optimistic_reads"] == 0


@on("client", timeout=900)
def check_second_mount() -> None:
    """Read from a mount for whose first READ the transport already has a grant.

    The mount shares the transport of another one, but not what the NFS client has learned.
    """
    data, rest = made(EXPORT / "first", 7, MIB), made(EXPORT / "rest", 8)
    options = "vers=3,rsize=524288,nosharecache"
    with mounted_export(options), Reader("first") as reader:
        reader.granted()
        with mounted_export(options, at=THERE), Reader("first", THERE) as other:
            assert len(connections()) == 1, "the mounts have no transport in common"
            assert (other.is_optimistic(), other.is_optimistic()) == (False, True)
            assert other.read(BLOCK) == data[BLOCK : 2 * BLOCK]
            assert answer_of((THERE / "rest").read_bytes) == shown(rest)


def test_the_first_read_of_a_mount_goes_by_rpc(cards: Lab) -> None:
    """The NFS client learns from it how long the header of a READ's reply is."""
    check_second_mount(cards)


# --- changes ---


@pytest.mark.parametrize(("folder", "view"), [(EXPORT, "tcp"), (DISK, "server")], ids=str)
def test_each_change_revokes_before_it_returns(cards: Lab, folder: Path, view: str) -> None:
    check_changes(cards, folder, view)


def test_a_grant_belongs_to_the_credentials_of_a_reader(cards: Lab, long: bool) -> None:
    check_credentials(cards, 60 if long else 5, 1 / 2)


@on("client", timeout=900)
def check_shared() -> None:
    """Users read one extent, each with a reference of its own."""
    data, users = made(EXPORT / "shared", 26), (0, USER, USER + 1)
    with mounted_export(), ExitStack() as stack:
        connect_second()
        grants, readers = served()["grants"], []
        for user in users:
            with as_user(user):
                readers.append(stack.enter_context(Reader("shared")))
        before, places = answered_without_nfsd(), range(0, len(data), 16 * BLOCK)
        for at in places:
            for reader in readers:
                assert reader.read(at) == data[at : at + BLOCK]
        # the first READ of each user goes by RPC, and has the extent announced to the user
        assert answered_without_nfsd() - before > 0.8 * len(readers) * len(places)
        assert served()["grants"] - grants == 4


def test_each_user_of_an_extent_has_a_reference(cards: Lab) -> None:
    check_shared(cards)


@on("client", timeout=900)
def fill_table(references: int, users: int) -> None:
    """Users fill the client's table of references with small files; then another user reads."""
    folder = EXPORT / "table"
    folder.mkdir()
    data = {f"table/{n}": made(folder / str(n), n, BLOCK) for n in range(references // users + 16)}

    def read_by(user: int, names: list[str]) -> None:
        for name in names:
            with as_user(user), Reader(name) as reader:
                assert reader.read() == data[name]

    # few RPCs besides the READs
    with mounted_export("vers=3,nocto,actimeo=3600"):
        connect_second()
        for user in range(users):
            read_by(USER + user, [*data])
        assert int(connections()[0]["references"]) == references
        another, some = USER + users, [*data][:64]
        read_by(another, some)
        before = answered_without_nfsd()
        read_by(another, some)
        assert answered_without_nfsd() - before > 0.8 * len(some)
        assert int(connections()[0]["references"]) == references
    call("rm", "-r", folder)


@pytest.mark.nightly
def test_users_who_fill_the_table_of_references_leave_room_for_another(cards: Lab) -> None:
    """A user with fewer references than another takes the place of the other's oldest one."""
    fill_table(cards, REFERENCES, 16)


@pytest.mark.parametrize("how", WITHDRAWALS)
def test_another_export_ends_access_in_time(cards: Lab, how: str) -> None:
    check_withdrawn(cards, how, 2)


def test_access_that_is_withdrawn_while_nfsd_reads(cards: Lab) -> None:
    assert check_withdrawn_meanwhile(cards) > 0


def test_nothing_is_granted_while_the_file_is_open_for_writing(cards: Lab) -> None:
    check_opened_for_writing(cards)


@contextmanager
def unreported(path: Path) -> Iterator[int]:
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
def two_readers(name: str) -> Iterator[tuple[Reader, Reader]]:
    """A reader with a grant, and one with other credentials, whose READ goes by RPC."""
    with mounted_export(folder=DISK), Reader(name) as first:
        with as_user():
            second = Reader(name)
        with second:
            first.granted()
            yield first, second


@on("client", timeout=900)
def check_unreported() -> None:
    """A writer that fsnotify does not report: READs by RPC find its changes."""
    new, path, punched = bytes(range(256)) * 16, DISK / "unreported", DISK / "punched"
    data = made(path, 24, MIB)
    made(punched, 25, MIB)
    with two_readers("unreported") as (first, second), unreported(path) as fd:
        os.pwrite(fd, new, 0)
        assert granted() > 0, "fsnotify reported the writer"
        # the pages are the file's own
        assert first.is_optimistic()
        assert first.read() == new
        assert second.read(BLOCK) == data[BLOCK : 2 * BLOCK]
        # another thread may have the mutex of the grants
        until("no grant", lambda: second.read(BLOCK) and not granted())
    with two_readers("punched") as (first, second):
        with unreported(punched) as fd:
            # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            offset, length = ctypes.c_int64(0), ctypes.c_int64(BLOCK)
            assert not LIBC.fallocate(fd, 3, offset, length), os.strerror(ctypes.get_errno())
        assert granted() > 0, "fsnotify reported the hole"
        assert second.read() == bytes(BLOCK)
        # the server checks no READ that began within two ticks of a change
        until("the hole", lambda: second.read() == first.read() == bytes(BLOCK))


def test_a_writer_that_is_not_reported_is_found_by_an_rpc(cards: Lab) -> None:
    if cards.config.kernel in CHECKING:
        pytest.skip(f"kernel {cards.config.kernel} has no fanotify; missed: unreported writers")
    check_unreported(cards)


@on("client", timeout=900)
def check_slow_invalidation(stuck: int) -> None:
    """The server's card completes invalidations too late: the change does not wait for them.

    The card refuses to end the access of the client a given number of times.
    """
    path, refusals = EXPORT / "slow", CARDS / "card1" / "stuck"
    data, delay = made(path, 25, MIB), CARDS / "card1" / "completion_delay"
    with mounted_export(), Reader("slow") as reader:
        reader.granted()
        before = counters()["optimistic_connects"]
        # 3 s, in nanoseconds
        delay.write_text("3000000000")
        refusals.write_text(str(stuck))
        try:
            os.truncate(path, BLOCK)
        finally:
            delay.write_text("0")
            left = int(refusals.read_text())
            refusals.write_text("0")
        assert left == 0
        assert (reader.read(), reader.read(BLOCK)) == (data[:BLOCK], b"")
        reader.granted()
        assert counters()["optimistic_connects"] > before, "the invalidation was fast"
        nothing_broke()


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_change_does_not_wait_for_a_slow_card(cards: Lab, stuck: int) -> None:
    """The server fences the connection whose invalidation takes more than 100 ms.

    If the card refuses the fence, the server destroys the registrations.
    """
    refusals = "dmesg | grep -c 'refused the error state' || true"
    before = int(cards.run("client", "sh", "-c", refusals).stdout)
    check_slow_invalidation(cards, stuck)
    assert int(cards.run("client", "sh", "-c", refusals).stdout) - before == stuck


@pytest.mark.parametrize("version", ["3", "4.2"])
@pytest.mark.parametrize("folder", [EXPORT, DISK], ids=str)
def test_an_acl_set_over_nfs_ends_access(cards: Lab, folder: Path, version: str) -> None:
    """fsnotify does not report it: READs by RPC and a worker compare ctime."""
    check_acl_by_nfs(cards, folder, version)


# --- what is not granted ---


@pytest.mark.parametrize(
    "name",
    [
        "file system of another server",
        "file system in user space",
        "lower layer of an overlay",
        "upper layer of an overlay",
        "file of an overlay by itself",
        "file of tmpfs by itself",
        "file of ext4 by itself",
        "swap file",
    ],
)
def test_what_does_not_suit_is_not_granted(cards: Lab, name: str) -> None:
    """Data is right, and each READ finds that the file does not suit."""
    result = read_unsuitable(cards, name)
    assert (result.grants, result.optimistic) == (0, 0)
    assert result.refused == {"file": result.reads}


def test_a_file_system_that_passes_reads_on_is_not_granted(cards: Lab) -> None:
    """The file id of a handle has to be that of the inode whose pages are in the reply."""
    if cards.config.kernel == "6.1":
        pytest.skip("FUSE of 6.1 passes nothing through; missed: handles of another inode")
    if cards.config.kernel in CHECKING:
        pytest.skip(f"{cards.config.kernel} has no XFS; missed: handles of another inode")
    bring_xfs(cards, "client")
    suits = read_unsuitable(cards, "file of XFS")
    assert suits.grants > 0
    assert suits.optimistic > suits.reads / 2
    result = read_unsuitable(cards, "file of XFS through user space")
    assert (result.grants, result.optimistic) == (0, 0)
    assert result.refused == {"file": result.reads}


@pytest.mark.parametrize("folder", [EXPORT, DISK], ids=str)
def test_a_file_without_a_name_is_not_granted(cards: Lab, folder: Path) -> None:
    """A process has it open. nfsd may find it by its handle, or not."""
    result = read_nameless(cards, folder)
    assert result.grants == 0
    assert result.refused.get("file", 0) == result.reads


@pytest.mark.parametrize("folder", [EXPORT, HUGE], ids=str)
def test_a_poisoned_page_is_not_granted(cards: Lab, folder: Path) -> None:
    if not read_poisoned(cards, folder):
        pytest.skip(f"kernel {cards.config.kernel} poisons no page; missed: poison in {folder}")


MEMORY = Path("/sys/devices/system/memory")


@contextmanager
def movable_memory() -> Iterator[range]:
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


def frames_of(path: Path) -> list[int]:
    """The page frames of a file of tmpfs: Documentation/admin-guide/mm/pagemap.rst."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        pages = len(room) // BLOCK
        assert sum(room[n * BLOCK] for n in range(pages)) > 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        with Path("/proc/self/pagemap").open("rb") as pagemap:
            pagemap.seek(address // BLOCK * 8)
            entries = struct.unpack(f"={pages}Q", pagemap.read(8 * pages))
    return [entry & (1 << 55) - 1 for entry in entries]


@on("client", timeout=900)
def check_movable() -> None:
    """Read a file whose pages are in the movable zone, where none may stay for long."""
    path, size = EXPORT / "movable", 32 * BLOCK
    with mounted_export():
        connect_second()
        with movable_memory() as frames:
            data = made(path, 40, size)
            assert all(frame in frames for frame in frames_of(path))
            with Reader("movable") as reader:
                counts = Counts()

                def read_all() -> bool:
                    assert reader.read(0, size) == data
                    return counts.refused().get("pages", 0) > 20

                until("READs that are granted nothing", read_all)
                result = counts.of(0)
            assert (result.grants, result.optimistic) == (0, 0)
            path.unlink()
        made(path, 40, size)
        with Reader("movable") as reader:
            # in another zone, the same file is granted
            reader.granted()
    path.unlink()


def test_memory_that_has_to_stay_movable_is_not_granted(cards: Lab) -> None:
    check_movable(cards)


# --- how long, and how much ---


@on("client", timeout=900)
def check_expiry() -> None:
    """Nobody reads: the grants end after their lifetime, and reading goes on by new ones."""
    data = made(EXPORT / "expires", 8)
    with parameters(optimistic_lifetime=1), mounted_export(), Reader("expires") as reader:
        # a grant may expire before it is counted
        until("a grant", lambda: reader.is_optimistic() and granted())
        until("the end of the grants", lambda: not granted())
        assert reader.read(MIB) == data[MIB:][:BLOCK]
        reader.granted(BLOCK)
        assert served()["grants_revoked"] > 0


def test_grants_expire(cards: Lab) -> None:
    check_expiry(cards)


@on("client", timeout=900)
def check_renewal(seconds: float) -> None:
    """A file is read all the time: its grants are renewed."""
    data, reads = made(EXPORT / "renewed", 9, MIB), 0
    with parameters(optimistic_lifetime=2), mounted_export(), Reader("renewed") as reader:
        reader.granted()
        rpcs, before = rpc_reads(), answered_without_nfsd()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            at = reads * BLOCK % MIB
            assert reader.read(at) == data[at : at + BLOCK]
            reads += 1
        optimistic = answered_without_nfsd() - before
        assert optimistic + rpc_reads() - rpcs == reads
        assert optimistic > 0.9 * reads
        assert served()["grants_renewed"] >= 2


def test_readers_renew_grants(cards: Lab) -> None:
    check_renewal(cards, 6)


@on("client", timeout=900)
def most_granted(mib: int, transports: int = 1) -> int:
    """Read more than the server may grant: the largest number of pages seen."""
    data, most = made(EXPORT / "bounded", 10, 16 * MIB), [0]

    def watch() -> None:
        most[0] = max(most[0], granted())

    options = f"vers=3,noac,nconnect={transports}"
    with (
        parameters(optimistic_memory=mib),
        mounted_export(options),
        Reader("bounded") as reader,
    ):
        reader.granted()
        chance = seeded(11)
        with repeated(watch):
            for _ in range(600):
                at = chance.randrange(len(data) // BLOCK) * BLOCK
                assert reader.read(at) == data[at : at + BLOCK]
        assert len(connections()) == transports
        assert served()["grants_revoked"] > 0
        assert counters()["optimistic_reads"] > 0
    return most[0]


@pytest.mark.parametrize("mib", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_grants_are_bounded(cards: Lab, mib: int) -> None:
    assert 0 < most_granted(cards, mib) <= mib * MIB // BLOCK


@on("client", timeout=900)
def read_small_files(mib: int, count: int) -> None:
    """Read files of one page: the number of grants that the server has, and what they count for."""
    names = [f"small{number}" for number in range(count)]
    data = {name: made(EXPORT / name, 14, BLOCK) for name in names}

    def at_once() -> tuple[int, int] | None:
        """The server's grants and pages; None if a revocation is complete between two readings."""
        before, counts, pages = granted(), served(), granted()
        grants = counts["grants"] - counts["grants_revoked"]
        return (grants, pages) if before == pages else None

    with parameters(optimistic_memory=mib), mounted_export():
        made(EXPORT / "first", 15, BLOCK)
        with Reader("first") as reader:
            # the second connection is there
            reader.granted()
        for name, content in data.items():
            with Reader(name) as reader:
                assert reader.read() == content
        grants, pages = until("counts of one moment", at_once)
    for name in names:
        (EXPORT / name).unlink()
    # a client's quarter, in which a grant of a whole extent has to fit
    assert 10 < grants <= pages / 4 <= 2 * MIB // BLOCK / 4


def test_the_number_of_grants_is_bounded(cards: Lab) -> None:
    """A grant of one page counts for four: its memory region takes memory, too."""
    read_small_files(cards, 8, 150)


def test_the_connections_of_a_client_share_its_quarter(cards: Lab) -> None:
    assert 0 < most_granted(cards, 16, 4) <= 16 * MIB // BLOCK // 4


def has_fewer(pages: int) -> bool:
    return granted() < pages


@on("client", timeout=900)
def check_pressure() -> None:
    """Drop caches while a file is read; a shrinker returns the pages of all grants."""
    data = made(EXPORT / "pressure", 12)
    with mounted_export(), Reader("pressure") as reader:
        for kind in "123":
            reader.granted()
            pages = granted()
            Path("/proc/sys/vm/drop_caches").write_text(kind)
            # the pages return when the invalidations are complete
            until("memory", partial(has_fewer, pages))
            assert reader.read(0, 2 * MIB) == data[: 2 * MIB]
        reader.granted()


@pytest.mark.nightly
def test_dropped_caches_do_no_harm(cards: Lab) -> None:
    check_pressure(cards)


@on("client", timeout=900)
def check_hog() -> None:
    """A process takes nearly all memory: the server's grants shrink, and data is right."""
    data, chance = made(EXPORT / "hog", 13, 48 * MIB), seeded(13)
    with parameters(optimistic_memory=256), mounted_export(), Reader("hog") as reader:
        reader.granted()
        for at in range(0, len(data), MIB):
            until("a grant", partial(reader.is_optimistic, at))
        before = granted()
        # more than there is: reclaim goes through all shrinkers before the OOM killer comes, which
        # kills a worker of stress-ng; another one takes its place
        size = meminfo("MemAvailable") + 200 * MIB
        argv = ["stress-ng", "--vm", "1", "--vm-bytes", str(size), "--vm-keep", "--vm-populate"]

        def shrinks() -> bool:
            at = chance.randrange(len(data) // BLOCK) * BLOCK
            assert reader.read(at) == data[at : at + BLOCK]
            return granted() < before

        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                until("fewer grants", shrinks, pause=0)
            finally:
                process.terminate()
    (EXPORT / "hog").unlink()


@pytest.mark.nightly
def test_grants_shrink_when_memory_is_short(cards: Lab) -> None:
    check_hog(cards)


@pytest.fixture(scope="module")
def counted(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """The same on the instruction clock, where times do not depend on the host."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "waits", clock="instructions") as lab:
        prepare(lab)
        yield lab


# of guest time, in milliseconds: a tenth of a second for invalidations, and a fence
WAIT_MAX = 250


@on("client", timeout=1800)
def measure_waits(kind: str, files: int, opens: int) -> Waits:
    return waits_of(kind, files, opens)


def test_changes_wait_for_a_tenth_of_a_second_at_most(
    counted: Lab, record_property: Record
) -> None:
    """Whatever a client does, and however many grants it has."""
    for kind in ("answers 90 ms late", "answers 90 ms late, while all its grants expire"):
        waits = measure_waits(counted, kind, 120, 30)
        record_property(kind, waits)
        assert waits.grants > 100, kind
        assert max(waits.opens) < WAIT_MAX, f"{kind}: {waits}"
        # a second of such waits costs it all grants
        assert waits.left == 0, f"{kind}: {waits}"
        assert sum(waits.opens) < 2000, f"{kind}: {waits}"


# files per second, and instructions per second that are one per cent of the processor of the
# instruction clock
RATE, ONE_PERCENT = 10_000, 10**7
# the check of each watched file, and the end of watches
WORKERS = ("nfr_svc_watches_check", "nfr_svc_watches_end")
# of the graph tracer: the time of a worker alone, or its end if it called another function
WORKER_TIME = re.compile(rf"([\d.]+) us +\| +({'|'.join(WORKERS)}|}})")


class Work(NamedTuple):
    """Files that were read in some seconds, the runs of the worker, and a function's calls."""

    files: int
    seconds: float
    runs: int
    instructions: float
    calls: int


class Worked(NamedTuple):
    """The cost of the worker on the instruction clock, where a nanosecond is an instruction.

    ``loads`` are without other traced functions; ``called`` is the same load with the functions
    that the worker calls for each file, whose tracing takes instructions, too.
    """

    grants: int
    loads: dict[str, Work]
    called: dict[str, Work]


class Pace:
    """Open and read files of a folder in random order, RATE per second or as many as can be."""

    def __init__(self, folder: Path, names: list[str], flags: int) -> None:
        self.folder, self.names, self.flags = folder, names, flags
        self.chance, self.room = seeded(47), mmap.mmap(-1, BLOCK)
        self.next = time.monotonic()

    def __call__(self) -> int:
        for name in self.chance.sample(self.names, 100):
            file = os.open(self.folder / name, self.flags)
            os.preadv(file, [self.room], 0)
            os.close(file)
        self.next = max(self.next + 100 / RATE, time.monotonic() - 0.1)
        time.sleep(max(0, self.next - time.monotonic()))
        return 100


def rest() -> int:
    time.sleep(0.1)
    return 0


def work_beside(load: Callable[[], int], seconds: float, *called: str) -> Work:
    files = 0
    with graph(WORKERS, *called) as lines:
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            files += load()
        taken = time.monotonic() - began
    times = [float(match[1]) for line in lines if (match := WORKER_TIME.search(line))]
    calls = sum(f"{name} [" in line or f"{name}()" in line for line in lines for name in called)
    return Work(files, taken, len(times), 1000 * sum(times), calls)


@on("client", timeout=7200)
def measure_worker(files: int, seconds: float) -> Worked:
    crowd = Crowd(files)
    client = Pace(HERE / "crowd", crowd.names, os.O_RDONLY | os.O_DIRECT)
    server = Pace(crowd.folder, crowd.names, os.O_RDONLY)
    options, loads, called = "vers=3,nocto,actimeo=3600", dict[str, Work](), dict[str, Work]()
    with parameters(optimistic_lifetime=3600, optimistic_memory=1024), mounted_export(options):
        connect_second()
        grants = crowd.granted()
        loads["idle"] = work_beside(rest, seconds)
        loads["clients read"] = work_beside(client, seconds)
        loads["the server reads"] = work_beside(server, seconds)
        called["clients read"] = work_beside(client, seconds, "nfr_svc_revoke_check")
    # most READs find no room for a grant, and leave a watch without one
    with parameters(optimistic_lifetime=3600, optimistic_memory=4), mounted_export(options):
        connect_second()
        loads["no room"] = work_beside(client, seconds)
        called["no room"] = work_beside(client, seconds, "fsnotify_destroy_mark")
    nothing_in_use()
    return Worked(grants, loads, called)


@pytest.mark.nightly
def test_the_worker_takes_less_than_one_per_cent(counted: Lab, record_property: Record) -> None:
    """It checks each watched file once a second, and ends watches that are left without grants.

    On the instruction clock, the lab may read fewer files per second than RATE: then the cost is
    taken to grow with the rate. That is too much for the checks, which do not depend on it.
    """
    worked, share = measure_worker(counted, 10_000, 5), {}
    for name, load in worked.loads.items():
        assert load.runs >= 3, f"{name}: {worked}"
        rate = load.files / load.seconds
        scale = max(1, RATE / rate) if rate else 1
        share[name] = scale * load.instructions / load.seconds
    reads, traced = worked.loads["clients read"], worked.called["clients read"]
    check = reads.instructions / reads.runs / worked.grants
    record_property("worker", worked)
    record_property("instructions per second at 10,000 files per second", share)
    record_property("instructions per watched file", check)
    record_property("instructions per traced call", traced.instructions / traced.calls - check)
    assert max(share.values()) < ONE_PERCENT, f"{share}: {worked}"
    assert traced.calls >= worked.grants == 10_000
    assert worked.called["no room"].calls > 0


# --- the ends of things ---


def test_an_exported_file_system_unmounts(cards: Lab) -> None:
    check_unmounts(cards)


def is_free(device: str) -> bool:
    """Check that no file system has a device: only one may open it like this."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


@on("client", timeout=3600)
def race_unmounts(rounds: int, seed: str) -> dict[str, int]:
    """Unmount a file system under reads, at any moment of the interval of the server's worker.

    Watches of some of its files have lost their grants before, and the worker ends them. When
    umount() returns, the file system is down and has no grants.  Returns the results of reads.
    """
    folder, image, chance = Path("/srv/races"), Path("/srv/races.img"), seeded(seed)
    make_image(image, 64)
    device = call("losetup", "--find", "--show", image).strip()
    folder.mkdir(exist_ok=True)
    call("mount", device, folder)
    files = {f"race{n}": made(folder / f"race{n}", n, 4 * BLOCK) for n in range(64)}
    export(folder, 80)
    grants, results, names = 0, Counter[str](), list(files)

    def visit() -> None:
        name, at = chance.choice(names), chance.randrange(4) * BLOCK

        def read() -> bytes:
            with Reader(name) as reader:
                return reader.read(at)

        answer = answer_of(read)
        is_right = answer == shown(files[name][at : at + BLOCK])
        results["right" if is_right else answer] += 1
        time.sleep(0 if is_right else 0.01)

    def more_visits() -> None:
        before = results["right"]
        until("reads", lambda: results["right"] > before)

    try:
        with parameters(optimistic_lifetime=1), mounted_export(folder=folder):
            with ExitStack() as visitors:
                for _ in range(3):
                    visitors.enter_context(repeated(visit))
                for _ in range(rounds):
                    more_visits()
                    more_optimistic_reads()
                    # the interval of the worker, and half a second that a watch stays
                    time.sleep(chance.uniform(0, 1.5))
                    for name in chance.sample(names, 32):
                        (folder / name).open("r+b").close()
                    time.sleep(chance.choice((0, chance.uniform(0, 1))))
                    grants += granted() > 0
                    unexport(folder)
                    unmount(folder)
                    assert is_free(device), f"seed {seed}"
                    assert granted() == 0, f"seed {seed}"
                    call("mount", device, folder)
                    export(folder, 80)
                more_visits()
            assert grants > 0 < answered_without_nfsd()
    finally:
        unexport(folder)
        unmount(folder)
        call("losetup", "--detach", device)
        image.unlink()
    assert results.keys() <= {"right", "ESTALE"}, f"seed {seed}"
    assert results["right"] > rounds, f"seed {seed}"
    return dict(results)


@pytest.mark.nightly
def test_an_unmount_returns_when_the_file_system_is_down(
    cards: Lab, long: bool, record_property: Record
) -> None:
    """At any moment of the interval in which the worker checks and ends watches."""
    record_property("reads", race_unmounts(cards, 100 if long else 4, SEED))


# --- a second connection that does not come about ---


def attempts(lines: list[str]) -> list[str]:
    """The results of the attempts to make a second connection, by its trace event."""
    return [line.split("reason=")[1] for line in lines if "nfsrdma_lane:" in line]


@contextmanager
def silence() -> Iterator[None]:
    """Nobody answers the question for the link address of the server."""
    server = socket.gethostbyname("server")
    call("ip", "link", "set", "v1", "arp", "off")
    call("ip", "neigh", "del", server, "dev", "v0")
    try:
        yield
    finally:
        link = Path("/sys/class/net/v1/address").read_text().strip()
        call("ip", "link", "set", "v1", "arp", "on")
        call("ip", "neigh", "replace", server, "lladdr", link, "dev", "v0", "nud", "permanent")


@contextmanager
def no_route() -> Iterator[None]:
    """No packet is sent to the server: see lab-node for the table."""
    server = socket.gethostbyname("server")
    route = call("ip", "route", "show", server, "table", "100").split()
    call("ip", "route", "replace", "blackhole", server, "table", "100")
    try:
        yield
    finally:
        call("ip", "route", "del", "blackhole", server, "table", "100")
        call("ip", "route", "replace", *route, "table", "100")


def connects_second() -> bool:
    """Whether a worker of the client is making a second connection."""
    for stack in Path("/proc").glob("[0-9]*/stack"):
        # a process may end meanwhile
        with suppress(OSError):
            if "nfr_client_branch_open_work" in stack.read_text():
                return True
    return False


def has_attempts(count: int) -> bool:
    """Whether so many attempts to make a second connection are recorded, as the test has them."""
    return Path("/sys/kernel/tracing/trace").read_text().count(" nfsrdma_lane: ") >= count


UNREACHABLE = {"silence": silence, "no route": no_route}


@on("client", timeout=900)
def unmount_unresolved(way: str, rounds: int) -> None:
    """Unmount while the second connection looks for the server's address, or has no route."""
    data = made(EXPORT / "unresolved", 43, MIB)
    for number in range(1, rounds + 1):
        # umount.nfs sends mountd no UMNT without this server
        with ExitStack() as later, mounted_export(off=("umount", "-i")):
            with Reader("unresolved") as reader:
                later.enter_context(UNREACHABLE[way]())
                assert reader.read() == data[:BLOCK]
            if way == "silence":
                until("a second connection that is being made", connects_second)
            else:
                # an unmount may be faster than the worker, which then makes no attempt
                until("the attempt", partial(has_attempts, number))
            assert counters()["optimistic_connects"] == 0
            later.callback(until, "the end of the transport", lambda: not any(CLIENTS.iterdir()))


@pytest.mark.parametrize("way", ["silence", "no route"])
def test_an_unmount_does_not_wait_for_the_second_connection(
    cards: Lab, long: bool, way: str
) -> None:
    """The end of the transport ends the search for the server's address, which takes seconds."""
    events, rounds = {"nfsrdma/nfsrdma_lane/enable": "1"}, 50 if long else 3
    with nothing_lost(cards, "client"), recorded(cards, "client", events) as lines:
        unmount_unresolved(cards, way, rounds)
    ends = attempts(lines)
    assert len(ends) == rounds
    if way == "silence":
        assert set(ends) == {"the transport closes"}


@on("client", timeout=900)
def break_meanwhile() -> None:
    """Break the first connection while the second one resolves the server's address."""
    data = made(EXPORT / "lost", 44, MIB)
    with mounted_export(), Reader("lost") as reader:
        with silence():
            assert reader.read() == data[:BLOCK]
            until("a second connection that is being made", connects_second)
            break_pairs(queue_pairs()[:1])
            until("the end of the connection", lambda: disconnects() == 1)
        assert reader.read(BLOCK) == data[BLOCK : 2 * BLOCK]
        reader.granted()
        assert disconnects() == 1


def test_a_connection_that_breaks_ends_a_second_one_that_is_being_made(cards: Lab) -> None:
    """The transport connects again at once, and makes a second connection later."""
    events = {"nfsrdma/nfsrdma_lane/enable": "1"}
    with nothing_lost(cards, "client"), recorded(cards, "client", events) as lines:
        break_meanwhile(cards)
    assert attempts(lines)[0] == "the transport closes"


# --- processes and connections that end ---


@pytest.mark.nightly
@pytest.mark.parametrize("personality", ["optimistic", "read-write"])
def test_readers_that_are_killed_in_a_storm_leave_the_transport_to_others(
    cards: Lab, long: bool, personality: str, record_property: Record
) -> None:
    """A worker takes the lock from a killed task that waits for its own Reply with it.

    Few rounds meet that case, if any: the number of such locks is recorded. A task that kept the
    lock would leave processes that no kill ends.
    """
    with nothing_lost(cards, "client"):
        taken = check_storm(cards, 200 if long else 5, personality, SEED)
    record_property("locks taken from killed tasks", taken)


def test_killed_readers_change_nothing(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        check_killed_readers(cards, 200 if long else 10)


@pytest.mark.nightly
def test_killed_listings_do_not_end_the_connection(
    cards: Lab, long: bool, record_property: Record
) -> None:
    """`while :; do timeout -s KILL .01 ls -lR /mnt; done` beside a reader."""
    with nothing_lost(cards, "client"):
        kills = check_killed_listings(cards, 600 if long else 5)
    record_property("killed listings", kills)
    assert kills > 10


def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        check_restarts(cards, 30 if long else 2)


@on("client", timeout=3600)
def break_second(times: int) -> None:
    """Break the second connection by force while a file is read."""
    data = made(EXPORT / "broken", 19)
    with mounted_export():
        with steady("broken", data):
            for _ in range(times):
                more_optimistic_reads()
                break_pairs(until("a second queue pair", lambda: queue_pairs()[1:]))
            more_optimistic_reads()
        assert disconnects() == 0
        assert counters()["optimistic_connects"] > 1


def test_the_end_of_the_second_connection_does_not_end_the_first(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        break_second(cards, 50 if long else 5)


# --- hostile peers ---


misbehave = on("client", timeout=3600)(optimistic_client.misbehave)
serve_notices = on("server", timeout=3600)(optimistic_server.serve)


def test_a_client_that_reads_too_much(cards: Lab, long: bool) -> None:
    assert len(optimistic_client.CASES) >= 25
    with nothing_lost(cards, "client"), damageable(cards), mounted(cards, "vers=3"):
        assert finished(misbehave, cards, 20000 if long else 100) == []


# tricks are played to so many readers of a mount or of a session, one after the other: the delay
# between two second connections doubles with each that ended soon
FEW = 6


class Effects(NamedTuple):
    """The numbers of tricks after which a client read by reference, and was refused.

    ``ends`` are the sums of its counters.
    """

    optimistic: list[int]
    refused: list[int]
    ends: dict[str, int]


def read_around(read: Callable[[int], bytes], wanted: bytes, at: int) -> None:
    """Read around a place by RPC, and then again and again; the last block of an extent, too."""
    for number in range(12):
        place = at + ((0, BLOCK, MIB - BLOCK)[(number - 1) % 3] if number else 0)
        assert read(place) == wanted[place : place + BLOCK]
        time.sleep(0.05)


@on("client", timeout=1800)
def play_tricks(port: int, total: int) -> Effects:
    """Read each MiB of a file of a server whose notices play a trick behind the first READ."""
    wanted, ends = made(EXPORT / "tricks", 20, total * MIB), Counter[str]()
    optimistic, refused = list[int](), list[int]()
    # a Call that times out ends the first connection, and the server is slow on a busy host
    options = f"vers=3,mountproto=tcp,rsize=65536,timeo=600,noac,nolock,port={port}"

    def is_ready() -> bool:
        states = connections()
        # the transport of the mount before may not have ended yet
        return len(states) == 1 and (
            (states[0]["optimistic_connection"], states[0]["optimistic_paused"]) == ("yes", "no")
        )

    for first in range(0, total, FEW):
        with mounted_export(options), Reader("tricks") as reader:
            for number in range(first, min(first + FEW, total)):
                # a READ, of another MiB that was played already, has a second connection made
                until("a second connection", lambda: is_ready() or not reader.read())
                before = counters()
                read_around(reader.read, wanted, number * MIB)
                after = counters()
                optimistic += [number] * (after["optimistic_reads"] > before["optimistic_reads"])
                refused += [number] * (after["optimistic_refused"] > before["optimistic_refused"])
            assert reader.read(0, 8 * BLOCK) == wanted[: 8 * BLOCK]
            ends.update(counters(), disconnects=disconnects())
    (EXPORT / "tricks").unlink()
    return Effects(optimistic, refused, dict(ends))


@on("client", timeout=1800)
def play_tricks_to_library(port: int, total: int) -> Effects:
    """Do the same by libnfsrdma, with a session in the place of each mount."""
    # the last MiB has no trick: reads of it show whether the next one finds a second connection
    wanted, ends = made(EXPORT / "tricks", 20, (total + 1) * MIB), Counter[str]()
    optimistic, refused = list[int](), list[int]()

    def is_ready(session: Session, file: File) -> bool:
        earlier = session.stats
        assert file.pread(BLOCK, len(wanted) - MIB) == wanted[-MIB : BLOCK - MIB]
        later = session.stats
        return (later.no_second, later.paused) == (earlier.no_second, earlier.paused)

    for first in range(0, total, FEW):
        with connect(f"server:{EXPORT}", port=port, timeout=60, optimistic=True) as session:
            with session.open("tricks") as file:
                for number in range(first, min(first + FEW, total)):
                    until("a second connection", partial(is_ready, session, file))
                    before = session.stats
                    read_around(partial(file.pread, BLOCK), wanted, number * MIB)
                    after = session.stats
                    optimistic += [number] * (after.by_reference > before.by_reference)
                    refused += [number] * (after.refused > before.refused)
                assert file.pread(8 * BLOCK, 0) == wanted[: 8 * BLOCK]
            ends.update(session.stats._asdict(), sessions=1)
    (EXPORT / "tricks").unlink()
    return Effects(optimistic, refused, dict(ends))


def check_tricks(effects: Effects) -> None:
    """Nothing but the honest grant was of use."""
    names = list(optimistic_server.TRICKS)
    assert {names[number] for number in effects.optimistic} == {"honest"}
    assert {names[number] for number in effects.refused} >= {"no memory"}


def test_a_server_whose_notices_break_the_rules(cards: Lab) -> None:
    names = list(optimistic_server.TRICKS)
    with serving(serve_notices, cards, 20050), nothing_lost(cards, "client"):
        effects = play_tricks(cards, 20050, len(names))
    check_tricks(effects)
    # what is no notice ends the second connection
    ends = effects.ends
    assert ends["optimistic_connects"] > len(names) / 2
    assert (ends["disconnects"], ends["bad_replies"], ends["failed_marshals"]) == (0, 0, 0)


@pytest.mark.nightly
def test_nor_does_it_mislead_a_client_without_a_mount(cards: Lab) -> None:
    names = list(optimistic_server.TRICKS)
    with serving(serve_notices, cards, 20050):
        effects = play_tricks_to_library(cards, 20050, len(names))
    check_tricks(effects)
    ends = effects.ends
    assert ends["second_connects"] > len(names) / 2
    assert (ends["connects"], ends["resent"]) == (ends["sessions"], 0)


# --- staleness ---


@pytest.mark.parametrize("folder", [pytest.param(EXPORT, marks=pytest.mark.nightly), DISK], ids=str)
def test_no_reader_gets_bytes_that_are_out_of_date(
    cards: Lab, long: bool, folder: Path, record_property: Record
) -> None:
    if misreads_holes(cards.config.kernel, folder):
        pytest.skip(f"nfsd of {cards.config.kernel} misreads holes; missed: staleness in {folder}")

    # a file that changed in the last second has no grants
    def enough(run: Round) -> bool:
        return run.share > 0.3

    run = stale(cards, 300 if long else 15, SEED, folder, 400_000, enough=enough)
    record_property("staleness", run)
    assert not long or all(run.changes.values()), run.changes


def test_nor_does_a_reader_without_a_mount(cards: Lab, long: bool, record_property: Record) -> None:
    def enough(run: Round) -> bool:
        return run.user["by_reference"] > 0.3 * run.user["reads"]

    run = stale(cards, 300 if long else 15, SEED, DISK, 400_000, users=2, enough=enough)
    record_property("staleness", run)
    assert run.user["connects"] == 2, run.user


@pytest.mark.nightly
def test_staleness_campaign(cards: Lab, record_property: Record) -> None:
    values = {
        "optimistic_lifetime": (1, 2, 60),
        "optimistic_memory": (2, 8, 256),
        # READs that are no references go by nfsd, or pass it by
        "server_threadless": (0, 65536),
    }
    sums, first = campaign(cards, values, tuple(FAULTS), prepare, users=USERS)
    record_property("campaign", sums)
    # how many go by reference in the other rounds depends on what is drawn
    assert first.share > 0.3
    # a read of the library may be several
    assert not USERS or first.user["by_reference"] > 0.3 * first.user["reads"], first.user


@on("client", timeout=900)
def unload_while_unmounting() -> None:
    """Unload the module while an exported file system, whose files are watched, is unmounted."""
    names = [f"unloads{number}" for number in range(8)]
    for number, name in enumerate(names):
        made(DISK / name, number, MIB)
    with mounted_export(folder=DISK):
        for name in names:
            with Reader(name) as reader:
                reader.granted()
    unexport(DISK)
    # systemd would take longer than the watches last
    Path("/proc/fs/nfsd/threads").write_text("0")
    beside = threading.Thread(target=unmount, args=(DISK,), daemon=True)
    beside.start()
    unload()
    beside.join(120)
    assert not os.path.ismount(DISK)


@pytest.mark.nightly
def test_it_unloads_while_a_file_system_unmounts(cards: Lab, long: bool) -> None:
    for _ in range(20 if long else 3):
        unload_while_unmounting(cards)
        cards.run("server", "systemctl", "stop", "nfs-server")
        prepare(cards)
        make_disks(cards)
