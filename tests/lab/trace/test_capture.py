# SPDX-License-Identifier: Apache-2.0
"""A capture of a mount by the kernel's probes, as tshark and the kernel's own counts see it."""

import json
import re
from collections.abc import Callable, Iterator
from statistics import median

import pytest

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from testbed.labs import OURS, THEIRS, cards_lab, serve
from testbed.scripts import node_script

FILE = "/run/capture.pcapng"
VERSIONS = ("3", "4.2")
FAULTS = "_ws.malformed || _ws.expert.severity >= error"
# NFSv3: inline, Write chunk, Read chunk, Reply chunk, position-zero chunk, data inline.  Prints the
# operations of READ in mountstats, and the XID and round trip in us that sunrpc has of each READ.
WORK = r"""
import json, os, random, re, subprocess, sys
from pathlib import Path

version = sys.argv[1]
options = f"proto=rdma,port=20049,vers={version},rsize=262144,wsize=262144"
trace = Path("/sys/kernel/tracing/instances/capture")
trace.mkdir()
(trace / "events/sunrpc/rpc_stats_latency/enable").write_text("1")
subprocess.run(("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", "/mnt"), check=True)
folder = Path("/mnt/capture")
folder.mkdir()
for size in (1, 3000, 9999, 300000):
    # the same each time: tshark takes some data for another protocol, such as one byte for a frame
    # of Ethernet whose EtherType it begins
    (folder / "data").write_bytes(random.Random(size).randbytes(size) if size > 1 else b"\x81")
    direct = os.open(folder / "data", os.O_RDONLY | os.O_DIRECT)
    with open(direct, "rb", buffering=0) as file:
        subprocess.run(("cat",), stdin=file, stdout=subprocess.DEVNULL, check=True)
(folder / "link").symlink_to("t" * 900)
for n in range(60):
    (folder / f"a file with a name of some length {n}").touch()
os.listdir(folder)
subprocess.run(("rm", "-r", folder), check=True)
text = Path("/proc/self/mountstats").read_text().split("mounted on /mnt with")[1]
reads = [line.split() for line in text.splitlines() if line.strip().startswith("READ:")]
subprocess.run(("umount", "/mnt"), check=True)
times = re.findall(r" xid=(0x\w+) \w+ READ .*\brtt=(\d+)", (trace / "trace").read_text())
trace.rmdir()
print(json.dumps({"operations": int(reads[0][1]), "times": {x: int(us) for x, us in times}}))
"""
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


def begin(lab: Nodes, *nodes: str) -> None:
    """Attach the probes in these nodes; a server captures one client."""
    for node in nodes:
        lab.run(node, "sh", "-c", CAPTURE.format(file=FILE, options=OPTIONS[node]))
    for node in nodes:
        lab.run(node, "sh", "-c", READY, timeout=1800)


def end(lab: Nodes, node: str) -> tuple[int, int]:
    """Stop a capture; returns its messages and losses."""
    said = lab.run(node, "sh", "-c", END, timeout=1800).stdout
    counts = re.search(r"nfsrdma: (\d+) messages, (\d+) lost", said)
    assert counts, said
    return int(counts[1]), int(counts[2])


def tshark(lab: Nodes, node: str, *words: str) -> list[str]:
    argv = (node, "tshark", "-2", "--disable-heuristic", "eth_over_ib", "-r", FILE, *words)
    return lab.run(*argv, timeout=600).stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize("modules", ("pair", "both_ours"))
def test_a_capture_of_mounts(modules: str, request: pytest.FixtureRequest) -> None:
    """Both ends capture; neither file has a malformed frame or a Call without its Reply."""
    check_mounts(request.getfixturevalue(modules), modules)


