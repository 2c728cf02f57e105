# SPDX-License-Identifier: Apache-2.0
"""Clients that make the server hold memory, and how long others wait meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wire.rpcrdma import decode

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import CUT_OFF, SOUND
from testbed.mounts import mounted, nothing_lost, set_parameters, set_to
from testbed.node import channel
from testbed.node.mounts import HERE
from testbed.peers import rpc
from testbed.peers.bystander import Asker, Bystander, Reader, Writer
from testbed.peers.calls import GOOD_PRIVATE
from testbed.peers.holders import CHUNK, asking, connected, reading, send, until, writing
from testbed.peers.peer import Connection, Host, Wish
from testbed.peers.site import handles
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from testbed.remote import Running, on

__all__ = ["ACKNOWLEDGMENTS", "ADDRESSES", "DATA_OF_READS", "Held", "Kept", "hold", "kept_for",
           "leave_unreceived", "share_a_floor", "totals", "unreceived_beside"]  # fmt: skip

EXPORT, FILE = Path("/export"), "held"
# addresses beside the node's own: the server limits the memory of a client by its address
ADDRESSES = tuple(f"10.9.1.{number}" for number in range(101, 105))
ADDRESS = """
device=$(ip -o -4 addr show to 10.9.1.0/24 | awk '{ print $2; exit }')
how=$1; shift
for address; do ip addr "$how" "$address/24" dev "$device"; done
"""
# a page that was never written is none: replies would all refer to the one of zeros;
# a dirty page cannot be freed, and would count as memory that is held
FILL = f'head -c "$1M" /dev/zero > {EXPORT}/{FILE}; sync {EXPORT}/{FILE}'
STATE = "/sys/kernel/debug/nfsrdma-server"
# Calls and replies of all connections but the first, which is the mount's
COUNTED = f"""
cd {STATE}
cat /dev/null $(ls -d [0-9]* | sort -n | tail -n +2 | sed 's,$,/counters,') |
awk '{{ sum[$1] += $2 }} END {{ print sum["calls"] + 0, sum["replies"] + 0 }}'
"""
# MemAvailable leaves out the free pages that each CPU keeps (proc(5), /proc/zoneinfo: count);
# the most of three: the application that works beside makes pages dirty all the time
AVAILABLE = """
for n in 1 2 3; do
	sync
	echo 3 > /proc/sys/vm/drop_caches
	awk -v page="$(($(getconf PAGESIZE) / 1024))" '
		/^MemAvailable:/ { all += $2 }
		/^ *count:/ { all += $2 * page }
		END { print all }' /proc/meminfo /proc/zoneinfo
