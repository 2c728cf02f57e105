# SPDX-License-Identifier: Apache-2.0
"""Probe sets, mountstats, bpftrace and the wire count the same of a known workload."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wire.capture import once
from wire.native import COMPILER, Wire
from wire.rpcrdma import Header

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes.sets.server import COUNTS
from testbed import sniffer
from testbed.labs import OURS, THEIRS, ModulePair, lent
from testbed.scripts import node_script
from testbed.tracing import SAID, tracing

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

NODE = node_script("trace")
READS, READ_SIZE, WRITES, ATTRS = 23, 65536, 17, 5
MAKE = """
rm -rf /export/traced && mkdir -p /export/traced/names && cd /export/traced
: > data; seq -f names/name-%05.0f 10000 | xargs touch; chmod -R a+rwX .
"""
NONE_LOST = {"rpcs": 0, "regions": 0, "credits": 0, "windows": 0}
# how a Call may go inline, as the kernel's transport tells them apart
INLINE = ("calls_inline", "calls_pulled_up", "calls_gathered")


def counted(lab: Lab) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(
        lab.run("client", "python3", "-", stdin=NODE, timeout=1800).stdout
    )
    return said


def rows(said: dict[str, Any], probe_set: str) -> dict[str, dict[str, Any]]:
    """The rows of the mount's own client, by procedure."""
    found = [row for row in said["rows"][probe_set] if row["mount"] == "/mnt"]
    return {row.get("procedure", ""): row for row in found}


def total(found: dict[str, dict[str, Any]], *names: str) -> int:
    return sum(row[name] for row in found.values() for name in names)


