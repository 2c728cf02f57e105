# SPDX-License-Identifier: Apache-2.0
"""The part of test_trace.py in a client: a known workload, counted by several programs.

Mounts, and leaves mounted. Prints the counts of probe sets, mountstats and bpftrace.
"""

import json
import mmap
import os
import subprocess
import time
from pathlib import Path

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.session import Session

MOUNT = Path("/mnt")
NAMES, READS, READ_SIZE, WRITES, WRITE_SIZE, ATTRS = 10_000, 23, 65536, 17, 300, 5
COUNTED = ("chunks", "registrations", "latency")
OPTIONS = f"vers=3,proto=rdma,port=20049,rsize={READ_SIZE},wsize={READ_SIZE},noac,nordirplus"
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


def prepare() -> None:
    """Mount; the server made the files."""
    subprocess.run(("mount", "-t", "nfs", "-o", OPTIONS, "10.9.1.1:/export", MOUNT), check=True)
    with (MOUNT / "traced/data").open("r+b") as file:
        file.truncate(READS * READ_SIZE)


def work() -> None:
    """The load for the counts: reads, writes, attributes, names."""
    folder, room = MOUNT / "traced", mmap.mmap(-1, READ_SIZE)
    file = os.open(folder / "data", os.O_RDWR | os.O_DIRECT)
    for turn in range(READS):
        assert os.preadv(file, [room], turn * READ_SIZE) == READ_SIZE
    for turn in range(WRITES):
        assert os.pwrite(file, bytes(room[:WRITE_SIZE]), turn * 512) == WRITE_SIZE
    for _ in range(ATTRS):
        os.fstat(file)
    os.close(file)
    assert len(list((folder / "names").iterdir())) == NAMES


def who_counts() -> str:
    return "nfsrdma" if Path("/sys/kernel/tracing/events/nfsrdma").is_dir() else "rpcrdma"


def bpftrace() -> "subprocess.Popen[str]":
    argv = ("bpftrace", "-f", "json", "-e", 'BEGIN { printf("ready"); }' + BPFTRACE[who_counts()])
    tracer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert tracer.stdout
    for line in tracer.stdout:
        if "ready" in line:
            return tracer
    raise SystemExit("bpftrace ended before it was ready")


def counted_by(tracer: "subprocess.Popen[str]") -> dict[str, object]:
    tracer.terminate()
    said, _ = tracer.communicate()
    maps = [json.loads(line) for line in said.splitlines() if '"map"' in line]
    return {name[1:]: value for each in maps for name, value in each["data"].items()}


def settled(session_: Session, name: str) -> object:
    """A probe set, once its counts are stable: an RPC's end is counted after its caller runs."""
    probe_set = probe_sets.probe_set(name)
    last = probe_set.read(session_)
    for _ in range(100):
        time.sleep(0.2)
        now = probe_set.read(session_)
        if now == last:
            return now
        last = now
    raise SystemExit(f"{name} never settles")


def main() -> None:
    prepare()
    tracer = bpftrace()
    with probe_sets.attached(COUNTED, timed=True) as counting:
        before = mountstats.read(MOUNT)
        firsts = {name: settled(counting, name) for name in COUNTED}
        work()
        found = {
            name: probe_sets.probe_set(name).difference(settled(counting, name), firsts[name])
            for name in COUNTED
        }
        stats = mountstats.difference(mountstats.read(MOUNT), before)
        rows = {n: probe_sets.probe_set(n).records(found[n], clients()) for n in COUNTED}
        missing, losses = [each.event for each in counting.missing], lost(counting)
    print(
        json.dumps(
            {
                "rows": rows,
                "missing": missing,
                "lost": losses._asdict(),
                "bpftrace": counted_by(tracer),
                "operations": {n: o._asdict() for n, o in stats.operations.items() if o.operations},
                "counters": stats.xprts[0].counters,
            }
        )
    )


main()
