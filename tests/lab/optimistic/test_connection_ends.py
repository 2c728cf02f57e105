# SPDX-License-Identifier: Apache-2.0
"""Ends of connections whose card refuses to end them: memory returns with proof only.

On the kernel with KASAN (``--kernel debug``), a report fails the test, too.
"""

import mmap
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.optimistic.exports import SLOW, make_huge, nfsd_waits, slow_disk

from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, cards_lab, choose, counts_listeners, serve
from testbed.node import modelled, mounts
from testbed.node.files import drop_from_cache
from testbed.node.grants import (
    BLOCK,
    CARDS,
    EXPORT,
    HUGE,
    MIB,
    Reader,
    made,
    mounted_export,
    shown,
    totals,
)
from testbed.node.memory import meminfo
from testbed.node.modelled import LIMIT
from testbed.node.mounts import connections, counters, drop_caches, mounted, parameters
from testbed.node.programs import call, until
from testbed.peers import long_reply_client
from testbed.peers.calls import GOOD_PRIVATE
from testbed.peers.holders import CHUNK, SILENT, asking, reading, send, writing
from testbed.peers.peer import Host, Wish
from testbed.peers.site import handles
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from testbed.remote import on

KIB = 1 << 10
# a message of this delay, in seconds, arrives after the end of its connection
LATE = 10.0
# the time after which the client ends the connection of a late READ, in seconds
PATIENCE = 3
# more refusals than an end of a connection asks for
STUCK = 8
CANARY = b"\x5a"
FAULTS = ("stuck", "keep_qps", "keep_regions", "cut_chains")
TRACING = Path("/sys/kernel/tracing")
# of each personality: the client's counter of READs that go its way, and the card whose messages
# write the data: the server's, or the client's if that reads the data
WAYS = {
    "read-write": ("reply_bytes", "card1"),
    "cached": ("reply_bytes", "card1"),
    "padded": ("padded_replies", "card1"),
    "read-read": ("fetches", "card0"),
    "pre-posted": ("lane_calls", "card1"),
    "optimistic": ("optimistic_reads", "card0"),
}


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards and their provider; our module at both ends."""
    with cards_lab(pytestconfig, "ends") as lab:
        serve(lab, "server", OURS)
        yield lab


def prepare(lab: Lab, personality: str) -> None:
    if personality == "optimistic":
        counts_listeners(lab.config.kernel)
    choose(lab, personality)


# --- cards and reads in the node ---


def order(card: str, **values: int | str) -> None:
    for name, value in values.items():
        (CARDS / card / name).write_text(f"{value}\n")


def left(card: str) -> dict[str, int]:
    """Faults that have not happened."""
    return {name: int((CARDS / card / name).read_text()) for name in FAULTS}


@contextmanager
def healed() -> Iterator[None]:
    """Both cards work again afterwards."""
    try:
        yield
    finally:
        for card in ("card0", "card1"):
            order(card, **dict.fromkeys((*FAULTS, "latency", "refuse", "dead"), 0))


def private(size: int) -> mmap.mmap:
    """Memory of this process, which is there and its own."""
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room[:] = bytes(size)
    return room


def total(name: str) -> int:
    return counters().get(name, 0)


def warm(reader: Reader, counter: str, size: int = BLOCK) -> None:
    """Read until READs go the way of the personality."""

    def goes() -> bool:
        before = total(counter)
        reader.read(0, size)
        return total(counter) > before

    until(counter, goes)


def delay(card: str, seconds: float) -> None:
    order(card, latency=int(seconds * 1e9))


def waits() -> bool:
    """Whether a READ is under way."""
    files = Path("/sys/kernel/debug/sunrpc/rpc_clnt").glob("*/tasks")
    return any(re.search(r" READ .*q:xprt_pending", file.read_text()) for file in files)


def send_late(read: threading.Thread, personality: str, seconds: float = LATE) -> float:
    """Start a READ whose data is late; returns the time at which it was sent, at the earliest."""
    card = WAYS[personality][1]
    replies, fetched = counters(mounts.SERVER)["replies"], total("fetches")
    # the Call takes its time, so that the Read which follows it can be later
    delay(card, 1 if personality == "read-read" else seconds)
    at = time.monotonic()
    read.start()
    if card == "card0":
        until("the READ", waits)
    else:
        until("the Reply", lambda: counters(mounts.SERVER)["replies"] > replies)
    if personality == "read-read":
        delay(card, seconds)
        at = time.monotonic()
        until("the RDMA Read", lambda: total("fetches") > fetched)
    # what was counted is posted soon; otherwise the data is not late, which the result tells
    time.sleep(0.2)
    delay(card, 0)
    return at


# --- cards that refuse ---


@on("client", timeout=900)
def check_late(personality: str, size: int, stuck: int, keep: int) -> None:
    """A READ is answered after its connection ended; its card does not end the connection.

    The READ is sent again, and its memory returns to the process, which puts a canary there.
    """
    data, results = made(EXPORT / "late", 1, MIB)[:size], list[bytes]()
    with healed(), mounted_export(f"vers=3,noac,timeo={10 * PATIENCE},retrans=1"):
        with Reader("late", room=private(size)) as reader:
            warm(reader, WAYS[personality][0], size)
            read = threading.Thread(target=lambda: results.append(reader.read(0, size)))
            order("card0", stuck=stuck, keep_qps=keep, keep_regions=keep)
            sent = send_late(read, personality)
            read.join(120)
            returned = time.monotonic() - sent
            if read.is_alive():
                # an unmount would not end
                print("the READ does not end", flush=True)
                os._exit(1)
            reader.room[:] = CANARY * size
            # the late data arrives: a card is never later than its clock
            time.sleep(max(0.0, sent + LATE + 2 - time.monotonic()))
            assert returned > PATIENCE, "the data was not late"
            assert returned < LATE, "the READ waited for the late data"
            assert results == [data]
            assert reader.room[:] == CANARY * size, "late data"
            # the client asked until its card complied
            assert left("card0")["keep_qps"] == 0
            assert left("card0")["stuck"] < stuck
        with Reader("late") as reader:
            assert reader.read(0, size) == data


@pytest.mark.parametrize(
    ("personality", "size"),
    [
        ("read-write", 256 * KIB),
        ("pre-posted", 256 * KIB),
        ("read-read", 256 * KIB),
        # as many pages as elements of a card with few
        ("optimistic", 16 * KIB),
        pytest.param("cached", 256 * KIB, marks=pytest.mark.nightly),
        pytest.param("padded", 8 * KIB, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("keep", [3, pytest.param(0, marks=pytest.mark.nightly)])
def test_late_data_does_not_reach_memory_that_has_returned(
    cards: Lab, personality: str, size: int, keep: int
) -> None:
    """The client's card refuses the error state, and to destroy queue pairs and regions."""
    prepare(cards, personality)
    check_late(cards, personality, size, STUCK, keep)


