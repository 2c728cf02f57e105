# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma trace` with filters counts what passes them; `trace nfsiostat` agrees with nfsiostat."""

import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import call
from testbed.node.transfers import read_blocks
from testbed.remote import on

MINE, OTHERS, SIZE = 5, 7, 65536
OPTIONS = f"vers=3,rsize={SIZE},wsize={SIZE},nolock"
SOURCE = "10.9.1.1:/export"
TRACE = ("nfsrdma", "trace", "--interval", "1", "--mount", str(HERE), "--procedure", "READ", "-j")


class Reader:
    """A process that reads blocks after a start signal."""

    def __init__(self, blocks: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.starts = fork.Event()
        self.process = fork.Process(target=self.read, args=(blocks,))
        self.process.start()

    def read(self, blocks: int) -> None:
        self.starts.wait()
        read_blocks(HERE / "filtered", blocks, SIZE)

    def finish(self) -> None:
        self.starts.set()
        self.process.join()
        assert self.process.exitcode == 0


def traced(probe_set: str, own: Callable[[int], tuple[str, ...]] = lambda pid: ()) -> int:
    """The RPCs of a trace while two processes read; ``own`` has options for the pid of one."""
    mine, other = Reader(MINE), Reader(OTHERS)
    words = own(mine.process.pid or 0)
    argv = (*TRACE[:2], probe_set, *TRACE[2:], *words)
    trace = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert trace.stdout
    try:
        assert "missing" in trace.stdout.readline()
        for reader in (other, mine):
            reader.finish()
        rows: list[dict[str, Any]] = []
        empty, least = 0, MINE if words else MINE + OTHERS
        # until three intervals in a row have no rows, and the rows count all RPCs: an RPC's end is
        # counted later than its data arrives, by how much depends on the machine's load
        while empty < 60 and (empty < 3 or total(rows) < least):
            interval = json.loads(trace.stdout.readline())["rows"]
            empty = 0 if interval else empty + 1
            rows += interval
    finally:
        trace.terminate()
        trace.wait()
    assert {row["procedure"] for row in rows} == {"READ"}
    return total(rows)


def total(rows: list[dict[str, Any]]) -> int:
    """RPCs by the rows of chunks or latency; the slowest RPCs have rows of their own."""
    return sum(row.get("rpcs", row.get("count", 0)) for row in rows if not row.get("slowest"))


@on("client", timeout=1800)
def filters() -> None:
    """A trace with the pid of a process that reads MINE blocks counts MINE."""
    with mounted(OPTIONS, source=SOURCE):
        for probe_set in ("chunks", "latency"):
            assert traced(probe_set, lambda pid: ("--pid", str(pid))) == MINE
        assert traced("chunks") == MINE + OTHERS


@on("client")
def nfsiostats() -> tuple[list[str], list[str]]:
    """The lines of ours, and of nfsiostat, for a mount over TCP, which both count right."""
    with mounted(f"{OPTIONS},proto=tcp,port=2049", source=SOURCE):
        read_blocks(HERE / "filtered", MINE, SIZE)
        time.sleep(1)
        programs = (("nfsrdma", "trace", "nfsiostat", "--mount"), ("nfsiostat",))
        ours, theirs = (call(*words, HERE).splitlines() for words in programs)
        return ours, theirs


@pytest.mark.nightly
def test_filters_and_nfsiostat(pair: Lab) -> None:
    pair.run("server", "sh", "-ec", "truncate -s 4M /export/filtered; chmod a+rw /export/filtered")
    try:
        filters(pair)
        same_columns(*nfsiostats(pair))
    finally:
        pair.run("server", "rm", "/export/filtered")


def same_columns(ours: list[str], theirs: list[str]) -> None:
    """Over TCP with one connection both are right; the mount's age may differ by a second."""
    assert [line.split()[:1] for line in ours if ":" in line] == [
        line.split()[:1] for line in theirs if ":" in line
    ]
    heads = [n for n, line in enumerate(theirs) if line.startswith(("read:", "write:"))]
    assert len(heads) == 2
    for head in heads:
        assert ours[head] == theirs[head]
        # kB/op, retrans, RTT, exe, queue and errors do not depend on the age
        assert ours[head + 1].split()[2:] == theirs[head + 1].split()[2:]
