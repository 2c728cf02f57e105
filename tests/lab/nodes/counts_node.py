# SPDX-License-Identifier: Apache-2.0
"""Part of test_module_counts.py that runs in the client: ``python3 - read|write COUNT SIZE``.

Mounts, and leaves mounted. Prints the counts of the transfers alone, by mountstats and the events.
"""

import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

from nfsrdma_tools.host.nfs import mountstats

TRACING, MOUNT = Path("/sys/kernel/tracing"), Path("/mnt")
COLUMNS = ("read_chunk_count", "write_chunk_count", "reply_chunk_count", "nomsg_call_count")


def transfer(kind: str, count: int, size: int) -> None:
    """``kind`` names the chunk: data that is read comes in Write chunks."""
    room = mmap.mmap(-1, size)
    file = os.open(MOUNT / "counted", os.O_RDWR | os.O_DIRECT)
    for turn in range(count):
        if kind == "write":
            done = os.preadv(file, [room], turn * size)
        else:
            done = os.pwritev(file, [room], turn * size)
        assert done == size
    os.close(file)


def events() -> list[tuple[str, str, int]]:
    """Name, kind of chunk and length of each event; length 0 where it has none."""
    found = []
    for line in (TRACING / "trace").read_text().splitlines():
        if match := re.search(r": nfsrdma_(\w+): (.*)", line):
            words = dict(word.split("=", 1) for word in match[2].split() if "=" in word)
            found.append((match[1], words.get("kind", ""), int(words.get("length", "0"))))
    return found


def main(kind: str, count: int, size: int) -> None:
    options = f"vers=3,proto=rdma,port=20049,rsize={size},wsize={size}"
    subprocess.run(("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", MOUNT), check=True)
    # a hole: making the file moves no data
    with (MOUNT / "counted").open("wb") as file:
        file.truncate(count * size)
    before = mountstats.read(MOUNT)
    (TRACING / "trace").write_text("")
    (TRACING / "events/nfsrdma/enable").write_text("1")
    transfer(kind, count, size)
    (TRACING / "events/nfsrdma/enable").write_text("0")
    found = mountstats.difference(mountstats.read(MOUNT), before)
    counters = {name: found.xprts[0].counters[name] for name in COLUMNS}
    rpcs = found.operations["READ" if kind == "write" else "WRITE"].operations
    every = sum(operation.operations for operation in found.operations.values())
    print(json.dumps({"counters": counters, "rpcs": rpcs, "every": every, "events": events()}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