@on("client", timeout=900)
def check_stopped(personality: str, size: int) -> bool:
    """The firmware of the client's card stops, and a forced unmount ends a READ.

    Its memory returns to the process, at the latest when the firmware works again. Returns whether
    it did so earlier.
    """
    made(EXPORT / "late", 1, MIB)
    results = list[str]()
    with healed(), mounted_export("vers=3,noac") as folder:
        with Reader("late", room=private(size)) as reader:
            warm(reader, WAYS[personality][0], size)
            read = threading.Thread(target=lambda: results.append(reader.answer(0, size)))
            sent = send_late(read, personality)
            order("card0", dead=1)
            # the mount is busy and stays, but its RPCs end
            call("umount", "-f", folder, check=False)
            read.join(max(0.0, sent + LATE - 3 - time.monotonic()))
            early = not read.is_alive()
            if early:
                reader.room[:] = CANARY * size
            order("card0", dead=0)
            read.join(120)
            if read.is_alive():
                # an unmount would not end
                print("the READ does not end", flush=True)
                os._exit(1)
            reader.room[:] = CANARY * size
            time.sleep(max(0.0, sent + LATE + 2 - time.monotonic()))
            assert reader.room[:] == CANARY * size, "late data"
        data = made(EXPORT / "late", 2, MIB)[:size]
        with Reader("late") as reader:
            until("the READ of a card that works", lambda: reader.answer(0, size) == shown(data))
    return early


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("personality", "size"),
    [("read-write", 256 * KIB), ("pre-posted", 256 * KIB), ("read-read", 256 * KIB),
     ("optimistic", 16 * KIB)],
)  # fmt: skip
def test_late_data_of_a_card_whose_firmware_stops(cards: Lab, personality: str, size: int) -> None:
    prepare(cards, personality)
    print(personality, check_stopped(cards, personality, size))


