# SPDX-License-Identifier: Apache-2.0
"""Reads of 4 KiB in a node, with and without a capture."""

import mmap
import os
import random
import re
import time
import zlib
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from nfsrdma_tools.capture import probes
from nfsrdma_tools.capture.conversation import Conversations
from nfsrdma_tools.capture.files import Writer
from nfsrdma_tools.capture.layout import OURS
from nfsrdma_tools.capture.messages import part
from nfsrdma_tools.capture.probes import Listener, listening
from nfsrdma_tools.capture.ring import records
from nfsrdma_tools.probes.btf import load
from nfsrdma_tools.probes.program import has_event, has_system
from testbed.remote import on

SIZE, FILE = 4096, Path("/mnt/bench/bench-data")
# in the turn of the kernel's count
TIMED = 100
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def reads(file: int, room: mmap.mmap, offsets: list[int]) -> tuple[float, int]:
    """The microseconds of a read, and how many there were."""
    # what is met for the first time takes longer
    for offset in offsets[:50]:
        os.preadv(file, [room], offset)
    start = time.perf_counter()
    for offset in offsets:
        assert os.preadv(file, [room], offset) == SIZE
    spent = (time.perf_counter() - start) * 1e6 / len(offsets)
    return spent, len(offsets) + len(offsets[:50])


def attach(listener: Listener) -> None:
    """Attach the probes that ``stop`` detached; nothing is compiled again."""
    bpf = listener._bpf
    if has_event(*OURS):
        bpf.attach_tracepoint(tp=":".join(OURS).encode(), fn_name=f"tracepoint__{'__'.join(OURS)}")
    if has_system("rpcrdma"):
        probes._attach(bpf, load(("rpcrdma",))["rpcrdma"])


class Programs:
    """The kernel's count of what its BPF programs take."""

    def __init__(self, listener: Listener) -> None:
        self._files = [
            Path(f"/proc/self/fdinfo/{program.fd}") for program in listener._bpf.funcs.values()
        ]

    def times(self) -> tuple[int, int]:
        """Nanoseconds and runs of all programs so far."""
        texts = [file.read_text() for file in self._files]
        return _total("run_time_ns", texts), _total("run_cnt", texts)


def _total(name: str, texts: list[str]) -> int:
    matches = (re.search(rf"^{name}:\s+(\d+)$", text, re.MULTILINE) for text in texts)
    return sum(int(match[1]) for match in matches if match)


def timed(
    listener: Listener, file: int, room: mmap.mmap, offsets: list[int]
) -> tuple[float, float, int]:
    """Thousands of instructions of the programs, and their runs, per read; the reads."""
    programs = Programs(listener)
    STATISTICS.write_text("1")
    try:
        before = programs.times()
        count = reads(file, room, offsets)[1]
        after = programs.times()
    finally:
        STATISTICS.write_text("0")
    nanoseconds, runs = (b - a for a, b in zip(before, after, strict=True))
    return nanoseconds / 1e3 / count, runs / count, count


class Costs(NamedTuple):
    """The costs of a capture."""

    pairs: list[tuple[float, float]]
    """microseconds per read, without the probes and with them"""
    messages: float
    """per read"""
    written: float
    """microseconds of CPU time to write a message"""
    programs: tuple[float, float]
    """by the kernel's count: thousands of instructions of the programs, and their runs, per read"""
    ring: float
    """bytes in the ring per read"""
    sample: bytes
    """of the ring, compressed"""


@on("solo", timeout=7200)
def costs(pairs_of_turns: int, count_of_reads: int) -> Costs:
    """Read with and without a capture, which takes no data of messages."""
    file, room = os.open(FILE, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
    dice = random.Random(1)  # noqa: S311
    offsets = [dice.randrange(8192) * SIZE for _ in range(count_of_reads)]
    pairs, spent, total, taken = [], 0.0, 0, b""
    with listening(8192, False) as listener, TemporaryFile() as out:
        conversations = Conversations(Writer(out, "rpcrdma", "bench"))
        # what is met for the first time takes longer
        timed(listener, file, room, offsets[:TIMED])
        listener.stop()
        list(listener.messages(0))
        for number in range(pairs_of_turns + 1):
            attach(listener)
            if number == pairs_of_turns:
                cost, runs, count = timed(listener, file, room, offsets[:TIMED])
                listener.stop()
                taken = listener._ring.take()
                break
            during, count = reads(file, room, offsets)
            listener.stop()
            began = time.process_time()
            for message in listener.messages(0):
                conversations.write(message)
            spent += time.process_time() - began
            total += count
            pairs.append((reads(file, room, offsets)[0], during))
        for record in records(taken):
            list(listener._assembler.feed(part(record)))
        assert not (lost := listener.total_lost()), f"{lost} messages were lost"
    written = spent * 1e6 / conversations.written
    sample = zlib.compress(taken)
    messages, ring = conversations.written / total, len(taken) / count
    return Costs(pairs, messages, written, (cost, runs), ring, sample)