done | sort -n | tail -n 1
"""
# InfiniBand specification, table of opcodes: of a reliable connection; behind the UDP header
ACKNOWLEDGMENTS, DATA_OF_READS = "17", "13-16"
# from here on none of these packets arrives from the addresses $1
MISSING = """
nft "table inet lost { chain in { type filter hook input priority 0;
ip saddr { $1 } udp dport 4791 @th,64,8 $2 drop; }; }"
"""
FOUND = "nft delete table inet lost"
HELD = ("reply_pages", "read_pages", "floor_pages", "clients")
# a quarter of server_memory, in MiB
SHARE = 4
# seconds that the application works once memory is held
WORKS = 8.0
# that the server may take until it ends a connection
FENCED_WITHIN = 60.0
LIMIT = 14400
# rounds of the application before the other clients send anything
BEFORE = 3


# --- the server ---


def totals(lab: Nodes) -> dict[str, tuple[int, ...]]:
    """The numbers of each line of the totals of our server."""
    lines = lab.run("server", "cat", f"{STATE}/totals").stdout.splitlines()
    words = [line.replace(" of ", " ").split() for line in lines]
    return {name: tuple(map(int, values)) for name, *values in words}


def kept_for(lab: Nodes) -> tuple[float, float]:
    """Memory that all replies are charged with, and the limit, in MiB."""
    pages, limit = totals(lab)["reply_pages"]
    return pages / 256, limit / 256


def wait_for(lab: Nodes, condition: Callable[[dict[str, int]], bool]) -> None:
    """Wait until a condition of the totals is true."""
    end = time.monotonic() + FENCED_WITHIN * lab.config.patience
    while not condition(now := {name: values[0] for name, values in totals(lab).items()}):
        assert time.monotonic() < end, now
        time.sleep(0.3)


def nothing_held(lab: Nodes) -> None:
    """Wait until no page is charged to a client, and no client has a floor."""
    wait_for(lab, lambda now: not any(now.get(name) for name in HELD))


@contextmanager
def clients_with(lab: Nodes, node: str, addresses: Sequence[str], mebibytes: int) -> Iterator[None]:
    """A node has some addresses, and the server a file; then no page of a Reply is charged."""
    lab.run("server", "sh", "-c", FILL, "sh", str(mebibytes))
    lab.run(node, "sh", "-ec", ADDRESS, "sh", "add", *addresses)
    try:
        yield
    finally:
        lab.run(node, "sh", "-ec", ADDRESS, "sh", "del", *addresses)
    wait_for(lab, lambda now: not now["reply_pages"])
    lab.run("server", "rm", "-f", f"{EXPORT}/{FILE}")


# --- clients that receive no replies ---


class Unreceived(NamedTuple):
    """The ends of clients that received no Reply, and the work of others beside them."""

    ends: dict[str, int]
    """how the connections ended, by reason"""
    longest: float
    reads: int
    """reads of 1 MiB on the mount: the longest, in seconds, and their number"""
    beside: float
    """the longest Call without chunks"""


@on("client", timeout=LIMIT)
def receive_nothing(connections: int, calls: int) -> Unreceived:
    """Make connections, in turn from each address, and send READs once the test says so.

    Each READ is of another part of the file.  No connection takes a reply but its first one, so
    the server has to keep all the others, until the test or the server has ended all connections.
    """
    host, (handle,) = Host(), handles(EXPORT, FILE)
    clients = connected(host, ADDRESSES, connections)
    target = clients[0].memory(CHUNK, LOCAL_WRITE | REMOTE_WRITE)
    until(host, told)
    with Bystander(HERE), Reader(HERE) as reader, Asker(HERE) as asker:
        for number, client in enumerate(clients):
            numbers = range(number * calls, (number + 1) * calls)
            send(client, [asking(), asking(),
                          *(reading(handle, n, target, n * CHUNK) for n in numbers)])  # fmt: skip
        until(host, lambda: channel.ended() or all(client.ended for client in clients))
        ends = Counter(client.ended for client in clients)
        for client in clients:
            client.close()
    return Unreceived(dict(ends), reader.longest, reader.rounds, asker.longest)


def told() -> bool:
    """Whether the test has sent something since."""
    try:
        channel.receive(0)
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True)
class Kept:
    """Memory that the server holds for the clients, in MiB."""

    limit: float
    """what the parameter server_memory allows, and the floors of all clients"""
    charged: float
    """the maximum that the server charged to clients"""
    held: float | None
    """the decrease of available memory once the server had freed all that it could; None on a
    kernel with run-time checks, where KASAN keeps freed memory for a while"""
    work: Unreceived
    fenced: int
    """connections that the server ended because others waited for their memory"""


def leave_unreceived(lab: Nodes, connections: int, calls: int, to_the_end: bool) -> Kept:
    """Make ``connections`` with ``calls`` READs each, while an application works on a mount.

    Each fourth comes from another address.  Once memory is measured, the server may end connections
    for whose memory others wait.  ``to_the_end``: until it has ended all connections.  Repeats on a
    machine that is so slow that the server ended connections before memory was measured.
    """
    for _ in range(5):
        if kept := _attempt(lab, connections, calls, to_the_end):
            return kept
    raise AssertionError("five times the server ended connections before memory was measured")


def _attempt(lab: Nodes, connections: int, calls: int, to_the_end: bool) -> Kept | None:
    before, most = totals(lab)["fenced"], 0.0
    with (
        nothing_lost(lab, "server"),
        set_parameters(lab, node="server", server_ack_timeout=3600),
        mounted(lab, "vers=3"),
        clients_with(lab, "client", ADDRESSES, 0),
        receive_nothing.started(lab, connections, calls) as running,
    ):
        measured = _measured(lab, running, connections, calls)
        set_to(lab, "server", "server_ack_timeout", "1")
        while not running.done() and (to_the_end or totals(lab)["fenced"] == before):
            most = max(most, kept_for(lab)[0])
            time.sleep(0.5)
        running.end()
        work = running.result()
    if not measured:
        return None
    limit, charged, held = measured
    return Kept(limit, max(charged, most), held, work, totals(lab)["fenced"][0] - before[0])


def _measured(
    lab: Nodes, running: Running[Unreceived], connections: int, calls: int
) -> tuple[float, float, float | None] | None:
    """The limit, the most that was charged, and the memory that all of them held together."""
    weighs = lab.config.kernel not in CHECKING
    # and the mount's
    everybody = connections + 1
    while totals(lab)["connections"][0] != everybody:
        assert not running.done(), running.result()
        time.sleep(0.2)
    before = _available(lab) if weighs else None
    lab.run("server", "sh", "-c", FILL, "sh", str(connections * calls))
    running.send("go")
    charged, limit = _steady(lab, running, connections * (calls + 2))
    # what replies refer to stays
    lab.run("server", "rm", f"{EXPORT}/{FILE}")
    held = None if before is None else before - _available(lab)
    if weighs and totals(lab)["connections"][0] != everybody:
        return None
    return limit, charged, held


def _steady(lab: Nodes, running: Running[Unreceived], calls: int) -> tuple[float, float]:
    """The most that was charged until all Calls had come and none was answered any more."""
    before, most = list[str](), 0.0
    while True:
        counts = lab.run("server", "sh", "-c", COUNTED).stdout.split()
        charged, limit = kept_for(lab)
        most = max(most, charged)
        if running.done() or (counts == before and int(counts[0]) >= calls):
            return most, limit
        before = counts
        time.sleep(1)


def _available(lab: Nodes) -> float:
    return int(lab.run("server", "sh", "-c", AVAILABLE).stdout) / 1024


@contextmanager
def unreceived_beside(lab: Nodes, node: str) -> Iterator[None]:
    """Work on a mount in a node, while other clients there receive no replies."""
    with (
        clients_with(lab, node, ADDRESSES, 32),
        receive_nothing.at(node).started(lab, 4, 8) as running,
    ):
        running.send("go")
        yield


# --- clients that hold memory which an application wants ---


class Waits(NamedTuple):
    """How long an application waited, and how the other clients' connections had ended."""

    ended: dict[str, int]
    """how the connections had ended, by reason"""
    received: int
    """connections that had ended although they received Replies"""
    calm: float
    """the longest operation of 1 MiB before others held memory, in seconds"""
    longest: float
    """the longest one afterwards"""
    rounds: int
    """the number of these"""
    beside: float
    """the longest Call without chunks, which needs none of that memory"""


