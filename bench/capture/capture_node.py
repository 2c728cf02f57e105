# SPDX-License-Identifier: Apache-2.0
"""Part of bench/capture.py that runs in a node: reads of 4 KiB, with and without a capture.

Prints JSON: pairs of microseconds per read, without the probes and with them; messages per read;
microseconds of CPU time to write a message; what the kernel counts of the programs, per read; bytes
in the ring per read, and a sample of them.
"""

import base64
import json
import mmap
import os
import random
import re
import sys
import time
import zlib
from pathlib import Path
from tempfile import TemporaryFile

from nfsrdma_tools.capture import probes
from nfsrdma_tools.capture.conversation import Conversations
from nfsrdma_tools.capture.files import Writer
from nfsrdma_tools.capture.layout import OURS
from nfsrdma_tools.capture.messages import part
from nfsrdma_tools.capture.probes import Listener, listening
from nfsrdma_tools.capture.ring import records
from nfsrdma_tools.probes.btf import load
from nfsrdma_tools.probes.program import has_event, has_system

SIZE, FILE = 4096, Path("/mnt/bench/bench-data")
# in the turn of the kernel's count
TIMED = 100
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
PAIRS, READS, DATA = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "head"


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


def main() -> None:
    file, room = os.open(FILE, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
    dice = random.Random(1)  # noqa: S311
    offsets = [dice.randrange(8192) * SIZE for _ in range(READS)]
    pairs, spent, total, taken = [], 0.0, 0, b""
    with listening(8192, DATA) as listener, TemporaryFile() as out:
        conversations = Conversations(Writer(out, "rpcrdma", "bench"))
        # what is met for the first time takes longer
        timed(listener, file, room, offsets[:TIMED])
        listener.stop()
        list(listener.messages(0))
        for number in range(PAIRS + 1):
            attach(listener)
            if number == PAIRS:
                *costs, count = timed(listener, file, room, offsets[:TIMED])
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
        lost = listener.total_lost()
    told = {
        "pairs": pairs,
        "messages": conversations.written / total,
        "written": spent * 1e6 / conversations.written,
        "programs": costs,
        "ring": len(taken) / count,
        "sample": base64.b64encode(zlib.compress(taken)).decode(),
        "lost": lost,
    }
    print(json.dumps(told))


main()
