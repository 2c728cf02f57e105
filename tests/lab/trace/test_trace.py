# SPDX-License-Identifier: Apache-2.0
"""Probe sets, mountstats, bpftrace and the wire count the same of a known workload."""

import json
import mmap
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from wire.capture import once
from wire.native import COMPILER, Wire
from wire.rpcrdma import Header

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.sets.server import COUNTS
from testbed import sniffer
from testbed.labs import OURS, THEIRS, ModulePair, lent
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import settled
from testbed.node.transfers import read_blocks
from testbed.remote import on
from testbed.tracing import SAID, tracing

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

NAMES, READS, READ_SIZE, WRITES, WRITE_SIZE, ATTRS = 10_000, 23, 65536, 17, 300, 5
MAKE = f"""
rm -rf /export/traced && mkdir -p /export/traced/names && cd /export/traced
: > data; seq -f names/name-%05.0f {NAMES} | xargs touch; chmod -R a+rwX .
"""
COUNTED = ("chunks", "registrations", "latency")
OPTIONS = f"vers=3,rsize={READ_SIZE},wsize={READ_SIZE},noac,nordirplus"
NONE_LOST = {"rpcs": 0, "regions": 0, "credits": 0, "windows": 0}
# how a Call may go inline, as the kernel's transport tells them apart
INLINE = ("calls_inline", "calls_pulled_up", "calls_gathered")
Row = dict[str, Any]
Rows = dict[str, Row]
# one-liners that a user would write, for the kernel's transport and for ours
BPFTRACE = {
    "rpcrdma": """
tracepoint:rpcrdma:xprtrdma_marshal { @calls = count(); @ways[args->rtype, args->wtype] = count(); }
tracepoint:rpcrdma:xprtrdma_chunk_write { @write_bytes = sum(args->length); }
tracepoint:rpcrdma:xprtrdma_chunk_reply { @reply_segments = count(); }
tracepoint:rpcrdma:xprtrdma_decode_seg { @used = sum(args->length); }
tracepoint:rpcrdma:xprtrdma_mr_map { @mapped = count(); }
tracepoint:rpcrdma:xprtrdma_mr_reminv { @remote = count(); }
tracepoint:rpcrdma:xprtrdma_mr_localinv { @local = count(); }
kprobe:frwr_map { @begun[tid] = nsecs; }
kretprobe:frwr_map /@begun[tid]/ { @mapping_ns = sum(nsecs - @begun[tid]); delete(@begun[tid]); }
kprobe:frwr_reminv, kprobe:frwr_unmap_async { @since[tid] = nsecs; }
kretprobe:frwr_reminv, kretprobe:frwr_unmap_async /@since[tid]/ {
	@invalidating_ns = sum(nsecs - @since[tid]); delete(@since[tid]);
}
""",
    "nfsrdma": """
tracepoint:nfsrdma:nfsrdma_marshal { @calls = count(); @ways[args->call, args->reply] = count(); }
tracepoint:nfsrdma:nfsrdma_chunk /args->kind == "write"/ { @write_bytes = sum(args->length); }
tracepoint:nfsrdma:nfsrdma_chunk /args->kind == "reply"/ { @reply_segments = sum(args->segments); }
tracepoint:nfsrdma:nfsrdma_reply { @used = sum(args->by_chunk); }
tracepoint:nfsrdma:nfsrdma_mr_map { @mapped = count(); }
tracepoint:nfsrdma:nfsrdma_mr_remoteinv { @remote = count(); }
tracepoint:nfsrdma:nfsrdma_mr_localinv { @local = count(); }
kprobe:nfr_mem_prepare { @begun[tid] = nsecs; }
kretprobe:nfr_mem_prepare /@begun[tid]/ {
	@mapping_ns = sum(nsecs - @begun[tid]); delete(@begun[tid]);
}
kprobe:nfr_client_revoke, kprobe:nfr_mem_release { @since[tid] = nsecs; }
kretprobe:nfr_client_revoke, kretprobe:nfr_mem_release /@since[tid]/ {
	@invalidating_ns = sum(nsecs - @since[tid]); delete(@since[tid]);
}
""",
}


class Counted(NamedTuple):
    """Rows by probe set; maps of bpftrace; operations and counters of mountstats."""

    rows: dict[str, list[Row]]
    bpftrace: dict[str, Any]
    operations: dict[str, dict[str, int]]
    counters: dict[str, int]

    def by_procedure(self, probe_set: str) -> Rows:
        """The rows of the mount's own client."""
        mine = [row for row in self.rows[probe_set] if row["mount"] == str(HERE)]
        return {row.get("procedure", ""): row for row in mine}


def work(folder: Path) -> None:
    """The load for the counts: reads, writes, attributes, names."""
    read_blocks(folder / "data", READS, READ_SIZE)
    block = mmap.mmap(-1, READ_SIZE)
    file = os.open(folder / "data", os.O_RDWR | os.O_DIRECT)
    for turn in range(WRITES):
        assert os.pwrite(file, bytes(block[:WRITE_SIZE]), turn * 512) == WRITE_SIZE
    for _ in range(ATTRS):
        os.fstat(file)
    os.close(file)
    assert len(list((folder / "names").iterdir())) == NAMES


def bpftrace() -> "subprocess.Popen[str]":
    """A bpftrace that counts."""
    whose = "nfsrdma" if Path("/sys/kernel/tracing/events/nfsrdma").is_dir() else "rpcrdma"
    argv = ("bpftrace", "-f", "json", "-e", 'BEGIN { printf("ready"); }' + BPFTRACE[whose])
    tracer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert tracer.stdout
    assert any("ready" in line for line in tracer.stdout), "bpftrace ended before it was ready"
    return tracer