# reads and writes 64 KiB of a mount; prints by origin how many bytes of pages the probes copied
COPIED = r"""
import json, os, subprocess, sys
from collections import Counter
from nfsrdma_tools.capture.messages import ORIGINS, PARTS, part
from nfsrdma_tools.capture.probes import listening
from nfsrdma_tools.capture.ring import records

version, data = sys.argv[1], sys.argv[2] == "head"
options = f"proto=rdma,port=20049,vers={version},rsize=65536,wsize=65536,noac"
if version == "3":
    # ACLs are messages in pages
    options += ",noacl"
subprocess.run(("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", "/mnt"), check=True)
copied, origins = Counter(), Counter()
try:
    with listening(8192, data) as listener:
        for way in ("if=/dev/zero of=/mnt/x oflag=direct", "if=/mnt/x of=/dev/null iflag=direct"):
            subprocess.run(("dd", "bs=64k", "count=1", "status=none", *way.split()), check=True)
        listener.stop()
        for found in map(part, records(listener._ring.take())):
            origins[ORIGINS[found.origin]] += 1
            if PARTS[found.part] == "pages":
                copied[ORIGINS[found.origin]] += len(found.captured)
    os.unlink("/mnt/x")
finally:
    subprocess.run(("umount", "/mnt"), check=True)
print(json.dumps([copied, origins]))
"""


@pytest.mark.parametrize("version", [pytest.param("3", marks=pytest.mark.nightly), "4.2"])
def test_data_are_copied_only_if_they_are_wanted(solo: Lab, version: str) -> None:
    """Client and server are one: ``zero`` copies no page of data, ``head`` copies one."""
    ends = ("call sent", "reply received", "reply sent")
    for data, expected in (("zero", 0), ("head", 4096)):
        argv = ("solo", "python3", "-", version, data)
        said = solo.run(*argv, stdin=COPIED.encode(), timeout=600).stdout
        copied, origins = json.loads(said)
        assert set(origins) >= {*ends, "call received", "result"}
        assert {end: copied.get(end, 0) for end in ends} == dict.fromkeys(ends, expected)


def check_mounts(lab: Nodes, modules: str) -> None:
    said = {}
    begin(lab, "client", "server")
    try:
        for version in VERSIONS:
            argv = ("client", "python3", "-", version)
            said[version] = lab.run(*argv, stdin=WORK.encode(), timeout=600).stdout
    finally:
        counts = {node: end(lab, node) for node in ("client", "server")}
    for node, (messages, lost) in counts.items():
        assert messages > 800
        assert lost == 0
        check_file(lab, node)
    if modules == "pair":
        same_times(lab, said)


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


def same_times(lab: Nodes, said: dict[str, str]) -> None:
    """Count and times of READs are those of sunrpc.

    Half of the times: a processor of the host that leaves the node for other work between the
    clocks of sunrpc and of the capture makes a time differ.
    """
    reads = {"3": "nfs.procedure_v3 == 6", "4.2": "nfs.opcode == 25"}
    for version, shown in reads.items():
        fields = ("-T", "fields", "-e", "rpc.xid", "-e", "rpc.time")
        rows = tshark(lab, "client", "-Y", f"{shown} && rpc.msgtyp == 1", *fields)
        seen = {int(xid, 16): float(seconds) for xid, seconds in map(str.split, rows)}
        found = json.loads(said[version])
        times = {int(xid, 16): microseconds / 1e6 for xid, microseconds in found["times"].items()}
        assert len(rows) == found["operations"] > 0, version
        assert seen.keys() == times.keys(), version
        apart = [abs(seen[xid] - times[xid]) for xid in times]
        assert median(apart) < 0.001 + 0.05 * median(times.values()), (seen, times)
    # the table of docs/how-to/capture.md, which tshark has for NFSv3
    table = tshark(lab, "client", "-q", "-z", "rpc,srt,100003,3")
    (row,) = (row.split() for row in table if re.search(r"\bREAD\b", row))
    assert int(row[2]) == json.loads(said["3"])["operations"]


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
SIZE = 16 << 20
PREPARE = f"""
yes | head -c {SIZE} > /export/read; sync
mount -t nfs -o vers=3,proto=rdma,port=20049,noac server:/export /mnt
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


def check_rate(lab: Nodes) -> tuple[float, int]:
    """Client and server are one, so that each READ is four messages."""
    script = node_script("capture")
    lab.run("solo", "sh", "-ec", PREPARE)
    try:
        begin(lab, "solo")
        try:
            numbers = map(str, (SIZE, RATE, SECONDS, PROCESSES))
            argv = ("solo", "python3", "-", "/mnt/read", *numbers)
            rate = float(lab.run(*argv, stdin=script, timeout=1800).stdout)
        finally:
            messages, lost = end(lab, "solo")
    finally:
        lab.run("solo", "umount", "/mnt")
    assert lost == 0
    assert messages >= 4 * RATE * SECONDS
    assert rate > 0.95 * RATE
    return rate, messages
