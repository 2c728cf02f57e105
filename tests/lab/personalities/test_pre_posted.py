# SPDX-License-Identifier: Apache-2.0
"""READs on lanes (personality pre-posted): data, killed readers, restarts, hostile peers."""

import errno
import hashlib
import mmap
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import RESTARTED
from testbed.hostile import SEED, damageable, finished, serving
from testbed.mounts import nothing_lost, set_parameters
from testbed.node import mounts
from testbed.node.files import opened
from testbed.node.programs import call, until
from testbed.peers import lane_client, lane_server
from testbed.personalities import agreed, nothing_left
from testbed.remote import on
from testbed.tracing import said, sums, tracing

SIZE, BLOCK, MIB = 32 << 20, 1 << 16, 1 << 20
# seconds for one event
SOON = 60.0
VERSIONS = (
    pytest.param("vers=3", marks=pytest.mark.nightly),
    pytest.param("vers=4.0", marks=pytest.mark.nightly),
    "vers=4.2,nconnect=2",
)


@pytest.fixture(scope="module")
def cards(lab: Lab) -> Iterator[Lab]:
    """Both ends are pre-posted."""
    with agreed(lab, "pre-posted"):
        yield lab


# --- in the node ---


def make_file(name: str, seed: int) -> str:
    """Make a file on the server; returns its SHA-256."""
    data = random.Random(seed).randbytes(SIZE)  # noqa: S311 - no secret
    Path("/export", name).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read(path: Path, size: int = MIB) -> str:
    """Read a file by direct I/O of ``size`` bytes; returns its SHA-256."""
    digest, room = hashlib.sha256(), mmap.mmap(-1, size)
    with opened(path, os.O_RDONLY | os.O_DIRECT) as file:
        offset = 0
        while count := os.preadv(file, [room], offset):
            digest.update(room[:count])
            offset += count
    return digest.hexdigest()


def disconnects() -> int:
    return sum(int(connection["disconnects"]) for connection in mounts.connections())


class Reads(NamedTuple):
    """The client's counters and connections, and lines of ``nfsrdma module status``."""

    counters: dict[str, int]
    connections: list[dict[str, str]]
    status: list[str]


@on("client", timeout=900)
def read_all_sizes(options: str) -> Reads:
    """Buffered and direct reads of several sizes are right."""
    wanted = make_file("kinds", 1)
    with mounts.mounted(options) as folder:
        path = folder / "kinds"
        assert {read(path, size) for size in (MIB, 1 << 16, 12288, MIB)} == {wanted}
        assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted
        lines = call("nfsrdma", "module", "status").splitlines()
        status = [line for line in lines if line.startswith(("server ", "transport "))]
        return Reads(mounts.counters(), mounts.connections(), status)


@pytest.mark.parametrize("options", VERSIONS)
def test_large_reads_use_lanes_and_leave_nothing(cards: Lab, options: str) -> None:
    with nothing_lost(cards, "client"):
        counters, connections, _ = read_all_sizes(cards, options)
    assert {connection["personality"] for connection in connections} == {"pre-posted"}
    # each reader waits for its READ: after the first ones, a lane is idle
    assert counters["lane_calls"] > 10 * counters["lane_fallbacks"] > 0
    assert counters["lane_bytes"] > 100 << 20
    assert (counters["bad_replies"], counters["failed_marshals"]) == (0, 0)
    assert {connection["last_failure"] for connection in connections} == {"none"}
    nothing_left(cards)


@pytest.mark.nightly
def test_lanes_are_as_many_as_the_parameter_allows(cards: Lab) -> None:
    with set_parameters(cards, lanes=2):
        counters, connections, _ = read_all_sizes(cards, "vers=3")
    assert [connection["lanes"] for connection in connections] == ["2 of 2"]
    assert counters["lanes_connected"] == 2


@pytest.mark.nightly
def test_the_probe_and_status_tell_of_lanes(cards: Lab) -> None:
    with set_parameters(cards, lanes=2), tracing(cards, "client", "connections"):
        counters, _, status = read_all_sizes(cards, "vers=3")

        def lanes(event: str) -> int:
            return sums(cards, "client", "times", what=event)["times"]

        until("as many lanes ended as there were", lambda: lanes("lane end") >= 2, 300, 0.5)
        assert (lanes("lane"), lanes("lane end")) == (2, 2)
        granted = [row["granted"] for row in said(cards, "client") if row["what"] == "credits"]
    # lanes, which have one credit each, do not hide those of their transport
    assert granted[-1] > 1
    assert counters["lanes_connected"] == 2
    assert ", 2 lanes; accepts " in status[0]
    assert ", in effect pre-posted, lanes 2, " in status[1]


_READER = """
import mmap, os, sys
room = mmap.mmap(-1, 1 << 20)
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
os.write(1, b".")
while True:
    for at in range(32):
        os.preadv(file, [room], at << 20)
"""


def read_until(over: threading.Event, path: Path, size: int, results: list[str]) -> None:
    """Read a file again and again; an error of a forced unmount is a result, too."""
    while not over.is_set():
        try:
            results.append(read(path, size))
        except OSError as error:
            results.append(f"errno {error.errno}")


