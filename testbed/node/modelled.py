# SPDX-License-Identifier: Apache-2.0
"""Modelled cards of a node: their settings and counters, and a mount while one fails."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.node.files import read_from_server
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import call, until

# the network device of each
CARDS = {"card0": "v0", "card1": "v1"}
FAILURES = ("break", "link_down", "gone", "deleted")
SYSFS = Path("/sys/class/infiniband")
# that of cards that are added later
PROFILE = Path("/sys/module/nfsrdma_card/parameters/profile")
SIZE = 8 << 20
# a device that is gone waits 79 s for rpcrdma, without any load: see faults of other software
LIMIT = 600
FORK = multiprocessing.get_context("fork")


def order(card: str, name: str, value: int | str) -> None:
    Path("/sys/kernel/debug/nfsrdma_card", card, name).write_text(f"{value}\n")


def counters(card: str) -> dict[str, int]:
    # the core keeps what it has read for 10 ms
    time.sleep(0.05)
    folder = SYSFS / card / "ports/1/hw_counters"
    return {p.name: int(p.read_text()) for p in folder.iterdir() if p.name != "lifespan"}


def changes(card: str, before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in counters(card).items()}


def is_active(card: str) -> bool:
    return f"link {card}/1 state ACTIVE" in call("rdma", "link", check=False)


def add(card: str) -> None:
    call("rdma", "link", "add", card, "type", "nfsrdma_card", "netdev", CARDS[card])
    until(card, lambda: is_active(card), LIMIT)


def restore() -> None:
    """Load the module if it is not loaded, and add the cards that are missing."""
    if not PROFILE.exists():
        call("insmod", "/run/nfsrdma_card.ko")
    for card in CARDS:
        if not (SYSFS / card).exists():
            add(card)


def become(profile: str) -> list[str]:
    """Add both cards anew with a profile; returns the profile of each."""
    PROFILE.write_text(profile)
    for card in CARDS:
        call("rdma", "link", "delete", card)
        add(card)
    return profiles()


def profiles() -> list[str]:
    """The profile of each card."""
    folder = Path("/sys/kernel/debug/nfsrdma_card")
    return [(folder / card / "profile").read_text().strip() for card in CARDS]


def failures(*parameters: str) -> dict[str, str]:
    """Run the cases of card_verbs.ko: the expectation that failed, by case."""
    call("insmod", "/run/card_verbs.ko", *parameters)
    try:
        output = Path("/sys/kernel/debug/card_verbs").read_text()
    finally:
        call("rmmod", "card_verbs")
    results = dict(line.split(" ", 1) for line in output.splitlines())
    assert results
    return {name: result for name, result in results.items() if result != "ok"}


def write(name: str, seed: int, size: int = SIZE) -> bytes:
    """Write a file of the mount, and have it on the server; returns its data."""
    data = hashlib.shake_128(f"{seed}".encode()).digest(size)
    with (HERE / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


def read(name: str) -> bytes:
    """Read a file from the server, not from the page cache."""
    return read_from_server(HERE / name)


def compare(name: str, seed: int) -> None:
    """Write a file to the mount; the export has the same data, and the mount reads it back."""
    data = write(name, seed)
    assert Path("/export", name).read_bytes() == data, f"{name}: the export has other data"
    assert read(name) == data, f"{name}: other data is read"


@contextmanager
def load() -> Iterator[None]:
    """Write and read files during the block and a while after it, and compare each."""
    # a process: with a thread, each command would flush the open file in its fork, and wait
    files, ends = FORK.Value("i", 0), FORK.Event()

    def work() -> None:
        while not ends.is_set():
            compare("load", files.value)
            files.value += 1

    def wait_for(event: str, number: int) -> None:
        until(event, lambda: files.value >= number or not process.is_alive(), LIMIT, pause=0.05)

    process = FORK.Process(target=work)
    process.start()
    try:
        wait_for("a file", 1)
        yield
        wait_for("a file after it", files.value + 2)
    finally:
        ends.set()
        process.join(LIMIT)
    assert process.exitcode == 0


def fail(name: str) -> None:
    """Have the first card fail in one of the ways of FAILURES, and work again."""
    if name == "break":
        order("card0", "break", 0)
    elif name == "link_down":
        order("card0", "link_down", 1)
        until("down", lambda: not is_active("card0"), LIMIT)
        order("card0", "link_down", 0)
    else:
        if name == "gone":
            order("card0", "gone", 1)
        else:
            call("rdma", "link", "delete", "card0")
        until("removal", lambda: not (SYSFS / "card0").exists(), LIMIT)
        add("card0")


def each_failure() -> None:
    """The card fails under load in each way; the mount recovers."""
    with mounted("vers=3,timeo=50"):
        for name in FAILURES:
            with load():
                fail(name)