@on("client", timeout=LIMIT)
def want_memory(kind: str, sources: tuple[str, ...], size: int, pause: int) -> Waits:
    """Make eight connections, in turn from each source, and send eight Calls over each of them.

    With ``kind`` "reads" they are READs of ``size`` bytes, and no connection receives a Reply; if
    ``pause`` is not 0, those of the second half of the sources receive one Reply each ``pause``
    seconds.  With "writes" they are WRITEs in Read chunks; the test has the server receive no data.
    An application moves 1 MiB at a time past the cache, in the same direction.
    """
    host, (handle,) = Host(), handles(EXPORT, FILE)
    clients = connected(host, sources, 8)
    memory = clients[0].memory(size, LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE)
    application = Reader if kind == "reads" else Writer

    def messages(number: int) -> list[bytes]:
        """Of one connection."""
        numbers = range(1 + number * 8, 1 + (number + 1) * 8)
        if kind == "writes":
            return [writing(handle, n, memory, size) for n in numbers]
        return [asking(), asking(), *(reading(handle, n, memory, 0, size) for n in numbers)]

    with Asker(HERE) as asker, application(HERE) as worker:
        until(host, lambda: worker.rounds >= BEFORE)
        calm, rounds = worker.longest, worker.rounds
        for number, client in enumerate(clients):
            send(client, messages(number))
        channel.send("sent")
        second_half = sources[len(sources) // 2 :]
        receiving = [c for c in clients if pause and c.wish.address in second_half]
        receive = receipts(receiving, pause)

        def over() -> bool:
            receive()
            return channel.ended()

        until(host, over)
        ends = Counter(client.ended for client in clients)
        received = sum(bool(client.ended) for client in receiving)
    for client in clients:
        client.close()
    return Waits(
        dict(ends), received, calm, worker.longest, worker.rounds - rounds, asker.longest
    )  # fmt: skip


def receipts(clients: list[Connection], pause: float) -> Callable[[], None]:
    """A function that has each connection receive one Reply each ``pause`` seconds."""
    posted, due = Counter[int](), [time.monotonic() + pause]

    def receive() -> None:
        if time.monotonic() < due[0]:
            return
        due[0] += pause
        for client in clients:
            # the first receive, and those posted here: the queue has room for one
            if not client.ended and len(client.messages) > posted[client.qp]:
                posted[client.qp] += 1
                client.receive_one()

    return receive


@dataclass(frozen=True)
class Held:
    """The memory that the server held for clients, and the waits of an application."""

    charged: float
    """the most that the server charged to clients, in MiB"""
    least: float
    """what the other clients can make it hold: a quarter of server_memory each, less 1 MiB"""
    fenced: int | None
    """connections that the server ended because others waited for their memory, where it does"""
    waits: Waits


def hold(
    lab: Nodes,
    kind: str,
    sources: Sequence[str] = ADDRESSES,
    pause: int = 0,
    missing: str = "",
    seconds: float = WORKS,
) -> Held:
    """Have clients hold memory, while an application works on a mount (``want_memory``).

    The server gets no packets from the sources with the opcodes ``missing``; without
    acknowledgments it gets none at all, once it holds memory.  The application works for
    ``seconds`` after that.
    """
    size, before = _size(lab), totals(lab)
    addresses = ",".join(sources)
    with (
        nothing_lost(lab, "server"),
        mounted(lab, "vers=3"),
        clients_with(lab, "client", sources, 2),
        want_memory.started(lab, kind, tuple(sources), size, pause) as running,
        _filtered(lab, bool(missing), MISSING, FOUND, addresses, missing),
    ):
        running.receive(FENCED_WITHIN)
        cut_off = missing == ACKNOWLEDGMENTS
        with _filtered(lab, cut_off, CUT_OFF, SOUND, f"{{{addresses}}}"):
            charged = _watch(lab, running, kind, seconds, before)
        running.end()
        waits, after = running.result(), totals(lab)
    nothing_held(lab)
    fenced = after["fenced"][0] - before["fenced"][0] if "fenced" in after else None
    return Held(charged, len(sources) * SHARE - 1, fenced, waits)


def _size(lab: Nodes) -> int:
    """Of the largest READ or WRITE that the server takes, in bytes."""
    return min(CHUNK, int(lab.run("server", "cat", "/proc/fs/nfsd/max_block_size").stdout))


@contextmanager
def _filtered(lab: Nodes, wanted: bool, script: str, undo: str, *words: str) -> Iterator[None]:
    """A script has the server get fewer packets for a while, if wanted."""
    if not wanted:
        yield
        return
    lab.run("server", "sh", "-ec", script, "sh", *words)
    try:
        yield
    finally:
        lab.run("server", "sh", "-c", undo)


def _watch(
    lab: Nodes,
    running: Running[Any],
    kind: str,
    seconds: float,
    before: dict[str, tuple[int, ...]],
) -> float:
    """The most that is charged, in MiB, until the server has ended a connection."""
    line, most = "reply_pages" if kind == "reads" else "read_pages", 0
    limit, began = FENCED_WITHIN * lab.config.patience, time.monotonic()
    while not running.done():
        now, age = totals(lab), time.monotonic() - began
        most = max(most, now[line][0])
        fenced = "fenced" not in now or now["fenced"] > before["fenced"]
        if age > seconds and (fenced or age > limit):
            return most / 256
        time.sleep(0.3)
    raise AssertionError(running.result())


# --- clients without a floor ---


class Worker:
    """Has READs answered, one after the other."""

    def __init__(self, connection: Connection, file: bytes, size: int) -> None:
        self.connection, self.file, self.size = connection, file, size
        self.memory = connection.memory(size, LOCAL_WRITE | REMOTE_WRITE)
        self.replies, self.longest, self.began = 0, 0.0, 0.0

    def ask(self) -> None:
        self.began = time.monotonic()
        self.connection.send(reading(self.file, 1 + self.replies, self.memory, 0, self.size))

    def turn(self, rounds: int) -> bool:
        """Take a Reply, and ask again; returns whether it has all of them."""
        assert not self.connection.ended, self.connection.ended
        if self.connection.messages:
            message = self.connection.messages.popleft().data
            reply = message[decode(message)[1] :]
            assert rpc.accepted(reply), reply.hex()
            assert reply[24:28] == bytes(4), reply.hex()
            self.longest = max(self.longest, time.monotonic() - self.began)
            self.replies += 1
            if self.replies < rounds:
                self.ask()
        return self.replies == rounds


@on("client", timeout=LIMIT)
def borrow(size: int, counts: list[int], addresses: tuple[str, ...], rounds: int) -> float:
    """Send as many READs as ``counts`` says from each of ADDRESSES, which receive no Reply.

    When the test says so, a connection from each of ``addresses`` has ``rounds`` READs answered.
    Returns the longest time that one waited for a Reply, in seconds.
    """
    host, (handle,) = Host(), handles(EXPORT, FILE)
    silent = connected(host, ADDRESSES, len(counts))
    honest = [host.connect(Wish(private=GOOD_PRIVATE, address=each)) for each in addresses]
    target = silent[0].memory(size, LOCAL_WRITE | REMOTE_WRITE)
    for connection, count in zip(silent, counts, strict=True):
        reads = [reading(handle, 1 + n, target, 0, size) for n in range(count)]
        send(connection, [asking(), asking(), *reads])
    channel.send("sent")
    until(host, told)
    workers = [Worker(connection, handle, size) for connection in honest]
    for worker in workers:
        worker.ask()
    # each has all of its Replies
    host.wait(lambda: sum(worker.turn(rounds) for worker in workers) == len(workers), 600)
    for connection in (*honest, *silent):
        connection.close()
    return max(worker.longest for worker in workers)


def share_a_floor(lab: Nodes, workers: Sequence[str], rounds: int) -> tuple[float, int]:
    """Have clients without a floor work while others hold all that can be borrowed.

    Returns the longest wait for a Reply, in seconds, and how many clients had no floor.
    """
    size = _size(lab)
    # the fewest MiB that the parameters allow: one floor, or none if messages of 1 MiB have headers
    floors, memory = 1 << 20, 4 << 20
    each = memory // 4 // size
    first = each + (floors > size)
    parameters = {"server_memory": 4, "server_floors": 1, "server_ack_timeout": 3600}
    with (
        nothing_lost(lab, "server"),
        set_parameters(lab, node="server", **parameters),
        clients_with(lab, "client", (*ADDRESSES, *workers), 2),
        borrow.started(lab, size, [first, each, each, each], tuple(workers), rounds) as running,
    ):
        running.receive(FENCED_WITHIN)
        held = (first + 3 * each) * size // 4096
        wait_for(lab, lambda now: now["reply_pages"] >= held)
        (sharing, *_) = totals(lab)["clients_sharing"]
        running.send("go")
        longest = running.result()
    nothing_held(lab)
    return longest, sharing