@contextmanager
def readers(path: Path, *sizes: int) -> Iterator[list[str]]:
    """Threads read a file beside the block; the results are in the list."""
    over, results = threading.Event(), list[str]()
    threads = [
        threading.Thread(target=read_until, args=(over, path, size, results)) for size in sizes
    ]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        over.set()
        for thread in threads:
            thread.join()


@on("client")
def kill_readers(options: str, seconds: float) -> None:
    """Kill readers at any time, and have forced unmounts end RPCs, while others read."""
    wanted, chance = make_file("kill", 2), random.Random(3)  # noqa: S311 - no secret
    with mounts.mounted(options) as folder:
        path = folder / "kill"
        read(path)
        before, end = disconnects(), time.monotonic() + seconds
        # with an open file, a forced unmount fails
        with opened(path), readers(path, MIB, MIB, 1 << 18, 1 << 16) as results:

            def enough() -> bool:
                """On a busy machine, no READ of the first seconds may be in flight at an umount."""
                late = time.monotonic() - end
                failed = set(results) - {wanted} and mounts.counters()["lanes_ended"]
                return late > 5 * SOON or (late > 0 and bool(failed))

            killed = 0
            while not enough():
                argv = ("python3", "-c", _READER, path)
                with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
                    assert child.stdout
                    child.stdout.read(1)
                    time.sleep(chance.uniform(0, 0.05))
                    child.kill()
                # the mount is busy and stays, but its RPCs end
                call("umount", "-f", folder, check=False)
                killed += 1
        assert killed > 0
        # a signal does not end the RPCs of a READ, but a forced unmount does:
        # EIO, or ERESTARTSYS of the RPC
        failures = set(results) - {wanted}
        assert failures
        assert failures <= {"errno 5", "errno 512"}
        counters = mounts.counters()
        assert counters["lanes_ended"] > 0
        assert read(path) == wanted
        # a READ that found no idle lane offered memory, which the server writes to after it is
        # revoked: the device of the client or the server reports that first
        reasons = {connection["last_disconnect"] for connection in mounts.connections()}
        assert reasons <= {"none", "QP access error", "disconnected by the peer"}
        assert disconnects() - before <= counters["lane_fallbacks"]


@pytest.mark.parametrize("options", VERSIONS)
def test_abandoned_calls_end_their_lanes_only(cards: Lab, long: bool, options: str) -> None:
    seconds = 600 if long else 15
    with nothing_lost(cards, "client"):
        kill_readers.at(timeout=seconds + 900)(cards, options, seconds)
    nothing_left(cards)


@on("client")
def restart_server(options: str, times: int) -> None:
    """Restart nfsd while data is read."""
    wanted = make_file("restart", 4)
    with mounts.mounted(options) as folder:
        with readers(folder / "restart", MIB) as results:
            for _ in range(times):
                time.sleep(2)
                call("sh", "-c", RESTARTED.script)
            time.sleep(2)
        assert {*results, read(folder / "restart")} == {wanted}


@pytest.mark.parametrize("options", VERSIONS[1:])
def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool, options: str) -> None:
    times = 50 if long else 2
    with nothing_lost(cards, "client"):
        restart_server.at(timeout=60 * times + 900)(cards, options, times)
    nothing_left(cards)


misbehave = on("client", timeout=900)(lane_client.misbehave)
send_mutants = on("client", timeout=3600)(lane_client.mutants)
serve_lanes = on("server")(lane_server.serve)


def test_a_client_whose_lanes_break_the_rules(cards: Lab) -> None:
    assert len(lane_client.CASES) > 20
    with nothing_lost(cards, "server"), damageable(cards):
        assert finished(misbehave, cards) == []
        nothing_left(cards)


@contextmanager
def hostile(blocks: int) -> Iterator[tuple[Path, bytes]]:
    """A mount of the hostile server, a file of so many blocks on it, and its contents."""
    wanted = random.Random(5).randbytes(BLOCK * blocks)  # noqa: S311 - no secret
    Path("/export/tricks").write_bytes(wanted)
    options = "vers=3,port=20050,mountproto=tcp,rsize=65536,timeo=100"
    with mounts.mounted(options) as folder:
        yield folder / "tricks", wanted


def is_right(file: int, room: mmap.mmap, wanted: bytes, block: int) -> bool:
    """Read a block; returns whether it is as it should be."""
    offset = block * BLOCK
    size = os.preadv(file, [room], offset)
    return size == BLOCK and room[:] == wanted[offset : offset + BLOCK]


def wait_for_lane(file: int, room: mmap.mmap, block: int) -> None:
    """Read a block until a lane carries the READ."""

    def used() -> bool:
        before = mounts.counters()["lane_calls"]
        os.preadv(file, [room], block * BLOCK)
        return mounts.counters()["lane_calls"] > before

    until("a READ on a lane", used, SOON, 0.1)