@on("client", timeout=900)
def check_writer(stuck: int) -> None:
    """A file changes that a client reads by itself; the server's card does not end that.

    The notice of the change takes long. When the change has returned, nobody reads old data.
    """
    made(EXPORT / "writer", 2, MIB)
    with healed(), mounted_export(), Reader("writer") as reader:
        warm(reader, "optimistic_reads")
        delay("card1", LATE)
        order("card1", cut_chains=1, stuck=stuck, keep_qps=1000, keep_regions=1000)
        with (EXPORT / "writer").open("r+b") as file:
            file.write(bytes(BLOCK))
        remaining = left("card1")
        delay("card1", 0)
        assert reader.read() == bytes(BLOCK)
        assert (remaining["cut_chains"], remaining["stuck"]) == (0, 0)
        assert remaining["keep_qps"] > 0
        assert remaining["keep_regions"] > 0
        # the cards comply, and clients read by themselves again
        order("card1", **dict.fromkeys(FAULTS, 0))
        warm(reader, "optimistic_reads")


def test_a_change_waits_until_no_client_reads_old_data(cards: Lab) -> None:
    """The server's card refuses invalidations, and to destroy queue pairs and regions.

    Only the error state, which it refuses at first, ends the access.
    """
    prepare(cards, "optimistic")
    check_writer(cards, STUCK)


@on("client", timeout=900)
def check_refusals(cached: str, every: int) -> None:
    """The server's card refuses Reads, which ends connections: Reads pause soon."""
    made(EXPORT / "refused", 3, MIB)
    with healed(), mounted_export(), Reader("refused") as reader:
        warm(reader, "optimistic_reads")
        names = ("optimistic_refused", "optimistic_pauses")
        before = counters()
        # a card's profile has another value
        as_before = (CARDS / "card0" / "cached_state").read_text()
        order("card0", cached_state=cached)
        order("card1", refuse=every)

        def changes() -> list[int]:
            now = counters()
            return [now[name] - before[name] for name in names]

        def is_over() -> bool:
            reader.read()
            refused, pauses = changes()
            return bool(pauses) or refused >= 8

        until("a pause", is_over, pause=0)
        order("card0", cached_state=as_before.strip())
        refused, pauses = changes()
        assert pauses == 1
        assert 0 < refused < 8


@pytest.mark.parametrize("cached", ["N", "Y"])
def test_reads_pause_when_refusals_end_connections(cards: Lab, cached: str) -> None:
    """Whatever the driver says of the state of a queue pair."""
    prepare(cards, "optimistic")
    check_refusals(cards, cached, 3)


# --- events of a card ---


@contextmanager
def reported(card: str) -> Iterator[list[str]]:
    """Lines of the module about a card in the kernel's log; complete after the block."""
    prefix, lines = f"nfsrdma: device {card}", list[str]()

    def found() -> list[str]:
        return [line.split(prefix, 1)[1] for line in call("dmesg").splitlines() if prefix in line]

    before = len(found())
    yield lines
    lines.extend(found()[before:])


@on("client", timeout=900)
def check_fatal(way: str, card: str) -> list[str]:
    """A card under load reports a fatal error, and works again later; the mount recovers."""
    # the load's last file is complete: no connection that is made later fails
    with mounted("vers=3,timeo=50"), modelled.load(), reported(card) as lines:
        if way == "gone":
            modelled.fail(way)
        else:
            order(card, dead=1)
            order(card, dead=2)
            # the memory of the connections has returned, and so have the connections themselves
            until("the ends of the connections", lambda: not totals()["connections"], LIMIT)
            order(card, dead=0)
    return lines


WAYS_TO_FAIL = (("gone", "card0"), ("dead", "card0"), ("dead", "card1"))


@pytest.mark.nightly
@pytest.mark.parametrize(("way", "card"), WAYS_TO_FAIL)
def test_connections_end_when_their_card_reports_a_fatal_error(
    cards: Lab, way: str, card: str
) -> None:
    prepare(cards, "read-write")
    lines = check_fatal(cards, way, card)
    fatal = [line for line in lines if "fatal" in line]
    assert len(fatal) == 1, lines
    assert re.fullmatch(r" reports a fatal error: [1-9]\d* connections end", fatal[0])


@on("client", timeout=900)
def check_link() -> tuple[list[str], str]:
    """The link of a card goes down and up again; its connections wait."""
    made(EXPORT / "link", 7)
    with mounted_export(), Reader("link") as reader, reported("card0") as lines:
        data = reader.read()
        order("card0", link_down=1)
        until("down", lambda: not modelled.is_active("card0"))
        order("card0", link_down=0)
        until("up", lambda: modelled.is_active("card0"))
        assert reader.read() == data
        (connection,) = connections()
    return lines, connection["disconnects"]


