# SPDX-License-Identifier: Apache-2.0
"""Reads of 4 KiB in a node, with and without probes."""

import contextlib
import mmap
import os
import random
import subprocess
from collections.abc import Iterator

from bench.capture.reads import FILE, SIZE, reads
from nfsrdma_tools.probes.probe_sets import NAMES, attached
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.probes.sets import cpu
from testbed.remote import on

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
    "registrations, timed": ("registrations",),
    "chunks and registrations": ("chunks", "registrations"),
    "latency": ("latency",),
    "connections": ("connections",),
    "server": ("server",),
    "readahead": ("readahead",),
    "cpu": ("cpu",),
    "all": NAMES,
}


PAIRS = 6


class Switch:
    """All programs of a session: nothing is compiled or loaded when they go off and on."""

    def __init__(self, session: Session) -> None:
        self.session, self.bpf = session, session.bpf
        self.points = list(self.bpf.tracepoint_fds)
        self.functions = [(e, n) for e, names in self.bpf.kprobe_fds.items() for n in names]
        self.samples = list(self.bpf.open_perf_events)

    def off(self) -> None:
        for point in self.points:
            self.bpf.detach_tracepoint(point)
        for event in {event for event, _ in self.functions}:
            self.bpf.detach_kprobe_event(event)
        for kind in self.samples:
            self.bpf.detach_perf_event(*kind)

    def on(self) -> None:
        for point in self.points:
            name = b"tracepoint__" + point.replace(b":", b"__")
            self.bpf.attach_tracepoint(tp=point, fn_name=name)
        for event, name in self.functions:
            # p_FUNCTION or r_FUNCTION
            kind = self.bpf.attach_kprobe if event[:1] == b"p" else self.bpf.attach_kretprobe
            kind(event=event[2:], fn_name=name)
        if self.samples:
            cpu.attach(self.session)


@contextlib.contextmanager
def probes(way: str) -> Iterator[Switch]:
    with attached(WAYS[way], timed="timed" in way) as session:
        yield Switch(session)


class Bpftrace:
    def on(self) -> None:
        argv = ("bpftrace", "-e", BPFTRACE)
        self.tracer = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.tracer.stdout
        while b"ready" not in self.tracer.stdout.readline():
            assert self.tracer.poll() is None, "bpftrace ended"

    def off(self) -> None:
        self.tracer.terminate()
        self.tracer.communicate()


@contextlib.contextmanager
def bpftrace() -> Iterator[Bpftrace]:
    switch = Bpftrace()
    switch.on()
    yield switch
    switch.off()


class Nobody:
    def on(self) -> None:
        pass

    off = on


def counting(way: str) -> contextlib.AbstractContextManager[Switch | Bpftrace | Nobody]:
    if way == "bpftrace":
        return bpftrace()
    return probes(way) if WAYS[way] else contextlib.nullcontext(Nobody())


@on("solo", timeout=7200)
def costs(rounds: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """For each way of counting, pairs of microseconds per read: without it, with it."""
    file, room = os.open(FILE, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
    dice = random.Random(1)  # noqa: S311
    offsets = [dice.randrange(16384) * SIZE for _ in range(count)]
    by_way: dict[str, list[tuple[float, float]]] = {way: [] for way in (*WAYS, "bpftrace")}
    for _ in range(rounds):
        for way, times in by_way.items():
            with counting(way) as switch:
                for _ in range(PAIRS):
                    during, _ = reads(file, room, offsets)
                    switch.off()
                    times.append((reads(file, room, offsets)[0], during))
                    switch.on()
    return by_way