@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize(
    "client",
    (pytest.param("pair", marks=pytest.mark.nightly), "module_pair"),
    ids=("rpcrdma", "nfsrdma"),
)
def test_all_who_count_agree(client: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    lab: Lab = request.getfixturevalue(client)
    said: dict[str, Any] = {}
    lab.run("server", "sh", "-ec", MAKE)
    sends = sniffer.listening(lab, lambda: said.update(counted(lab)))
    lab.run("client", "umount", "/mnt")
    lab.run("server", "rm", "-r", "/export/traced")
    wire = Wire(tmp_path)
    headers = [wire.decode(s.payload)[0] for s in once(sends) if s.source == "10.9.1.11"]
    chunks, regions = rows(said, "chunks"), rows(said, "registrations")[""]
    assert said["missing"] == []
    assert said["lost"] == NONE_LOST
    as_done(chunks)
    as_mountstats_says(chunks, said, "segments" if client == "pair" else "chunks")
    as_bpftrace_says(chunks, regions, said["bpftrace"])
    as_on_the_wire(chunks, headers)
    as_long_as_mountstats_says(rows(said, "latency"), said["operations"])


def as_done(chunks: dict[str, dict[str, Any]]) -> None:
    reads, writes = chunks["READ"], chunks["WRITE"]
    assert (reads["rpcs"], reads["replies_write"]) == (READS, READS)
    assert reads["write_bytes"] == reads["write_used"] == READS * READ_SIZE
    # from 2^16 bytes on
    assert {n: c for n, c in enumerate(reads["sizes"]["write"]) if c} == {17: READS}
    assert (writes["rpcs"], total({"": writes}, *INLINE)) == (WRITES, WRITES)
    assert writes["read_bytes"] == 0
    assert chunks["GETATTR"]["rpcs"] >= ATTRS
    names = chunks.get("READDIR") or chunks["READDIRPLUS"]
    assert names["replies_reply"] + names["replies_write"] == names["rpcs"] > 0


# mountstats' column, and what it counts: the kernel's transport counts a chunk's segments
COLUMNS = {
    "write_chunk_count": {"segments": "write_segments", "chunks": "replies_write"},
    "reply_chunk_count": {"segments": "reply_segments", "chunks": "replies_reply"},
    "read_chunk_count": {"segments": "read_segments", "chunks": "calls_read"},
    "nomsg_call_count": dict.fromkeys(("segments", "chunks"), "calls_position_zero"),
    "pullup_copy_count": dict.fromkeys(("segments", "chunks"), "pulled_up_bytes"),
    "fixup_copy_count": dict.fromkeys(("segments", "chunks"), "fixed_up_bytes"),
}


def as_mountstats_says(chunks: dict[str, dict[str, Any]], said: dict[str, Any], what: str) -> None:
    assert {name: row["rpcs"] for name, row in chunks.items()} == {
        name: each["operations"] for name, each in said["operations"].items()
    }
    assert {column: total(chunks, names[what]) for column, names in COLUMNS.items()} == {
        column: said["counters"][column] for column in COLUMNS
    }
    counters = said["counters"]
    assert total(chunks, "write_used", "reply_used") == counters["total_rdma_reply"]
    assert total(chunks, "write_bytes", "reply_bytes") == counters["total_rdma_request"]


def as_bpftrace_says(
    chunks: dict[str, dict[str, Any]], regions: dict[str, Any], maps: dict[str, Any]
) -> None:
    assert total(chunks, *INLINE, "calls_read", "calls_position_zero") == maps["calls"]
    assert total(chunks, "write_bytes") == maps.get("write_bytes", 0)
    assert total(chunks, "reply_segments") == maps.get("reply_segments", 0)
    assert total(chunks, "write_used", "reply_used") == maps["used"]
    assert regions["mapped"] == regions["unmapped"] == maps["mapped"]
    assert regions["remote_invalidations"] == maps.get("remote", 0)
    assert regions["local_invalidations"] == maps.get("local", 0)
    # each has the other's probes within its own time
    for spent in ("mapping_ns", "invalidating_ns"):
        assert maps[spent] / 5 < regions[spent] < maps[spent] * 5


def as_on_the_wire(chunks: dict[str, dict[str, Any]], headers: list[Header]) -> None:
    """Mounting and unmounting are captured too, but move no data in Write chunks."""
    writes = [chunk for header in headers for chunk in header.writes]
    assert len([c for c in writes if sum(s.length for s in c) == READ_SIZE]) == READS
    assert total(chunks, "reply_segments") <= sum(len(h.reply or ()) for h in headers)
    assert total(chunks, "replies_write") == len(writes)


def as_long_as_mountstats_says(
    times: dict[str, dict[str, Any]], operations: dict[str, dict[str, int]]
) -> None:
    """The phases are all of an RPC's time.

    Mountstats begins a bit earlier and counts whole milliseconds. It ends before the event does
    that ends ours, and a busy host may stop the client between the two: see as_bpftrace_says().
    """
    ours = {name: row for name, row in times.items() if not row.get("slowest")}
    assert {name: row["count"] for name, row in ours.items()} == {
        name: each["operations"] for name, each in operations.items()
    }
    for row in ours.values():
        assert sum(row["phases_us"].values()) == pytest.approx(row["mean_us"])
        assert sum(row["times"]) == row["count"]
    calls = sum(row["count"] for row in ours.values())
    spent = sum(row["count"] * row["mean_us"] for row in ours.values()) / 1000
    theirs = sum(each["execute_ms"] for each in operations.values())
    assert theirs / 5 < spent < theirs * 5 + calls


@pytest.fixture(params=(OURS, THEIRS))
def served(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lent(pair_file.bring(request.param, THEIRS), pair_file.restart, request)


# reads and writes of NFSv3, as nfsd counts them
NFSD = "awk '/^proc3/ { print $9, $10 }' /proc/net/rpc/nfsd"


@pytest.mark.nightly
def test_a_server_counts_what_it_is_asked(served: Lab, request: pytest.FixtureRequest) -> None:
    lab, theirs = served, request.node.callspec.params["served"] == THEIRS
    lab.run("server", "sh", "-ec", MAKE)
    with tracing(lab, "server", "server"):
        before = lab.run("server", "sh", "-c", NFSD).stdout.split()
        counted(lab)
        lab.run("client", "umount", "/mnt")
        after = lab.run("server", "sh", "-c", NFSD).stdout.split()
        found = sums(lab, "sends" if theirs else "calls")
    lab.run("server", "rm", "-r", "/export/traced")
    reads, writes = (int(a) - int(b) for a, b in zip(after, before, strict=True))
    assert (found["READ", "calls"], found["WRITE", "calls"]) == (reads, writes) == (READS, WRITES)
    assert found["READ", "write_calls"] == READS
    assert found["READ", "written"] == READS * READ_SIZE
    assert found["WRITE", "read_calls"] == 0
    # our server asks for no completion of small replies
    assert (found["READ", "sends"], found["WRITE", "sends"]) == (READS * theirs, WRITES * theirs)


def sums(lab: Lab, last: str) -> Counter[tuple[str, str]]:
    """Over all intervals until ``last``, what is counted last of a Call, is complete."""
    found: Counter[tuple[str, str]] = Counter()
    for _ in range(120):
        found.clear()
        for line in lab.run("server", "cat", SAID).stdout.splitlines()[1:]:
            interval = json.loads(line)
            assert interval["lost"] == NONE_LOST
            for row in interval["rows"]:
                assert row["peer"] == "10.9.1.11"
                assert ("send" in row["phases_us"]) == (row["sends"] > 0)
                found.update({(row["procedure"], n): c for n, c in row.items() if n in COUNTS})
        if found["WRITE", last] >= WRITES:
            return found
        time.sleep(1)
    raise AssertionError(f"the probe set did not count all RPCs: {found}")
