# SPDX-License-Identifier: Apache-2.0
"""A known workload through our module: mountstats, the events and the wire count the same."""

import mmap
import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from wire.capture import Send, once
from wire.native import COMPILER, Wire
from wire.rpcrdma import Header

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from testbed import sniffer
from testbed.node.mounts import mounted
from testbed.remote import on

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

COUNT, SIZE = 23, 65536
TRACING = Path("/sys/kernel/tracing")
COLUMNS = ("read_chunk_count", "write_chunk_count", "reply_chunk_count", "nomsg_call_count")


class Counted(NamedTuple):
    """What mountstats and the events count of some transfers.

    An event is its name, its kind of chunk, and its length, or 0.
    """

    columns: dict[str, int]
    transfers: int
    rpcs: int
    events: list[tuple[str, str, int]]


def move(file: int, kind: str) -> None:
    """``kind`` names the chunk: data that is read comes in Write chunks."""
    room = mmap.mmap(-1, SIZE)
    for turn in range(COUNT):
        done = (os.preadv if kind == "write" else os.pwritev)(file, [room], turn * SIZE)
        assert done == SIZE


def events() -> list[tuple[str, str, int]]:
    rows = []
    for line in (TRACING / "trace").read_text().splitlines():
        if match := re.search(r": nfsrdma_(\w+): (.*)", line):
            words = dict(word.split("=", 1) for word in match[2].split() if "=" in word)
            rows.append((match[1], words.get("kind", ""), int(words.get("length", "0"))))
    return rows


@on("client")
def count(kind: str) -> Counted:
    """Make COUNT transfers of SIZE bytes."""
    with mounted(f"vers=3,rsize={SIZE},wsize={SIZE}", source="10.9.1.1:/export") as folder:
        # a hole: making the file moves no data
        with (folder / "counted").open("wb") as new:
            new.truncate(COUNT * SIZE)
        before = mountstats.read(folder)
        (TRACING / "trace").write_text("")
        (TRACING / "events/nfsrdma/enable").write_text("1")
        file = os.open(folder / "counted", os.O_RDWR | os.O_DIRECT)
        move(file, kind)
        os.close(file)
        (TRACING / "events/nfsrdma/enable").write_text("0")
        change = mountstats.difference(mountstats.read(folder), before)
    operation = change.operations["READ" if kind == "write" else "WRITE"]
    return Counted(
        {name: change.xprts[0].counters[name] for name in COLUMNS},
        operation.operations,
        sum(each.operations for each in change.operations.values()),
        events(),
    )


def headers(wire: Wire, sends: list[Send], source: str) -> list[Header]:
    return [wire.decode(send.payload)[0] for send in once(sends) if send.source == source]


def chunks(messages: list[Header], kind: str) -> list[int]:
    """Lengths of the Write chunks, or of the Read chunks, of some headers."""
    lists = {
        "write": [chunk for header in messages for chunk in header.writes],
        "read": [read.segments for header in messages for read in header.reads],
    }
    return [sum(segment.length for segment in chunk) for chunk in lists[kind]]


@pytest.mark.parametrize("kind", ("write", "read"), ids=("reads", "writes"))
def test_all_who_count_agree(module_pair: Lab, kind: str, tmp_path: Path) -> None:
    """23 reads of 64 KiB are 23 Write chunks of 65536 bytes; 23 writes, as many Read chunks."""
    results: list[Counted] = []
    sends = sniffer.listening(module_pair, lambda: results.append(count(module_pair, kind)))
    (counted,), wire = results, Wire(tmp_path)
    calls, replies = (headers(wire, sends, f"10.9.1.{host}") for host in (11, 1))
    assert chunks(calls, kind) == [SIZE] * COUNT
    # what the server says it wrote; the Read list is not returned
    assert chunks(replies, kind) == [SIZE] * COUNT * (kind == "write")
    columns = {"write_chunk_count": 0, "read_chunk_count": 0, f"{kind}_chunk_count": COUNT}
    assert counted.columns == {**columns, "reply_chunk_count": 0, "nomsg_call_count": 0}
    assert counted.transfers == COUNT
    expected = {("chunk", kind, SIZE): COUNT, ("segment", kind, SIZE): COUNT}
    for name in ("mr_map", "mr_fastreg", "mr_remoteinv", "mr_unmap"):
        expected[name, "", SIZE] = COUNT
    assert Counter(event for event in counted.events if event[2] == SIZE) == expected
    for name in ("marshal", "post", "reply"):
        assert sum(event[0] == name for event in counted.events) == counted.rpcs
