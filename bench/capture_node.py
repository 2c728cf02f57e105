# SPDX-License-Identifier: Apache-2.0
"""Part of bench/capture.py that runs in a node: reads of 4 KiB, with and without a capture.

Prints JSON: pairs of microseconds per read, without the probes and with them; messages per read;
microseconds of CPU time to write a message.
"""

import json
import mmap
import os
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

from nfsrdma_tools.capture import probes
from nfsrdma_tools.capture.conversation import Conversations
from nfsrdma_tools.capture.files import Writer
from nfsrdma_tools.capture.layout import OURS
from nfsrdma_tools.capture.probes import Listener, listening
from nfsrdma_tools.probes.btf import load
from nfsrdma_tools.probes.program import has_event, has_system

SIZE, FILE = 4096, Path("/mnt/bench/bench-data")
PAIRS, READS, DATA = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "head"


def reads(file: int, room: mmap.mmap, offsets: list[int]) -> float:
    """The microseconds of a read."""
    # what is met for the first time takes longer
    for offset in offsets[:50]:
        os.preadv(file, [room], offset)
    start = time.perf_counter()
    for offset in offsets:
        assert os.preadv(file, [room], offset) == SIZE
    return (time.perf_counter() - start) * 1e6 / len(offsets)


def attach(listener: Listener) -> None:
    """Attach the probes that ``stop`` detached; nothing is compiled again."""
    bpf = listener._bpf
    if has_event(*OURS):
        bpf.attach_tracepoint(tp=":".join(OURS).encode(), fn_name=f"tracepoint__{'__'.join(OURS)}")
    if has_system("rpcrdma"):
        probes._attach(bpf, load(("rpcrdma",))["rpcrdma"])


def main() -> None:
    file, room = os.open(FILE, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
    dice = random.Random(1)  # noqa: S311
    offsets = [dice.randrange(8192) * SIZE for _ in range(READS)]
    pairs, messages, spent = [], 0, 0.0
    with listening(8192, DATA) as listener, TemporaryFile() as out:
        conversations = Conversations(Writer(out, "rpcrdma", "bench"))
        for _ in range(PAIRS):
            during = reads(file, room, offsets)
            listener.stop()
            began = time.process_time()
            for message in listener.messages(0):
                conversations.write(message)
            spent += time.process_time() - began
            pairs.append((reads(file, room, offsets), during))
            attach(listener)
        listener.stop()
        list(listener.messages(0))
        messages = conversations.written
        lost = listener.total_lost()
    count = PAIRS * (READS + min(50, READS))
    print(
        json.dumps(
            {
                "pairs": pairs,
                "messages": messages / count,
                "written": spent * 1e6 / messages,
                "lost": lost,
            }
        )
    )


main()
