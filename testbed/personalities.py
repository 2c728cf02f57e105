# SPDX-License-Identifier: Apache-2.0
"""Our module on both ends of modelled cards: mounts with a personality, and what they may leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import HERE, connections, mounted, set_to
from testbed.peers.site import FOLDER

__all__ = [
    "LIMIT",
    "SIDES",
    "VERSIONS",
    "agreed",
    "compare",
    "counted",
    "hostile_files",
    "in_effect",
    "nothing_left",
    "serves_others",
]

VERSIONS = ("vers=3", "vers=4.2")
LIMIT = 600.0
# of debugfs: transports of the client, connections of the server
SIDES = ("nfsrdma", "nfsrdma-server")
_MAKE = f"""
mkdir -p {FOLDER}
head -c 4194304 /dev/urandom > {FOLDER}/data
head -c 65536 /dev/urandom > {FOLDER}/written
"""
# $1 bytes, read with direct I/O of each further size
_COMPARE = f"""
head -c $1 /dev/urandom > /export/compared
shift
cmp /export/compared {HERE}/compared
for size in "$@"; do
	dd if={HERE}/compared of=/run/compared bs=$size iflag=direct status=none
	cmp /export/compared /run/compared
done
rm -f /export/compared /run/compared
"""
_TOTALS = "cat /sys/kernel/debug/nfsrdma-server/totals"
# of the server: its connections, and pages that a client may read or that are charged to one
_USED = ("connections", "exposed_pages", "granted_pages", "padded_pages", "reply_pages")


@contextmanager
def agreed(lab: Nodes, name: str) -> Iterator[None]:
    """New transports request a personality, and the server accepts it."""
    set_to(lab, "client", "personality", name)
    set_to(lab, "server", "server_personalities", name)
    try:
        yield
    finally:
        set_to(lab, "client", "personality", "read-write")
        set_to(lab, "server", "server_personalities", "")


def in_effect(lab: Nodes) -> list[list[str]]:
    """The personalities of the client's transports, and of the server's connections."""
    return [
        sorted(connection["personality"] for connection in connections(lab, folder=side))
        for side in SIDES
    ]


def counted(lab: Nodes, side: str, *names: str) -> list[int]:
    """Sums over the connections of one of ``SIDES``; 0 for what a connection does not have."""
    rows = connections(lab, folder=side)
    return [sum(int(row.get(name, "0").split()[0]) for row in rows) for name in names]


def compare(lab: Nodes, size: int, *blocks: int) -> None:
    """A file of ``size`` bytes is equal on both sides of a mount, also by direct I/O of blocks."""
    words = (str(size), *map(str, blocks))
    lab.run("client", "sh", "-ec", _COMPARE, "sh", *words, timeout=LIMIT)


def nothing_left(lab: Nodes) -> None:
    """The server has no connection, and no client can read its memory or is charged for pages."""
    end = time.monotonic() + LIMIT
    while True:
        rows = [line.split() for line in lab.run("server", "sh", "-c", _TOTALS).stdout.splitlines()]
        totals = {row[0]: int(row[1]) for row in rows}
        if not any(totals[name] for name in _USED):
            return
        assert time.monotonic() < end, totals
        time.sleep(0.2)


@contextmanager
def hostile_files(lab: Nodes) -> Iterator[None]:
    """Files on the server that hostile peers may damage."""
    lab.run("server", "sh", "-ec", _MAKE)
    try:
        yield
    finally:
        lab.run("server", "rm", "-r", str(FOLDER))


def serves_others(lab: Nodes) -> None:
    """After a hostile client ends, the server holds no resources of it, and serves correct data."""
    nothing_left(lab)
    with mounted(lab, "vers=3"):
        lab.run("client", "cmp", f"{FOLDER}/data", f"{HERE}/{FOLDER.name}/data", timeout=LIMIT)
    nothing_left(lab)
