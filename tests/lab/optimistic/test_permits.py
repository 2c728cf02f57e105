# SPDX-License-Identifier: Apache-2.0
"""Permits of threadless reads: what they cost files that are read once, and whose they are.

On the instruction clock: rates and times do not depend on the host.
"""

import mmap
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lab.optimistic.exports import make_disks

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import damageable
from testbed.labs import OURS, Record, cards_lab, serve
from testbed.mounts import set_to
from testbed.node import mounts
from testbed.node.grants import (
    BLOCK,
    DISK,
    EXPORT,
    THERE,
    Reader,
    made,
    mounted_export,
    repeated,
    rpc_reads,
    seeded,
    totals,
)
from testbed.node.memory import slabs
from testbed.node.mounts import HERE, connections, drop_caches, mounted, parameters
from testbed.node.programs import call, until
from testbed.peers import odd_reads, rpc
from testbed.peers.odd_reads import INLINE
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient, contents
from testbed.remote import on

# short forms as well, until each has passed five times
pytestmark = pytest.mark.nightly
MOST = 65536
LIMITS = (0, MOST)
TRACING = Path("/sys/kernel/tracing")
# a host beside the client, and the address at which it finds the server
CLIENT, ANOTHER, SERVER_THERE = "10.9.1.11", "10.9.1.12", "10.9.1.2"


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    with cards_lab(pytestconfig, "permits", clock="instructions") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "client", "server_threadless", str(MOST))
        make_disks(lab)
        yield lab


# --- marks of fsnotify, which pin inodes, as the kernel counts them ---


@contextmanager
def marks() -> Iterator[Callable[[], tuple[int, int]]]:
    """The function returns how many marks anybody has made meanwhile, and how many are left."""
    names = {"made": "fsnotify_init_mark", "destroyed": "fsnotify_destroy_mark"}
    probes, enable = TRACING / "kprobe_events", TRACING / "events/marks/enable"
    # hits are counted from its definition on
    probes.write_text("".join(f"p:marks/{name} {place}\n" for name, place in names.items()))
    enable.write_text("1")
    before = dict.fromkeys(names, 0)

    def count() -> dict[str, int]:
        rows = (row.split() for row in (TRACING / "kprobe_profile").read_text().splitlines())
        return {row[0]: int(row[1]) - before[row[0]] for row in rows if row[0] in names}

    def made_and_left() -> tuple[int, int]:
        now = count()
        return now["made"], now["made"] - now["destroyed"]

    try:
        end_permits()
        before = count()
        yield made_and_left
    finally:
        enable.write_text("0")
        probes.write_text("")


def inodes() -> int:
    """Inodes of ext4 in memory, without those that nothing uses."""
    drop_caches()
    return slabs()["ext4_inode_cache"]


def end_permits() -> None:
    """No permit is left, and nfsd has no file open."""
    call("exportfs", "-f")
    until("the end of permits", lambda: not totals()["threadless_entries"])
    # watches may outlive permits
    time.sleep(2)


# --- files that get no permit ---


class Marked(NamedTuple):
    """READs that nfsd executed, and marks: made, and most at a time; nfsd's, too."""

    nfsd: int
    made: int
    most: int


class Turns(NamedTuple):
    """Seconds of turns, and marks, without threadless reads and with them, by their limit."""

    seconds: dict[int, list[float]]
    marked: dict[int, Marked]

    @property
    def ratio(self) -> float:
        """READs per second with threadless reads, of those without."""
        return sum(self.seconds[0]) / sum(self.seconds[MOST])


def marked(limit: int, read: Callable[[], None]) -> Marked:
    counts = [0]

    def watch() -> None:
        counts.append(made_and_left()[1])
        time.sleep(0.05)

    with parameters(server_threadless=limit), marks() as made_and_left:
        nfsd = rpc_reads()
        with repeated(watch):
            read()
        nfsd = rpc_reads() - nfsd
        number, left = made_and_left()
    return Marked(nfsd, number, max(*counts, left))


def in_turns(count: int, read: Callable[[], None]) -> Turns:
    """Do something with threadless reads and without in turns, and once while marks are counted."""
    turns = Turns({limit: [] for limit in LIMITS}, {})
    for _ in range(count):
        for limit, times in turns.seconds.items():
            with parameters(server_threadless=limit):
                end_permits()
                began = time.monotonic()
                read()
                times.append(time.monotonic() - began)
    turns.marked.update({limit: marked(limit, read) for limit in LIMITS})
    return turns


