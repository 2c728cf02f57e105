# SPDX-License-Identifier: Apache-2.0
"""A task that is killed takes nothing from others: the connection lives, and memory returns."""

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from multiprocessing import Process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.node.files import read_from_server
from testbed.node.mounts import connections, counters, mounted
from testbed.node.programs import call, until
from testbed.remote import on

Record = Callable[[str, object], None]
EXPORTED = "/export/abandoned"
MAKE = (
    f"mkdir -p {EXPORTED}/many && cd {EXPORTED}/many"
    " && seq -f 'name-of-a-file-%06g' 1500 | xargs touch"
)
KILLS, SEED = 60, "tests"
# tasks that have a Call in flight when they are killed
FEWEST = 5
# longer than a Reply may take, shorter than the minute after which one that is due is given up
SETTLED = 45.0
SIZE = 256 << 10


class Killed(NamedTuple):
    """Sums of the numbers in debugfs before and after, the number of tasks, seconds."""

    before: dict[str, int]
    after: dict[str, int]
    tasks: int
    slowest: float
    last_disconnect: str


def registered() -> int:
    """Memory regions of the devices, as the RDMA core counts them (rdma-resource(8))."""
    return sum(device["mr"] for device in json.loads(call("rdma", "-j", "resource", "show")))


def numbers() -> dict[str, int]:
    """Sums of the numbers in debugfs of all connections."""
    total = counters()
    for row in connections():
        for name, value in row.items():
            if value.isdigit():
                total[name] = total.get(name, 0) + int(value)
    return total


def list_for_ever(folder: Path) -> None:
    """List a directory from the server, again and again."""
    while True:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        list(folder.iterdir())


def read_until(done: Event, path: Path, noise: bytes) -> None:
    """Read a file from the server, again and again; each byte is right."""
    while not done.is_set():
        assert read_from_server(path) == noise


def settle() -> dict[str, int]:
    """The numbers when no Call is under way any more, or after SETTLED seconds."""
    end = time.monotonic() + SETTLED
    while True:
        now = numbers()
        kept = (now["credits_used"], now["calls_abandoned"], now.get("slots_kept", 0))
        if not any(kept) or time.monotonic() > end:
            return now
        time.sleep(0.1)


def kill_listings(folder: Path, seconds: float) -> tuple[int, float]:
    """Kill KILLS tasks or more, for ``seconds`` or longer, until FEWEST had a Call in flight.

    Returns how many, and the slowest end of one.
    """
    rng = random.Random(SEED)  # noqa: S311 - no secret
    slowest, killed, end = 0.0, 0, time.monotonic() + seconds
    enough = numbers()["calls_kept"] + FEWEST

    def goes_on() -> bool:
        if killed < KILLS or time.monotonic() < end:
            return True
        # on a busy host, more tasks are killed before they have sent one
        return killed < 20 * KILLS and numbers()["calls_kept"] < enough

    while goes_on():
        killed += 1
        victim = Process(target=list_for_ever, args=(folder,))
        victim.start()
        time.sleep(rng.uniform(0.02, 0.12))
        victim.kill()
        start = time.monotonic()
        victim.join()
        slowest = max(slowest, time.monotonic() - start)
    return killed, slowest


@on("client")
def killed_beside_a_reader(options: str, seconds: float) -> Killed:
    """Kill tasks that list a directory while the server writes the names, beside a reader."""
    noise, done = os.urandom(SIZE), multiprocessing.Event()
    regions = registered()
    with mounted(options) as mount:
        folder = mount / "abandoned"
        (folder / "file").write_bytes(noise)
        before = settle()
        reader = Process(target=read_until, args=(done, folder / "file", noise))
        reader.start()
        tasks, slowest = kill_listings(folder / "many", seconds)
        done.set()
        reader.join()
        assert reader.exitcode == 0, "the reader beside found a wrong byte"
        after, last = settle(), connections()[0]["last_disconnect"]
    until(f"{regions} memory regions, as before", lambda: registered() == regions, 300, 0.5)
    return Killed(before, after, tasks, slowest, last)


@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize("carrier", ("ours", "both_ours"))
@pytest.mark.parametrize("options", ("vers=3", "vers=4.2"), ids=("v3", "v4"))
def test_listings_are_killed_and_the_connection_lives(
    carrier: str, options: str, request: pytest.FixtureRequest, long: bool, record_property: Record
) -> None:
    lab: Lab = request.getfixturevalue(carrier)
    lab.run("server", "sh", "-ec", MAKE)
    seconds = 600 if long else 0
    try:
        killed = killed_beside_a_reader.at(timeout=900 + seconds)(lab, options, seconds)
    finally:
        lab.run("server", "rm", "-r", EXPORTED)
    before, after = killed.before, killed.after
    assert after["disconnects"] == before["disconnects"], killed.last_disconnect
    assert (after["credits_used"], after["calls_abandoned"], after["slots_kept"]) == (0, 0, 0)
    # at least these tasks were killed with a Call in flight
    kept = after["calls_kept"] - before["calls_kept"]
    assert kept >= FEWEST
    record_property("tasks killed", killed.tasks)
    record_property("Calls kept", kept)
    record_property("slowest end of a task [s]", round(killed.slowest, 3))
