# SPDX-License-Identifier: Apache-2.0
"""A lab of one machine: data, mounts, and loads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from bench.loads import Turn, measured
from nfsrdma_tools.lab.lab import Lab
from testbed.programs import place_compiled

READERS = Path(__file__).with_name("readers")
# of their programs in the node
FOLDER = "/run/bench"

LOADS = {
    "scattered": ("4 KiB random O_DIRECT read", 400),
    "sequential": ("1 MiB O_DIRECT read", 32),
    "writes": ("1 MiB O_DIRECT write", 24),
    "small_writes": ("4 KiB O_DIRECT write", 300),
    "crowd": ("4 KiB random O_DIRECT read, 16 processes", 3200),
    "queue": ("128 KiB O_DIRECT read, io_uring, 16 at a time", 1600),
    "attributes": ("stat(2), noac", 600),
    "listing": ("readdir of 10,000 entries", 2),
    "cached": ("64 MiB through the cache, 8 KiB calls, rsize 512 KiB", 1),
}
RDMA, TCP = "proto=rdma,port=20049", "proto=tcp"
MOUNT = f"vers=3,{RDMA},noac"
OFFLOADS = "tso gso gro tx rx sg"


def offloads(state: str) -> str:
    """Commands that switch the offloads of both network devices on or off."""
    words = " ".join(f"{name} {state}" for name in OFFLOADS.split())
    return f"for end in v0 v1; do ethtool -K $end {words} >/dev/null; done"


# with data, because a file without has no pages that a client could read by itself
PREPARE = """
yes | head -c 64M | tee /export/bench-data > /export/bench-written; sync
mkdir -p /export/bench-listed /mnt/bench
seq -f /export/bench-listed/a-file-with-a-name-%g 10000 | xargs touch
"""


def sh(lab: Lab, script: str, timeout: float = 600) -> str:
    return lab.run("solo", "sh", "-ec", script, timeout=timeout).stdout


def write_stamped(path: Path, size: int, start: int = 0) -> None:
    """In a node, write a file; each page begins with its offset plus ``start``, for readers."""
    with path.open("wb") as file:
        for at in range(0, size, 4096):
            file.write(struct.pack("<Q", start + at).ljust(min(4096, size - at), b"x"))


def place_reader(lab: Lab, name: str) -> None:
    """Compile a reader that needs no library, and put it into the node."""
    place_compiled(lab, "solo", READERS / f"{name}.c", f"{FOLDER}/{name}")


def mount(lab: Lab, options: str) -> None:
    sh(lab, f"mount -t nfs -o vers=3,{options} server:/export /mnt/bench")


def unmount(lab: Lab) -> None:
    sh(lab, "umount /mnt/bench")


def loads(lab: Lab, names: Sequence[str]) -> Turn:
    return measured(lab, {name: LOADS[name][1] for name in names})