@on("client", timeout=7200)
def read_once(number: int, turns: int) -> Turns:
    """Read many files once; nothing pins their inodes afterwards."""
    folder, room = DISK / "once", mmap.mmap(-1, BLOCK)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1000, number + 1000))
    folder.mkdir()
    before = inodes()
    for name in range(number):
        (folder / str(name)).write_bytes(name.to_bytes(8, "big").ljust(BLOCK))
    # few RPCs besides the READs
    with mounted_export("vers=3,nocto,actimeo=3600", folder=DISK):
        flags = os.O_RDONLY | os.O_DIRECT
        files = [os.open(HERE / f"once/{name}", flags) for name in range(number)]

        def read_all() -> None:
            for name, file in enumerate(files):
                assert os.preadv(file, [room], 0) == BLOCK
                assert int.from_bytes(room[:8], "big") == name

        # the server has read the files, and what ext4 needs to find them
        read_all()
        result = in_turns(turns, read_all)
        for file in files:
            os.close(file)
    call("exportfs", "-f")
    os.sync()
    began = time.monotonic()
    until("inodes that nothing pins", lambda: inodes() < before + number // 10, 60)
    assert time.monotonic() - began < 5
    call("rm", "-r", folder)
    return result


def test_files_that_are_read_once_cost_no_more(
    cards: Lab, long: bool, record_property: Record
) -> None:
    files = 50_000 if long else 600
    turns = read_once(cards, files, 2)
    record_property("READs per second, with threadless reads : without", turns.ratio)
    # nfsd makes a mark of its own for each file that it opens
    without, with_them = (turns.marked[limit] for limit in LIMITS)
    record_property("marks, without and with", (without, with_them))
    about = f"{turns.ratio:.3f}: {turns}"
    assert without.nfsd == with_them.nfsd == files, about
    assert with_them.made - without.made < files / 10, about
    assert with_them.most - without.most < min(files / 10, 8192), about
    assert turns.ratio > 0.97, about


@on("client", timeout=900)
def read_tail(count: int, turns: int) -> Turns:
    """Read the end of a log that a process of the server appends to."""
    # the block before the end, which does not change
    path, place = EXPORT / "log", 8 * BLOCK
    last = made(path, 51, 10 * BLOCK)[place : place + BLOCK]
    with mounted_export(), path.open("ab", buffering=0) as log, Reader("log") as reader:

        def read_on() -> None:
            for _ in range(count):
                log.write(b"a line\n")
                assert reader.read(place) == last

        result = in_turns(turns, read_on)
    path.unlink()
    return result


def test_the_end_of_a_growing_log_costs_no_more(cards: Lab, record_property: Record) -> None:
    """Its writer has it open all the time, and each READ finds that."""
    turns = read_tail(cards, 300, 2)
    record_property("READs per second, with threadless reads : without", turns.ratio)
    about = f"{turns.ratio:.3f}: {turns}"
    assert turns.marked[0].made == turns.marked[MOST].made, about
    assert turns.ratio > 0.97, about


# --- whose a permit is ---


@contextmanager
def another_host() -> Iterator[None]:
    """Let this machine have two more addresses: another client's, and the server's for it.

    As lab-node does: a table for each end of the link.
    """
    links = {end: Path(f"/sys/class/net/{end}/address").read_text().strip() for end in ("v0", "v1")}
    ways = (
        ("v0", ANOTHER, SERVER_THERE, "102", "22", links["v1"]),
        ("v1", SERVER_THERE, ANOTHER, "103", "23", links["v0"]),
    )
    for end, own, *_ in ways:
        call("ip", "addr", "add", f"{own}/32", "dev", end)
    for end, own, other, table, number, link in ways:
        call("ip", "rule", "add", "pref", number, "to", other, "lookup", table)
        call("ip", "route", "add", other, "dev", end, "src", own, "table", table)
        call("ip", "neigh", "add", other, "lladdr", link, "dev", end)
    try:
        yield
    finally:
        for end, own, other, table, number, _ in ways:
            call("ip", "neigh", "del", other, "dev", end)
            call("ip", "route", "del", other, "table", table)
            call("ip", "rule", "del", "pref", number)
            call("ip", "addr", "del", f"{own}/32", "dev", end)


class Host(NamedTuple):
    """The READs of a host, the seconds that they took, and hits by the server's counters."""

    reads: int
    seconds: float
    hits: int = 0


class Hosts(NamedTuple):
    """Two hosts, the READs of both that nfsd executed, and their connections."""

    many: Host
    few: Host
    nfsd: int
    connections: int


def hits_by_host() -> dict[str, int]:
    """Of each client's address, the hits of its connections."""
    hits = Counter[str]()
    for folder in mounts.SERVER.glob("[0-9]*"):
        (state, counts) = (
            dict(line.split(" ", 1) for line in (folder / name).read_text().splitlines())
            for name in ("connection", "counters")
        )
        hits[state["peer"]] += int(counts["threadless_hits"])
    return hits


def read_all(folder: Path, count: int, rate: float, seconds: float, pipe: Any) -> None:
    """Read a block of each file ``rate`` times a second, after a message on the pipe."""
    flags = os.O_RDONLY | os.O_DIRECT
    order = [(number, os.open(folder / str(number), flags)) for number in range(count)]
    room, chance, reads = mmap.mmap(-1, BLOCK), seeded(61), 0
    pipe.send(None)
    pipe.recv()
    began = at = time.monotonic()
    while at < began + seconds:
        # the client takes its connections in turn: a file is not always the same one's
        chance.shuffle(order)
        for number, file in order:
            os.preadv(file, [room], 0)
            assert room[0] == number % 251
        reads += count
        at += 1 / rate
        time.sleep(max(0.0, at - time.monotonic()))
    pipe.send((reads, time.monotonic() - began))


@on("client", timeout=1800)
def read_beside(transports: int, files: int, others: int, rate: float, seconds: float) -> Hosts:
    """A host with some connections reads files, and so does another one beside it."""
    options = "vers=3,nocto,actimeo=3600,nosharecache"
    places = ((HERE / "many", files, CLIENT), (THERE / "few", others, ANOTHER))
    for place, count, _ in places:
        (EXPORT / place.name).mkdir()
        for number in range(count):
            (EXPORT / place.name / str(number)).write_bytes(bytes((number % 251,)) * BLOCK)
    # a file that changed in the last second gets no permit
    time.sleep(2)
    pipes, processes = [], []
    with (
        another_host(),
        mounted_export(f"{options},nconnect={transports}"),
        mounted(options, THERE, f"{SERVER_THERE}:{EXPORT}"),
    ):
        for place, count, _ in places:
            here, there = Pipe()
            words = (place, count, rate, seconds, there)
            processes.append(Process(target=read_all, args=words))
            processes[-1].start()
            # the child's end is its own: if it fails, recv() does
            there.close()
            here.recv()
            pipes.append(here)
        before, nfsd = hits_by_host(), rpc_reads()
        for pipe in pipes:
            pipe.send(None)
        results = [pipe.recv() for pipe in pipes]
        after, nfsd = hits_by_host(), rpc_reads() - nfsd
        for process in processes:
            process.join()
        count = len(connections(mounts.SERVER))
    for place, *_ in places:
        call("rm", "-r", EXPORT / place.name)
    many, few = (
        Host(reads, taken, after[peer] - before[peer])
        for (reads, taken), (*_, peer) in zip(results, places, strict=True)
    )
    return Hosts(many, few, nfsd, count)


@pytest.mark.parametrize(
    "connections", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 8)), 16]
)
def test_the_connections_of_a_host_share_permits(
    cards: Lab, connections: int, record_property: Record
) -> None:
    """Each of 64 files is read 60 times a second, by a host and by another one beside it."""
    hosts = read_beside(cards, connections, 64, 64, 60, 2)
    assert hosts.connections == connections + 1
    both = (hosts.many, hosts.few)
    for host in both:
        assert host.reads / 64 / host.seconds >= 50, hosts
    shares = [host.hits / host.reads for host in both]
    record_property("hits", shares)
    # the kernel's count
    assert sum(host.hits for host in both) + hosts.nfsd == sum(host.reads for host in both), hosts
    assert min(shares) >= 0.9, hosts