def ended_since(before: int, seconds: float) -> int:
    """Number of lanes that ended since; a worker ends them."""
    with suppress(TimeoutError):
        until("the end of a lane", lambda: mounts.counters()["lanes_ended"] > before, seconds, 0.05)
    return mounts.counters()["lanes_ended"] - before


@on("client", timeout=1800)
def read_tricks(names: list[str]) -> dict[str, int]:
    """Read each block of a server whose lanes play a trick at each, and an honest one between.

    Returns how many lanes ended at each trick.
    """
    total, room, wrong, ended = len(names), mmap.mmap(-1, BLOCK), list[str](), dict[str, int]()
    with hostile(total + 1) as (path, wanted), opened(path, os.O_RDONLY | os.O_DIRECT) as file:
        for number, name in enumerate(names):
            wait_for_lane(file, room, total)
            before = mounts.counters()
            right = is_right(file, room, wanted, number)
            # the Reply after it may be what the trick spoils
            right = right and is_right(file, room, wanted, total)
            if not right or mounts.counters()["lane_calls"] == before["lane_calls"]:
                wrong.append(name)
            # the first trick is honest, and ends none
            ended[name] = ended_since(before["lanes_ended"], SOON if number else 0.5)
        assert wrong == []
        # the connection that the lanes belong to is the same all the time
        assert disconnects() == 0
    return ended


def test_a_server_whose_lanes_break_the_rules(cards: Lab) -> None:
    with serving(serve_lanes, cards, 20050), nothing_lost(cards, "client"):
        ended = read_tricks(cards, list(lane_server.TRICKS))
    assert ended.pop("honest") == 0
    assert {name for name, count in ended.items() if not count} == set()


@on("client")
def read_leaving(block: int, seconds: float) -> None:
    """Read one block, whose Reply ends its lane, for some time."""
    began, room = time.monotonic(), mmap.mmap(-1, BLOCK)
    with hostile(block + 1) as (path, wanted), opened(path, os.O_RDONLY | os.O_DIRECT) as file:
        while time.monotonic() < began + seconds:
            assert is_right(file, room, wanted, block)
        counters, took = mounts.counters(), time.monotonic() - began
    # the delays are 10 ms, 20 ms, and so on; a tick of 4 ms makes 8 ms of the first one
    assert counters["lanes_connected"] > 1
    assert 0.008 * 2 ** (counters["lanes_connected"] - 2) < took + 0.004
    assert counters["lane_fallbacks"] > counters["lanes_connected"]


def test_lanes_that_end_at_once_connect_less_and_less_often(cards: Lab) -> None:
    # several lanes may connect before the first of them ends
    with (
        serving(serve_lanes, cards, 20050),
        nothing_lost(cards, "client"),
        set_parameters(cards, lanes=1),
    ):
        read_leaving(cards, list(lane_server.TRICKS).index("leaves"), 5)


@pytest.mark.nightly
def test_a_client_that_sends_what_it_likes_on_lanes(cards: Lab, mutants: int) -> None:
    with nothing_lost(cards, "server"), damageable(cards):
        words, failures = finished(send_mutants, cards, SEED, mutants)
        assert failures == [], f"seed {SEED}"
        assert sum(words.values()) == mutants
        assert {"answered", "ended"} <= set(words)
        print(words)
        nothing_left(cards)


def outcome_of(
    path: Path, file: int, room: mmap.mmap, wanted: bytes, block: int
) -> tuple[str, int]:
    """How a read ends, and the file, which is another one if NFS believes that it is."""
    there = wanted[block * BLOCK : (block + 1) * BLOCK]
    try:
        size = os.preadv(file, [room], block * BLOCK)
    except OSError as error:
        if error.errno == errno.ESTALE:
            os.close(file)
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        return "error", file
    if room[:size] != there[:size]:
        return "wrong", file
    return "right" if size == BLOCK else "short", file


@on("client", timeout=7200)
def read_mutants(total: int) -> None:
    """Read each block of a server whose Replies on lanes are mutated, and an honest one between."""
    outcomes, on_lanes, room = Counter[str](), 0, mmap.mmap(-1, BLOCK)
    wrong: list[tuple[int, str, str]] = []
    with hostile(total + 1) as (path, wanted):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for number in range(total):
            wait_for_lane(file, room, total)
            before = mounts.counters()["lane_calls"]
            outcome, file = outcome_of(path, file, room, wanted, number)
            on_lanes += mounts.counters()["lane_calls"] > before
            outcomes[outcome] += 1
            again, file = outcome_of(path, file, room, wanted, total)
            if outcome == "wrong" or again != "right":
                wrong.append((number, outcome, again))
        os.close(file)
    print(outcomes, on_lanes, "on lanes")
    assert wrong == []
    # a READ that found no lane was answered by the connection that the lanes belong to
    assert on_lanes > total // 2


@pytest.mark.nightly
def test_a_server_that_answers_as_it_likes_on_lanes(cards: Lab, mutants: int) -> None:
    print(f"seed {SEED}")
    with serving(serve_lanes, cards, 20050, SEED, mutants), nothing_lost(cards, "client"):
        read_mutants(cards, mutants)
