# SPDX-License-Identifier: Apache-2.0
"""All probe sets count one load, compiled with the kernel's headers, and without, as in containers.

The machine is client and server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import probe_sets, session
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.row_filter import of_mount
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.session import Session
from testbed.node.mounts import HERE, drop_caches, mounted
from testbed.node.programs import call
from testbed.node.transfers import read_blocks, write_blocks
from testbed.remote import on

__all__ = ["DONE", "Counted", "by_procedure", "count_alike"]

MOUNT, SIZE, AHEAD = str(HERE), 65536, 2 << 20
# the RPCs of the direct load, by procedure, among others
DONE = {"READ": 23, "WRITE": 17}
# seconds, in which the ends of RPCs are counted
SETTLES = 5
# what a container does not have
HIDDEN = ("/usr/lib/modules", "/usr/src", "/usr/include")
BUILD = Path("/lib/modules") / os.uname().release / "build"
Rows = dict[str, list[dict[str, Any]]]
Clients = dict[int, tuple[str, ...]]


class Counted(NamedTuple):
    """The rows by probe set, RPCs in mountstats, missing events, and seconds to start by way.

    Transmissions are those of both loads by procedure, also of Calls that were sent again.
    """

    direct: Rows
    buffered: Rows
    operations: dict[str, int]
    transmissions: dict[str, int]
    missing: list[str]
    starts: dict[str, list[float]]


def by_procedure(rows: list[dict[str, Any]], count: str) -> dict[str, int]:
    """A count of the rows of the mount, by procedure; rows of a server name no mount.

    Another mount of the same superblock shares its client: the rows of both name both.
    """
    return {row["procedure"]: row[count] for row in of_mount(rows, MOUNT)}


@contextmanager
def with_headers() -> Iterator[None]:
    """bcc finds the installed headers by itself."""
    assert (BUILD / "Makefile").exists()
    with patch.object(session, "_headers", nullcontext):
        yield


@contextmanager
def without_headers() -> Iterator[None]:
    """This process has a mount namespace of its own, without headers."""
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    # Python 3.12 and later, which the machines have
    os.unshare(os.CLONE_NEWNS)  # type: ignore[attr-defined]
    try:
        call("mount", "--make-rprivate", "/")
        for folder in HIDDEN:
            call("mount", "-t", "tmpfs", "none", folder)
        assert not BUILD.exists()
        yield
    finally:
        os.setns(before, os.CLONE_NEWNS)  # type: ignore[attr-defined]
        os.close(before)


WAYS = {"with": with_headers, "without": without_headers}


def work(folder: Path) -> None:
    read_blocks(folder / "counted", DONE["READ"], SIZE)
    write_blocks(folder / "counted", DONE["WRITE"], SIZE)


def read_ahead(folder: Path) -> None:
    drop_caches()
    assert len((folder / "ahead").read_bytes()) == AHEAD


def counts(row: dict[str, Any]) -> dict[str, Any]:
    """The counts of a row and what they are of: no times, which two programs measure apart."""
    return {
        name: value
        for name, value in row.items()
        if name == "sizes"
        or (isinstance(value, int | str) and not name.endswith(("_ns", "_us")) and name != "late")
    }


class Counting:
    """A session of all probe sets."""

    def __init__(self, attached: Session) -> None:
        self.session = attached
        self.lost = lost(attached)
        self.first = {name: probe_sets.probe_set(name).read(attached) for name in attached.sets}

    def records(self, name: str, known: Clients) -> list[dict[str, Any]]:
        """The rows that a probe set counted since the first reading."""
        probe_set = probe_sets.probe_set(name)
        change = probe_set.difference(probe_set.read(self.session), self.first[name])
        return probe_set.records(change, known)

    def rows(self, known: Clients) -> Rows:
        """The counts of all sets but cpu; the slowest RPCs are measurements of the host."""
        return {
            name: [counts(row) for row in self.records(name, known) if not row.get("slowest")]
            for name in self.first
            if name != "cpu"
        }

    def samples(self) -> int:
        return sum(row["samples"] for row in self.records("cpu", {}) if row["layer"] == "busy")


def settled(ways: dict[str, Counting], known: Clients) -> Rows:
    """The stable rows, the same in each way: an RPC's end is counted after its caller runs."""
    rows: dict[str, Rows] = {}
    for _ in range(60):
        time.sleep(2)
        before, rows = rows, {way: counting.rows(known) for way, counting in ways.items()}
        if rows == before and all(other == rows["without"] for other in rows.values()):
            break
    for counted in rows.values():
        assert counted == rows["without"]
    assert min(counting.samples() for counting in ways.values()) > 0
    return rows["without"]


def starts(turns: int, ways: tuple[str, ...]) -> dict[str, list[float]]:
    """Seconds until all probe sets are attached, in turn."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way in ways:
            with WAYS[way]():
                began = time.monotonic()
                with probe_sets.attached(probe_sets.NAMES):
                    seconds[way].append(time.monotonic() - began)
    return seconds


@on("client", timeout=1800)
def count_alike(turns: int, *ways: str) -> Counted:
    """Count a load in each way at the same time; afterwards start all sets ``turns`` times."""
    options = f"vers=3,rsize={SIZE},wsize={SIZE}"
    with mounted(options, source="10.9.1.1:/export") as folder, ExitStack() as stack:
        for name, length in (("counted", DONE["READ"] * SIZE), ("ahead", AHEAD)):
            with (folder / name).open("wb") as file:
                file.truncate(length)
        known, sessions = clients(), {}
        assert any(MOUNT in names for names in known.values())
        for way in ways:
            with WAYS[way]():
                sessions[way] = stack.enter_context(probe_sets.attached(probe_sets.NAMES))
        # the kernel allocates rows at their first use; on 6.1 the second program loses RPCs then
        work(folder)
        read_ahead(folder)
        time.sleep(SETTLES)
        counting = {way: Counting(attached) for way, attached in sessions.items()}
        began = mountstats.read(folder)
        work(folder)
        direct = settled(counting, known)
        stats = mountstats.difference(mountstats.read(folder), began)
        read_ahead(folder)
        buffered = settled(counting, known)
        ended = mountstats.difference(mountstats.read(folder), began).operations
        for counter in counting.values():
            losses = (lost(counter.session) - counter.lost)._asdict()
            assert not any(losses.values()), losses
        first, *others = (sorted(m.event for m in each.missing) for each in sessions.values())
        assert all(missing == first for missing in others)
        operations = {n: o.operations for n, o in stats.operations.items() if o.operations}
        assert by_procedure(direct["chunks"], "rpcs") == operations
        assert DONE.items() <= operations.items()
        stack.close()
        transmissions = {name: operation.transmissions for name, operation in ended.items()}
        return Counted(direct, buffered, operations, transmissions, first, starts(turns, ways))