def maps_of(tracer: "subprocess.Popen[str]") -> dict[str, Any]:
    """The maps that a bpftrace prints at its end, by name."""
    tracer.terminate()
    output, _ = tracer.communicate()
    maps = [json.loads(line) for line in output.splitlines() if '"map"' in line]
    return {name[1:]: value for each in maps for name, value in each["data"].items()}


@on("client", timeout=1800)
def count() -> Counted:
    """Have several programs count the load."""
    with mounted(OPTIONS, source="10.9.1.1:/export") as mount:
        # the server made the files
        os.truncate(mount / "traced/data", READS * READ_SIZE)
        tracer = bpftrace()
        with probe_sets.attached(COUNTED, timed=True) as counting:
            sets = {name: probe_sets.probe_set(name) for name in COUNTED}

            def readings() -> dict[str, Any]:
                """Once they are stable: an RPC's end is counted after its caller runs."""
                return settled(lambda: {name: each.read(counting) for name, each in sets.items()})

            before, firsts = mountstats.read(mount), readings()
            work(mount / "traced")
            lasts = readings()
            stats = mountstats.difference(mountstats.read(mount), before)
            rows = {
                name: each.records(each.difference(lasts[name], firsts[name]), clients())
                for name, each in sets.items()
            }
            assert not counting.missing
            assert not any(lost(counting)), lost(counting)
        maps = maps_of(tracer)
    operations = {name: o._asdict() for name, o in stats.operations.items() if o.operations}
    return Counted(rows, maps, operations, stats.xprts[0].counters)


def total(rows: Rows, *names: str) -> int:
    return sum(row[name] for row in rows.values() for name in names)


@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize(
    "client",
    (pytest.param("pair", marks=pytest.mark.nightly), "module_pair"),
    ids=("rpcrdma", "nfsrdma"),
)
def test_all_who_count_agree(client: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    lab: Lab = request.getfixturevalue(client)
    results: list[Counted] = []
    lab.run("server", "sh", "-ec", MAKE)
    sends = sniffer.listening(lab, lambda: results.append(count(lab)))
    lab.run("server", "rm", "-r", "/export/traced")
    (counted,) = results
    wire = Wire(tmp_path)
    headers = [wire.decode(s.payload)[0] for s in once(sends) if s.source == "10.9.1.11"]
    chunks, regions = counted.by_procedure("chunks"), counted.by_procedure("registrations")[""]
    as_done(chunks)
    as_mountstats_says(chunks, counted, "segments" if client == "pair" else "chunks")
    as_bpftrace_says(chunks, regions, counted.bpftrace)
    as_on_the_wire(chunks, headers)
    as_long_as_mountstats_says(counted.by_procedure("latency"), counted.operations)


def as_done(chunks: Rows) -> None:
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


def as_mountstats_says(chunks: Rows, counted: Counted, unit: str) -> None:
    assert {name: row["rpcs"] for name, row in chunks.items()} == {
        name: each["operations"] for name, each in counted.operations.items()
    }
    counters = counted.counters
    assert {column: total(chunks, names[unit]) for column, names in COLUMNS.items()} == {
        column: counters[column] for column in COLUMNS
    }
    assert total(chunks, "write_used", "reply_used") == counters["total_rdma_reply"]
    assert total(chunks, "write_bytes", "reply_bytes") == counters["total_rdma_request"]


def as_bpftrace_says(chunks: Rows, regions: Row, maps: dict[str, Any]) -> None:
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


def as_on_the_wire(chunks: Rows, headers: list[Header]) -> None:
    """Mounting and unmounting are captured too, but move no data in Write chunks."""
    writes = [chunk for header in headers for chunk in header.writes]
    assert len([c for c in writes if sum(s.length for s in c) == READ_SIZE]) == READS
    assert total(chunks, "reply_segments") <= sum(len(h.reply or ()) for h in headers)
    assert total(chunks, "replies_write") == len(writes)


def as_long_as_mountstats_says(times: Rows, operations: dict[str, dict[str, int]]) -> None:
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
        count(lab)
        after = lab.run("server", "sh", "-c", NFSD).stdout.split()
        counts = sums(lab, "sends" if theirs else "calls")
    lab.run("server", "rm", "-r", "/export/traced")
    reads, writes = (int(a) - int(b) for a, b in zip(after, before, strict=True))
    assert (counts["READ", "calls"], counts["WRITE", "calls"]) == (reads, writes) == (READS, WRITES)
    assert counts["READ", "write_calls"] == READS
    assert counts["READ", "written"] == READS * READ_SIZE
    assert counts["WRITE", "read_calls"] == 0
    # our server asks for no completion of small replies
    assert (counts["READ", "sends"], counts["WRITE", "sends"]) == (READS * theirs, WRITES * theirs)


def sums(lab: Lab, last: str) -> Counter[tuple[str, str]]:
    """Over all intervals until ``last``, what is counted last of a Call, is complete."""
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(120):
        counts.clear()
        for line in lab.run("server", "cat", SAID).stdout.splitlines()[1:]:
            interval = json.loads(line)
            assert interval["lost"] == NONE_LOST
            for row in interval["rows"]:
                assert row["peer"] == "10.9.1.11"
                assert ("send" in row["phases_us"]) == (row["sends"] > 0)
                counts.update({(row["procedure"], n): c for n, c in row.items() if n in COUNTS})
        if counts["WRITE", last] >= WRITES:
            return counts
        time.sleep(1)
    raise AssertionError(f"the probe set did not count all RPCs: {counts}")
