# SPDX-License-Identifier: Apache-2.0
"""Clients that make the server hold memory, and how long others wait meanwhile."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import CUT_OFF, SOUND
from testbed.hostile import PORT, SERVER, argv_of, bring
from testbed.mounts import HERE, mounted, nothing_lost, set_parameters
from testbed.scripts import beside
from testbed.unreceived_replies import ADDRESSES, FILL, THERE, addresses

__all__ = ["Held", "hold", "share_a_floor", "totals"]

FILE = "held"
# when the first is there the program ends, the second is there when it has sent all Calls
STOP, SENT = "/run/held", "/run/held.sent"
ALL_SENT = f"until test -e {SENT}; do sleep 0.2; done"
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


@dataclass(frozen=True)
class Held:
    """The memory that the server held for clients, and the waits of other clients."""

    charged: float
    """the most that the server charged to clients, in MiB"""
    limit: float
    """what the parameter server_memory allows, and the floors of all clients, in MiB"""
    least: float
    """what the other clients can make it hold: a quarter of server_memory each, less 1 MiB"""
    fenced: int | None
    """connections that the server ended because others waited for their memory, where it does"""
    ended: dict[str, int]
    """how the connections of the other clients had ended, by reason"""
    received: int
    """connections that had ended although they received Replies"""
    longest: float
    """the longest operation of 1 MiB on the mount, in seconds"""
    rounds: int
    """the number of such operations"""
    calm: float
    """the longest one before others held memory"""
    beside: float
    """the longest Call without chunks, which needs none of that memory"""


def totals(lab: Nodes) -> dict[str, tuple[int, ...]]:
    """The numbers of each line of the totals of our server."""
    lines = lab.run("server", "cat", f"{THERE}/totals").stdout.splitlines()
    words = [line.replace(" of ", " ").split() for line in lines]
    return {name: tuple(map(int, values)) for name, *values in words}


def nothing_held(lab: Nodes) -> None:
    """Wait until no page is charged to a client, and no client has a floor."""
    end = time.monotonic() + FENCED_WITHIN * lab.config.patience
    while any(held := [totals(lab).get(name, (0,))[0] for name in HELD]):
        assert time.monotonic() < end, dict(zip(HELD, held, strict=True))
        time.sleep(0.3)


def hold(
    lab: Nodes,
    kind: str,
    sources: Sequence[str] = ADDRESSES,
    pause: int = 0,
    missing: str = "",
    seconds: float = WORKS,
) -> Held:
    """Have eight connections of the sources send Calls, while an application works on a mount.

    See ``held_memory_node.py`` for ``kind`` and ``pause``.  The server gets no packets from the
    sources with the opcodes ``missing``; without acknowledgments it gets none at all, once it
    holds memory.  The application works for ``seconds`` after that.
    """
    bring(lab, "client")
    lab.run("server", "sh", "-c", FILL.replace("unreceived", FILE), "sh", "2")
    lab.run("client", "rm", "-f", STOP, SENT)
    numbers = map(str, (8, 8, _size(lab), pause))
    words = (SERVER, PORT, FILE, HERE, kind, *numbers, STOP, ",".join(sources))
    argv = argv_of("held_memory", *words)
    before = totals(lab)
    with (
        nothing_lost(lab, "server"),
        mounted(lab, "vers=3"),
        addresses(lab, "client", *sources),
    ):
        with beside(lab, "client", *argv) as work:
            try:
                with _missing(lab, sources, missing):
                    charged, limit = _watch(lab, work, kind, sources, missing, seconds, before)
            finally:
                lab.ssh("client").run("touch", STOP)
        report: dict[str, Any] = json.loads(work.result().stdout)
        after = totals(lab)
    nothing_held(lab)
    lab.run("server", "rm", f"/export/{FILE}")
    assert report["errors"] == []
    fenced = after["fenced"][0] - before["fenced"][0] if "fenced" in after else None
    return Held(
        charged, limit, len(sources) * SHARE - 1, fenced, report["ends"], report["received"],
        report["longest"], report["rounds"], report["calm"], report["beside"],
    )  # fmt: skip


def _size(lab: Nodes) -> int:
    """Of the largest READ or WRITE that the server takes, in bytes."""
    return min(1 << 20, int(lab.run("server", "cat", "/proc/fs/nfsd/max_block_size").stdout))


@contextmanager
def _filtered(lab: Nodes, script: str, undo: str, *words: str) -> Iterator[None]:
    """A script has the server get fewer packets, for a while."""
    lab.run("server", "sh", "-ec", script, "sh", *words)
    try:
        yield
    finally:
        lab.run("server", "sh", "-c", undo)


def _missing(
    lab: Nodes, sources: Sequence[str], opcodes: str
) -> contextlib.AbstractContextManager[None]:
    if not opcodes:
        return contextlib.nullcontext()
    return _filtered(lab, MISSING, FOUND, ",".join(sources), opcodes)


def _cut_off(
    lab: Nodes, sources: Sequence[str], wanted: bool
) -> contextlib.AbstractContextManager[None]:
    if not wanted:
        return contextlib.nullcontext()
    return _filtered(lab, CUT_OFF, SOUND, f"{{{','.join(sources)}}}")


def _watch(
    lab: Nodes,
    work: Future[Result],
    kind: str,
    sources: Sequence[str],
    missing: str,
    seconds: float,
    before: dict[str, tuple[int, ...]],
) -> tuple[float, float]:
    """The most that is charged, and the limit, until the server has ended a connection."""
    line, most = "reply_pages" if kind == "reads" else "read_pages", 0
    limit = FENCED_WITHIN * lab.config.patience
    lab.run("client", "sh", "-c", ALL_SENT, timeout=FENCED_WITHIN)
    with _cut_off(lab, sources, missing == ACKNOWLEDGMENTS):
        began = time.monotonic()
        while not work.done():
            now, age = totals(lab), time.monotonic() - began
            most, total = max(most, now[line][0]), now[line][1]
            fenced = "fenced" not in now or now["fenced"] > before["fenced"]
            if age > seconds and (fenced or age > limit):
                return most / 256, total / 256
            time.sleep(0.3)
    raise AssertionError(work.result().stdout)


def share_a_floor(lab: Nodes, workers: Sequence[str], rounds: int) -> tuple[dict[str, Any], int]:
    """Have clients without a floor work while others hold all that can be borrowed.

    Returns what the program says, and how many clients had no floor.
    """
    bring(lab, "client")
    lab.run("server", "sh", "-c", FILL.replace("unreceived", FILE), "sh", "2")
    lab.run("client", "rm", "-f", STOP, SENT)
    size = _size(lab)
    # the fewest MiB that the parameters allow: one floor, or none if messages of 1 MiB have headers
    floors, memory = 1 << 20, 4 << 20
    each = memory // 4 // size
    first = each + (floors > size)
    numbers = map(str, (size, first, each, rounds))
    words = (SERVER, PORT, FILE, *numbers, STOP, ",".join(ADDRESSES), ",".join(workers))
    with (
        nothing_lost(lab, "server"),
        set_parameters(
            lab, node="server", server_memory=4, server_floors=1, server_ack_timeout=3600
        ),
        addresses(lab, "client", *ADDRESSES, *workers),
    ):
        with beside(lab, "client", *argv_of("shared_floor", *words)) as work:
            lab.run("client", "sh", "-c", ALL_SENT, timeout=FENCED_WITHIN)
            held = (first + 3 * each) * size // 4096
            end = time.monotonic() + FENCED_WITHIN * lab.config.patience
            while (now := totals(lab))["reply_pages"][0] < held:
                assert time.monotonic() < end, now
                time.sleep(0.3)
            lab.run("client", "touch", STOP)
        report: dict[str, Any] = json.loads(work.result().stdout)
    nothing_held(lab)
    lab.run("server", "rm", f"/export/{FILE}")
    return report, now["clients_sharing"][0]
