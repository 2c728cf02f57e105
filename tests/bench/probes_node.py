# SPDX-License-Identifier: Apache-2.0
"""What bench/probes.py does inside a node: reads of 4 KiB, with and without who counts them.

Prints JSON: for each way of counting, microseconds per read of each round.
"""

import contextlib
import json
import mmap
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from nfsrdma_tools.probes.accounts import NAMES, attached

SIZE, FILE = 4096, Path("/mnt/bench/bench-data")
ROUNDS, READS = int(sys.argv[1]), int(sys.argv[2])
# the same counts by the shortest script a user may write
BPFTRACE = """
BEGIN { printf("ready"); }
tracepoint:rpcrdma:xprtrdma_marshal { @calls[args->rtype, args->wtype] = count(); }
tracepoint:rpcrdma:xprtrdma_chunk_write { @write_segments = count(); @offered = sum(args->length); }
tracepoint:rpcrdma:xprtrdma_chunk_read { @read_segments = count(); @sent = sum(args->length); }
tracepoint:rpcrdma:xprtrdma_chunk_reply { @reply_segments = count(); }
tracepoint:rpcrdma:xprtrdma_decode_seg { @used = sum(args->length); }
tracepoint:sunrpc:rpc_stats_latency { @procedures[args->client_id, str(args->procname)] = count(); }
tracepoint:rpcrdma:xprtrdma_mr_map {
	@mapped = count(); @pages = hist(args->length); @at[args->mr_id] = nsecs;
}
tracepoint:rpcrdma:xprtrdma_mr_fastreg { @registered = count(); }
tracepoint:rpcrdma:xprtrdma_mr_reminv { @remote = count(); }
tracepoint:rpcrdma:xprtrdma_mr_localinv { @local = count(); }
tracepoint:rpcrdma:xprtrdma_mr_unmap {
	@unmapped = count(); @lived = hist(nsecs - @at[args->mr_id]); delete(@at[args->mr_id]);
}
"""
WAYS = {
    "nobody": (),
    "chunks": ("chunks",),
    "registrations": ("registrations",),
    "chunks and registrations": ("chunks", "registrations"),
    "latency": ("latency",),
    "connections": ("connections",),
    "server": ("server",),
    "cpu": ("cpu",),
    "all": NAMES,
}


@contextlib.contextmanager
def bpftrace():
    tracer = subprocess.Popen(("bpftrace", "-e", BPFTRACE), stdout=subprocess.PIPE)
    while b"ready" not in tracer.stdout.readline():
        assert tracer.poll() is None, "bpftrace ended"
    yield
    tracer.terminate()
    tracer.communicate()


def counting(way):
    if way == "bpftrace":
        return bpftrace()
    return attached(WAYS[way]) if WAYS[way] else contextlib.nullcontext()


def one_read(file, room, offsets):
    start = time.perf_counter()
    for offset in offsets:
        assert os.preadv(file, [room], offset) == SIZE
    return (time.perf_counter() - start) * 1e6 / len(offsets)


def main():
    file, room = os.open(FILE, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
    dice = random.Random(1)  # noqa: S311
    offsets = [dice.randrange(16384) * SIZE for _ in range(READS)]
    found = {way: [] for way in (*WAYS, "bpftrace")}
    for _ in range(ROUNDS):
        for way, times in found.items():
            with counting(way):
                # what is met for the first time is dearer
                one_read(file, room, offsets[:50])
                times.append(one_read(file, room, offsets))
    print(json.dumps(found))


main()