@pytest.mark.nightly
def test_connections_survive_a_link_that_comes_back(cards: Lab) -> None:
    prepare(cards, "read-write")
    lines, disconnects = check_link(cards)
    assert disconnects == "0"
    assert [line.split(";")[0] for line in lines] == [": port 1 is down", ": port 1 is up"]


# --- memory that is contiguous ---


@contextmanager
def huge() -> Iterator[mmap.mmap]:
    """Memory of 2 MiB that is contiguous."""
    call("sysctl", "-qw", "vm.nr_hugepages=4")
    room = mmap.mmap(-1, 2 * MIB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)
    try:
        yield room
    finally:
        room.close()
        call("sysctl", "-qw", "vm.nr_hugepages=0")


@contextmanager
def probed(probe: str) -> Iterator[list[int]]:
    """The values of ``count`` of a kernel probe, complete after the block."""
    counts: list[int] = []
    enable = TRACING / "events/ends/rw/enable"
    (TRACING / "kprobe_events").write_text(f"{probe}\n")
    try:
        (TRACING / "trace").write_text("")
        enable.write_text("1")
        yield counts
        enable.write_text("0")
        values = re.findall(r" count=(-?\d+)", (TRACING / "trace").read_text())
        counts.extend(map(int, values))
    finally:
        enable.write_text("0")
        (TRACING / "kprobe_events").write_text("")


@on("client", timeout=900)
def count_elements(probe: str, size: int, offset: int = 0, counter: str = "") -> list[int]:
    """The counts of a probe while a file is read into contiguous memory, at an offset.

    With ``counter``, READs have gone that way before, and this one does.
    """
    data = made(EXPORT / "elements", 5, MIB)[:size]
    with mounted_export(f"vers=3,noac,rsize={size}"), Reader("elements") as reader:
        if counter:
            warm(reader, counter, size)
        before = total(counter)
        with huge() as room, probed(probe) as counts:
            memory = memoryview(room)[offset : offset + size]
            assert os.preadv(reader.fd, [memory], 0) == size
            assert memory == data
            memory.release()
        assert total(counter) - before == bool(counter)
    return counts


def test_entries_of_a_scatterlist_are_bounded(cards: Lab) -> None:
    """Swiotlb maps 256 KiB at once: 1 MiB of contiguous memory takes 8 entries."""
    prepare(cards, "read-read")
    counts = count_elements(cards, "p:ends/rw rdma_rw_ctx_init count=$arg5:u32", MIB)
    # the server may name the memory in several segments
    assert sum(counts) >= 8


@pytest.mark.parametrize(("size", "offset", "elements"), [(64 * KIB, 0, 1), (128 * KIB, 512, 2)])
def test_pages_that_follow_each_other_are_one_element(
    cards: Lab, size: int, offset: int, elements: int
) -> None:
    """An optimistic READ into a huge page. The longer one has 33 pages, a Read 32 elements."""
    prepare(cards, "optimistic")
    probe = "r:ends/rw nfr_mem_scatter_map count=$retval:s32"
    assert count_elements(cards, probe, size, offset, "optimistic_reads") == [elements]


def read_late(personality: str, size: int, seed: int) -> None:
    """Read data whose pages, which follow each other, return to the system before it arrives."""
    path, results = HUGE / f"reused-{seed}", list[bytes]()
    data = made(path, seed, 2 * MIB)[:size]
    with (
        healed(),
        mounted_export(folder=HUGE),
        Reader(path.name, room=private(size)) as reader,
    ):
        warm(reader, WAYS[personality][0], size)
        read = threading.Thread(target=lambda: results.append(reader.read(0, size)))
        send_late(read, personality, 2)
        os.truncate(path, 0)
        (HUGE / "canary").write_bytes(CANARY * 64 * MIB)
        read.join(120)
    (HUGE / "canary").unlink()
    assert results == [data]


def free_memory() -> int:
    """Free memory in bytes; what caches hold is dropped."""
    drop_caches()
    return meminfo("MemFree")


