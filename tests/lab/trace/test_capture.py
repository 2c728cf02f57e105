# SPDX-License-Identifier: Apache-2.0
"""A capture of a mount by the kernel's probes, as tshark and the kernel's own counts see it."""

import mmap
import multiprocessing
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from lab.trace.exchanges import LENGTHS, exchange

from nfsrdma_tools.capture.messages import ORIGINS, PARTS, part
from nfsrdma_tools.capture.probes import listening
from nfsrdma_tools.capture.ring import records
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from testbed.labs import OURS, THEIRS, cards_lab, serve
from testbed.node.mounts import HERE, mounted
from testbed.node.transfers import read_blocks, write_blocks
from testbed.remote import on

FILE = "/run/capture.pcapng"
VERSIONS = ("3", "4.2")
FAULTS = "_ws.malformed || _ws.expert.severity >= error"
CAPTURE = """
rm -f {file} /run/capture.said
nice nfsrdma capture -w {file} {options} 2>/run/capture.said </dev/null >/dev/null &
echo $! > /run/capture.pid
"""
OPTIONS = {"client": "--data head", "server": "--data head --client 10.9.1.11", "solo": ""}
READY = f"""
for i in $(seq 3000); do test -s {FILE} && exit 0; sleep 0.1; done
cat /run/capture.said >&2; exit 1
"""
END = """
kill -INT $(cat /run/capture.pid)
tail --pid=$(cat /run/capture.pid) -f /dev/null
cat /run/capture.said
"""


class Reads(NamedTuple):
    """The READs that mountstats counts, and their round trips in microseconds by XID."""

    operations: int
    times: dict[int, int]


@on("client")
def work(version: str) -> Reads:
    """Exchange messages of each kind, with the times of sunrpc."""
    trace = Path("/sys/kernel/tracing/instances/capture")
    trace.mkdir()
    (trace / "events/sunrpc/rpc_stats_latency/enable").write_text("1")
    with mounted(f"vers={version},{LENGTHS}", source="10.9.1.1:/export") as mount:
        exchange(mount / "capture")
        shutil.rmtree(mount / "capture")
        reads = mountstats.read(mount).operations["READ"].operations
    times = re.findall(r" xid=0x(\w+) \w+ READ .*\brtt=(\d+)", (trace / "trace").read_text())
    trace.rmdir()
    return Reads(reads, {int(xid, 16): int(microseconds) for xid, microseconds in times})


def begin(lab: Nodes, *nodes: str) -> None:
    """Attach the probes in these nodes; a server captures one client."""
    for node in nodes:
        lab.run(node, "sh", "-c", CAPTURE.format(file=FILE, options=OPTIONS[node]))
    for node in nodes:
        lab.run(node, "sh", "-c", READY, timeout=1800)


def end(lab: Nodes, node: str) -> tuple[int, int]:
    """Stop a capture; returns its messages and losses."""
    summary = lab.run(node, "sh", "-c", END, timeout=1800).stdout
    counts = re.search(r"nfsrdma: (\d+) messages, (\d+) lost", summary)
    assert counts, summary
    return int(counts[1]), int(counts[2])


def tshark(lab: Nodes, node: str, *words: str) -> list[str]:
    argv = (node, "tshark", "-2", "--disable-heuristic", "eth_over_ib", "-r", FILE, *words)
    return lab.run(*argv, timeout=600).stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize("modules", ("pair", "both_ours"))
def test_a_capture_of_mounts(modules: str, request: pytest.FixtureRequest) -> None:
    """Both ends capture; neither file has a malformed frame or a Call without its Reply."""
    check_mounts(request.getfixturevalue(modules), modules)


@on("client")
def copied(version: str, is_wanted: bool) -> dict[str, int]:
    """Bytes of pages that the probes copy of a write and a read of 64 KiB, by origin."""
    options = f"vers={version},rsize=65536,wsize=65536,noac"
    if version == "3":
        # ACLs are messages in pages
        options += ",noacl"
    by_origin: Counter[str] = Counter()
    with mounted(options, source="10.9.1.1:/export") as mount:
        with listening(8192, is_wanted) as listener:
            write_blocks(mount / "x", 1, 65536)
            read_blocks(mount / "x", 1, 65536)
            listener.stop()
            for event in map(part, records(listener._ring.take())):
                is_page = PARTS[event.part] == "pages"
                by_origin[ORIGINS[event.origin]] += len(event.captured) if is_page else 0
        (mount / "x").unlink()
    return dict(by_origin)


@pytest.mark.parametrize("version", [pytest.param("3", marks=pytest.mark.nightly), "4.2"])
def test_data_are_copied_only_if_they_are_wanted(solo: Lab, version: str) -> None:
    """Client and server are one: ``zero`` copies no page of data, ``head`` copies one."""
    ends = ("call sent", "reply received", "reply sent")
    for is_wanted, length in ((False, 0), (True, 4096)):
        by_origin = copied(solo, version, is_wanted)
        assert set(by_origin) >= {*ends, "call received", "result"}
        assert {end: by_origin[end] for end in ends} == dict.fromkeys(ends, length)


def check_mounts(lab: Nodes, modules: str) -> None:
    begin(lab, "client", "server")
    try:
        reads = {version: work(lab, version) for version in VERSIONS}
    finally:
        counts = {node: end(lab, node) for node in ("client", "server")}
    for node, (messages, lost) in counts.items():
        assert messages > 800
        assert lost == 0
        check_file(lab, node)
    if modules == "pair":
        same_times(lab, reads)


