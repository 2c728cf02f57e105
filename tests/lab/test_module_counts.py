# SPDX-License-Identifier: Apache-2.0
"""A known workload through our module: mountstats, the events and the wire count the same."""

import json
from collections import Counter
from pathlib import Path

import pytest
from wire.capture import Send, once
from wire.native import COMPILER, Wire
from wire.rpcrdma import Header

from nfsrdma_tools.lab.lab import Lab
from testbed import sniffer
from testbed.scripts import node_script

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

COUNT, SIZE = 23, 65536
NODE = node_script("counts")


def headers(wire: Wire, sends: list[Send], source: str) -> list[Header]:
    return [wire.decode(send.payload)[0] for send in once(sends) if send.source == source]


def chunks(found: list[Header], kind: str) -> list[int]:
    """Lengths of the Write chunks, or of the Read chunks, of some headers."""
    lists = {
        "write": [chunk for header in found for chunk in header.writes],
        "read": [read.segments for header in found for read in header.reads],
    }
    return [sum(segment.length for segment in chunk) for chunk in lists[kind]]


@pytest.mark.parametrize("kind", ("write", "read"), ids=("reads", "writes"))
def test_all_who_count_agree(module_pair: Lab, kind: str, tmp_path: Path) -> None:
    """23 reads of 64 KiB are 23 Write chunks of 65536 bytes; 23 writes, as many Read chunks."""
    lab, said = module_pair, {}

    def work() -> None:
        argv = ("python3", "-", kind, str(COUNT), str(SIZE))
        said.update(json.loads(lab.run("client", *argv, stdin=NODE, timeout=600).stdout))

    sends, wire = sniffer.listening(lab, work), Wire(tmp_path)
    lab.run("client", "umount", "/mnt")
    calls, replies = (headers(wire, sends, f"10.9.1.{host}") for host in (11, 1))
    assert chunks(calls, kind) == [SIZE] * COUNT
    # what the server says it wrote; the Read list is not returned
    assert chunks(replies, kind) == [SIZE] * COUNT * (kind == "write")
    counters = {"write_chunk_count": 0, "read_chunk_count": 0, f"{kind}_chunk_count": COUNT}
    assert said["counters"] == {**counters, "reply_chunk_count": 0, "nomsg_call_count": 0}
    assert said["rpcs"] == COUNT
    events = Counter(tuple(event) for event in said["events"])
    expected = {("chunk", kind, SIZE): COUNT, ("segment", kind, SIZE): COUNT}
    for name in ("mr_map", "mr_fastreg", "mr_remoteinv", "mr_unmap"):
        expected[name, "", SIZE] = COUNT
    assert {key: n for key, n in events.items() if key[2] == SIZE} == expected
    for name in ("marshal", "post", "reply"):
        assert sum(n for key, n in events.items() if key[0] == name) == said["every"]