@on("client", timeout=900)
def check_reuse(personality: str, size: int, rounds: int, files: int) -> None:
    """A Reply is late, and the pages of its file, which follow each other, return to the system.

    Other data takes each page that nobody holds.  Then files are read once, and freed.
    """
    make_huge()
    # what is made once and kept
    read_late(personality, size, 0)
    free = free_memory()
    for number in range(1, rounds + 1):
        read_late(personality, size, number)
    with mounted_export(folder=HUGE):
        for _ in range(files):
            (HUGE / "once").write_bytes(CANARY * 2 * MIB)
            with Reader("once") as reader:
                assert reader.read(0, size) == CANARY * size
            (HUGE / "once").unlink()
    # a file has 2 MiB, in one folio: a reference that is left keeps all of it
    assert free - free_memory() < files << 20


@pytest.mark.parametrize(
    ("personality", "size"),
    [
        ("pre-posted", 256 * KIB),
        ("padded", 8 * KIB),
        pytest.param("read-write", 256 * KIB, marks=pytest.mark.nightly),
    ],
)
def test_a_reply_holds_all_its_pages_until_its_card_has_read_them(
    cards: Lab, personality: str, size: int
) -> None:
    """Pages that follow each other: one element for each Send, and a reference for each page."""
    prepare(cards, personality)
    check_reuse(cards, personality, size, 4, 64)


# --- Calls and Replies ---


@on("client", timeout=900)
def hold_data(size: int, count: int) -> None:
    """A connection whose Calls hold their data while they wait for memory, and one beside it.

    The first connection sends READs of 1 MiB with a Read chunk of ``size`` bytes, which READ has no
    use for, and receives no Reply.  Then the other one, of the same address, sends the largest
    WRITE that the server takes.  nfsd reads no file until all data have arrived.
    """
    file = SLOW / "held"
    with slow_disk() as delay_disk, parameters(server_ack_timeout=1, server_memory=4):
        file.write_bytes(bytes(CHUNK))
        os.sync()
        drop_from_cache(file)
        delay_disk(600_000)
        host, (handle,), before = Host(), handles(SLOW, file.name), totals()["fenced"]
        silent, other = (host.connect(wish) for wish in (SILENT, Wish(private=GOOD_PRIVATE)))
        access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
        theirs, own = silent.memory(CHUNK, access), other.memory(CHUNK, access)
        reads = [reading(handle, 1 + n, theirs, data=size) for n in range(count)]
        assert send(silent, [asking(), *reads]) == count + 1
        until("their data", lambda: counters(mounts.SERVER)["read_bytes"] >= size * count)
        until("a thread of nfsd that waits for the disk", nfsd_waits)
        delay_disk(0)
        most = int(Path("/proc/fs/nfsd/max_block_size").read_text())
        other.send(writing(handle, 1, own, min(CHUNK, most)))
        host.wait(lambda: bool(other.messages) or bool(other.ended), 120, late=False)
        assert other.messages, f"the WRITE was not answered: {other.ended}"
        assert silent.ended
        for connection in (silent, other):
            connection.close()
        assert totals()["fenced"] - before == 1


def test_a_connection_ends_whose_waiting_calls_hold_data_for_which_others_wait(
    cards: Lab,
) -> None:
    """Nobody waits for the memory of its Replies but itself."""
    prepare(cards, "read-write")
    # a client has 1 MiB and its floor for data, and as much for Replies: some Calls are answered,
    # the others hold so much that the largest WRITE waits
    hold_data(cards, 32 * KIB, 48)


DELAY = """
cd /sys/kernel/debug/nfsrdma_card
for card in card0 card1; do echo $1 > $card/completion_delay; done
"""
long_replies = on("client")(long_reply_client.long_replies)
LONG = """
mkdir -p /export/long/names && cd /export/long
head -c 200000 /dev/urandom > data
ln -sfn data link
"""


def test_a_client_that_leaves_with_its_reply_may_have_another_of_that_length(cards: Lab) -> None:
    """It sends no private data; the server's card reports late that the Reply has arrived."""
    cards.run("server", "sh", "-ec", LONG)
    cards.run("server", "sh", "-ec", DELAY, "sh", "20000000")
    try:
        outcomes = long_replies(cards, Path("/export/long"), [65536])
    finally:
        cards.run("server", "sh", "-ec", DELAY, "sh", "0")
        cards.run("server", "rm", "-r", "/export/long")
    # the card is as late to say that a Reply was too long: a connection more may end
    first, *ends, answer, again = outcomes.reads[65536]
    assert (first, answer, again) == ("same", "chunk", "same")
    assert set(ends) == {"ended"}