@pytest.mark.nightly
def test_a_host_with_many_files_leaves_permits_to_another(
    cards: Lab, record_property: Record
) -> None:
    """Sixteen connections, each with as many files as have permits, fill all tables."""
    hosts = read_beside(cards, 16, 320, 16, 16, 4)
    few = hosts.few
    record_property("hits of the other host", few.hits / few.reads)
    assert few.reads / 16 / few.seconds >= 10, hosts
    assert few.hits / few.reads >= 0.8, hosts


class Stamped(NamedTuple):
    """READs, and how many of these nfsd executed, by the kernel's count."""

    reads: int
    nfsd: int


@on("client")
def read_with_stamps(seconds: float) -> Stamped:
    """READs whose credentials have all other stamps.

    The stamp of AUTH_SYS is "an arbitrary ID which the caller machine may generate" (RFC 5531,
    appendix A): it names no user.
    """
    (file,), data, client = handles(FOLDER, "data"), contents("data")[:INLINE], TokenClient(0)
    # no permit follows a READ before the last change is older than a second
    changed = (FOLDER / "data").stat().st_ctime
    until("the permits of a file", lambda: time.time() > changed + 2)
    before, count = rpc_reads(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        credential = rpc.words(1, 20, 0x5EED0000 + count, 0, 0, 0, 0)
        assert rpc.data_of(client.answer(odd_reads.read(file, credential=credential))) == data
    return Stamped(count, rpc_reads() - before)


def test_a_client_may_vary_its_stamps(cards: Lab, record_property: Record) -> None:
    with damageable(cards):
        counts = read_with_stamps(cards, 3)
    record_property("READs", counts.reads)
    # two or three of each second
    assert counts.reads > 100
    assert counts.nfsd <= 0.1 * counts.reads, counts