def check_file(lab: Nodes, node: str) -> None:
    """Tshark finds no fault in a file, and the same pairs as our reader."""
    assert tshark(lab, node, "-Y", FAULTS) == []
    # a server sees no contents of long Calls, so no Calls of theirs
    calls = tshark(lab, node, "-Y", "rpc.msgtyp == 0", "-T", "fields", "-e", "rpc.xid")
    replies = tshark(lab, node, "-Y", "rpc.msgtyp == 1", "-T", "fields", "-e", "rpc.xid")
    assert len(calls) > 400
    assert set(replies) >= set(calls)
    lines = lab.run(node, "nfsrdma", "capture", "--read", FILE, timeout=600).stdout.splitlines()
    assert not [line for line in lines if line.endswith("no reply")]
    assert {line.split()[4] for line in lines} >= set(calls)
    findings = lab.run(node, "nfsrdma", "doctor", "--capture", FILE, check=False).stdout
    assert "RPC-over-RDMA version 1" in findings
    assert "x error" not in findings


def same_times(lab: Nodes, reads: dict[str, Reads]) -> None:
    """Count and times of READs are those of sunrpc.

    Half of the times: a processor of the host that leaves the node for other work between the
    clocks of sunrpc and of the capture makes a time differ.
    """
    for version, shown in (("3", "nfs.procedure_v3 == 6"), ("4.2", "nfs.opcode == 25")):
        fields = ("-T", "fields", "-e", "rpc.xid", "-e", "rpc.time")
        rows = tshark(lab, "client", "-Y", f"{shown} && rpc.msgtyp == 1", *fields)
        seen = {int(xid, 16): float(seconds) for xid, seconds in map(str.split, rows)}
        times = {xid: microseconds / 1e6 for xid, microseconds in reads[version].times.items()}
        assert len(rows) == reads[version].operations > 0, version
        assert seen.keys() == times.keys(), version
        apart = [abs(seen[xid] - times[xid]) for xid in times]
        assert median(apart) < 0.001 + 0.05 * median(times.values()), (seen, times)
    # the table of docs/how-to/capture.md, which tshark has for NFSv3
    table = tshark(lab, "client", "-q", "-z", "rpc,srt,100003,3")
    (row,) = (row.split() for row in table if re.search(r"\bREAD\b", row))
    assert int(row[2]) == reads["3"].operations


@pytest.mark.nightly
def test_a_full_buffer_is_told_exactly(pair: Lab) -> None:
    """A capture that stands still loses messages, and says how many."""
    lab = pair
    begin(lab, "client")
    lab.run("client", "sh", "-c", "kill -STOP $(cat /run/capture.pid)")
    load = (
        "mount -t nfs -o proto=rdma,port=20049,vers=3,rsize=4096,wsize=4096,noac "
        "10.9.1.1:/export /mnt && dd if=/dev/zero of=/mnt/fill bs=4k count=4000 oflag=direct "
        "&& rm /mnt/fill; umount /mnt"
    )
    try:
        lab.run("client", "sh", "-c", load, timeout=1200)
    finally:
        lab.run("client", "sh", "-c", "kill -CONT $(cat /run/capture.pid)")
        written, lost = end(lab, "client")
    assert lost > 0
    # a Call and a Reply for each write
    assert written + lost >= 2 * 4000
    # the file says it, too
    lab.run("client", "grep", "-aq", f"{written} messages, {lost} lost", FILE)


# reads a second, seconds, processes
RATE, SECONDS, PROCESSES = 5000, 3, 8
SIZE, BLOCK = 16 << 20, 4096
PREPARE = f"""
yes | head -c {SIZE} > /export/read; sync; mkdir -p {HERE}
mount -t nfs -o vers=3,proto=rdma,port=20049,noac server:/export {HERE}
"""


@pytest.fixture(scope="module")
def counted(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """One machine, on the instruction clock: its CPU is full at about 10,000 reads a second."""
    with cards_lab(pytestconfig, "capture", clock="instructions", link="none") as lab:
        yield lab


@pytest.mark.nightly
@pytest.mark.parametrize("whose", (THEIRS, OURS))
def test_a_busy_mount_is_captured_without_loss(
    counted: Lab, whose: str, record_property: Callable[[str, object], None]
) -> None:
    serve(counted, "solo", whose)
    record_property("reads a second, messages", check_rate(counted))


def read_some(number: int) -> None:
    """One process of PROCESSES."""
    file, room = os.open(HERE / "read", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
    dice = random.Random(number)  # noqa: S311
    due = time.monotonic() + number / RATE
    for _ in range(RATE * SECONDS // PROCESSES):
        time.sleep(max(0, due - time.monotonic()))
        due += PROCESSES / RATE
        assert os.preadv(file, [room], dice.randrange(SIZE // BLOCK) * BLOCK) == BLOCK


@on("client", timeout=1800)
def read_at_rate() -> float:
    """Read 4 KiB by O_DIRECT from several processes; returns the reads a second."""
    start = time.monotonic()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=read_some, args=(number,)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return RATE * SECONDS // PROCESSES * PROCESSES / (time.monotonic() - start)


def check_rate(lab: Nodes) -> tuple[float, int]:
    """Client and server are one, so that each READ is four messages."""
    lab.run("solo", "sh", "-ec", PREPARE)
    try:
        begin(lab, "solo")
        try:
            rate = read_at_rate(lab)
        finally:
            messages, lost = end(lab, "solo")
    finally:
        lab.run("solo", "umount", str(HERE))
    assert lost == 0
    assert messages >= 4 * RATE * SECONDS
    assert rate > 0.95 * RATE
    return rate, messages
