# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they use a mount."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Event, Process
from pathlib import Path
from typing import Any

from lab.optimistic.faults import steady
from lab.optimistic.graph import graph

from testbed.node.grants import (
    BLOCK,
    CARDS,
    EXPORT,
    MIB,
    Reader,
    disconnects,
    made,
    mounted_export,
    seeded,
)
from testbed.node.mounts import HERE, connections, counters, parameters
from testbed.node.programs import call, until
from testbed.remote import on

# seconds until processes that were killed have ended
LIMIT = 120


def _read_on(path: Path, size: int, begun: Callable[[], None] = lambda: None) -> None:
    """Read a file of 4 MiB at random places, until killed."""
    with Reader(path) as reader:
        begun()
        while True:
            reader.read(random.randrange(4 * MIB // size) * size, size)  # noqa: S311 - no secret


def list_on(folder: Path, begun: Callable[[], None]) -> None:
    """List a folder whose pages the client has dropped, until killed."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    begun()
    while True:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        for _ in os.scandir(file):
            pass


def kill_one(target: Callable[..., None], *args: object, after: float) -> None:
    """Fork a process, and kill it some seconds after it has begun.

    It is forked because a program takes longer than that to start in a slow machine.
    """
    begun = Event()
    process = Process(target=target, args=(*args, begun.set))
    process.start()
    begun.wait()
    time.sleep(after)
    process.kill()
    process.join()


@on("client", timeout=900)
def check_killed_readers(rounds: int) -> None:
    """Kill processes that read."""
    data, chance = made(EXPORT / "killed", 15), seeded(16)
    with mounted_export(), Reader("killed") as reader:
        reader.granted()
        for _ in range(rounds):
            kill_one(_read_on, HERE / "killed", BLOCK, after=chance.uniform(0, 0.05))
        assert b"".join(reader.read(n * MIB, MIB) for n in range(4)) == data
        assert disconnects() == 0
        assert counters()["optimistic_reads"] > 0


def _regions() -> int:
    """Memory regions of the client's transports; one that connects again has none."""
    return sum(int(each.get("mrs", 0)) for each in connections())


@on("client", timeout=1800)
def check_killed_listings(seconds: float) -> int:
    """Kill processes that list folders, while another one reads: `timeout -s KILL .01 ls -lR`.

    Returns their number.
    """
    folder = EXPORT / "listed"
    folder.mkdir()
    for name in range(300):
        (folder / f"a-name-{name:0100}").touch()
    data, chance, regions = made(EXPORT / "beside", 15), seeded(16), list[int]()
    with mounted_export("vers=3"), steady("beside", data, 64 * BLOCK) as results:
        until("reads", lambda: results["right"] > 10)
        before, end = _regions(), time.monotonic() + seconds
        while time.monotonic() < end:
            kill_one(list_on, HERE / "listed", after=chance.uniform(0, 0.03))
            regions.append(_regions())
        reasons = [each["last_disconnect"] for each in connections()]
        assert disconnects() == 0, reasons
    call("rm", "-r", folder)
    # the Replies of a few are under way
    assert max(regions) <= before + 8
    return len(regions)


# --- a storm ---


def _list_again(folder: Path) -> None:
    """List a folder, until killed. A kill ends these Calls; it does not end a READ."""
    while True:
        list(folder.iterdir())


def _change_on(folder: Path) -> None:
    """Change a folder of the server, so that each listing asks the server."""
    while True:
        (folder / "changing").touch()
        (folder / "changing").unlink()


def _spin() -> None:
    while True:
        pass


class Users:
    """Processes that use the mount: some read a file, most list a folder."""

    def __init__(self, chance: random.Random) -> None:
        processes = [Process(target=_list_again, args=(HERE / "storm.d",)) for _ in range(12)]
        size = chance.choice((BLOCK, 65536))
        processes += [Process(target=_read_on, args=(HERE / "storm", size)) for _ in range(4)]
        self.processes = processes
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


def _break_all() -> None:
    (CARDS / "card0" / "break").write_text("0")


def _connects() -> int:
    return sum(int(each["connects"]) for each in connections())


def _round(users: Users, chance: random.Random) -> None:
    """Break the connection; when it is there again, kill its users, and break it again.

    Users that wait for the new connection send at once, and one sends the Calls of all. sunrpc
    hands another one the lock if it has begun to wait and has not yet seen that its Call is sent
    (xprt_prepare_transmit() in net/sunrpc/xprt.c): a race of few instructions, which users that
    run late may lengthen and no round can force.
    """
    # Replies wait for local invalidations
    before = counters()["local_invalidations"]
    until("invalidations", lambda: counters()["local_invalidations"] >= before + 20)
    connects = _connects()
    users.schedule(os.SCHED_IDLE)
    _break_all()
    until("a new connection", lambda: _connects() > connects, pause=0.001)
    time.sleep(chance.uniform(0, 0.05))
    for step in chance.sample((users.kill, _break_all), 2):
        step()


def _storm(rounds: int, chance: random.Random) -> None:
    """Kill users of the mount, and break its connection, again and again: no user survives."""
    # this process is on time; those that it starts are not
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    for _ in range(rounds):
        users = Users(chance)
        try:
            _round(users, chance)
        finally:
            users.kill()
        users.schedule(os.SCHED_OTHER)
        assert users.alive() == 0


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


@on("client", timeout=3600)
def check_storm(rounds: int, personality: str, seed: str) -> int:
    """Kill readers while their connection breaks again and again, and Replies take some time.

    A client that invalidates by itself, with a card that is late, has Replies that wait when the
    connection breaks. Processes that spin have idle-class processes run late.  Returns how often
    the worker of the client took the lock from a killed task.
    """
    folder, late = EXPORT / "storm.d", CARDS / "card0" / "completion_delay"
    folder.mkdir()
    for n in range(100):
        (folder / f"a-name-{n:050}").touch()
    data = made(EXPORT / "storm", 45)
    with (
        parameters(registration="frwr-local", inline_recv=1024, personality=personality),
        mounted_export("vers=3,noac,rsize=65536"),
    ):
        # 20 ms, in nanoseconds
        late.write_text("20000000")
        try:
            with (
                _beside((_change_on, (folder,)), (_spin, ()), (_spin, ())),
                graph(("nfr_client_unlock_worker",), "xprt_release_xprt") as lines,
            ):
                _storm(rounds, seeded(seed))
        finally:
            late.write_text("0")
        with Reader("storm") as reader:
            assert b"".join(reader.read(n * 65536, 65536) for n in range(64)) == data
        # each round breaks the connection
        assert disconnects() >= rounds
    call("rm", "-r", folder)
    return sum("xprt_release_xprt" in line for line in lines)
