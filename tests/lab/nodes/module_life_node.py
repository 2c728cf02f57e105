# SPDX-License-Identifier: Apache-2.0
"""Our module loaded, used and unloaded, over and over, and what that leaves; runs in the node.

``python3 - FILE COUNT OPTIONS...`` prints what there was before and after each round.
Never imported by the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path("/mnt/here")
LIMIT = 60.0
# what our module stands on; a reference that is not given back keeps one of them for ever
BELOW = ("sunrpc", "rdma_cm", "ib_core")


def call(*argv: str | Path) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def references() -> dict[str, int]:
    rows = [line.split() for line in Path("/proc/modules").read_text().splitlines()]
    return {row[0]: int(row[2]) for row in rows if row[0] in BELOW}


def slabs() -> dict[str, int]:
    """Objects in use by kind, when what could be given back has been."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    # what a CPU keeps for itself counts as in use
    for path in Path("/sys/kernel/slab").glob("kmalloc-*/shrink"):
        path.write_text("1\n")
    rows = [line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:]]
    return {row[0]: int(row[1]) for row in rows}


def left() -> dict[str, Any]:
    resources = json.loads(call("rdma", "-j", "resource"))[0]
    return {
        "resources": {name: n for name, n in resources.items() if name != "ifindex"},
        "references": references(),
        "there": [str(path) for path in places() if path.exists()],
        "slabs": slabs(),
    }


def places() -> list[Path]:
    return [Path("/sys/kernel/debug/nfsrdma"), Path("/sys/module/nfsrdma")]


def use(options: str) -> None:
    words = f"{options},proto=rdma,port=20049"
    call("mount", "-t", "nfs", "-o", words, "server:/export", HERE)
    path, noise = HERE / "life", os.urandom(3 << 20)
    path.write_bytes(noise)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    assert path.read_bytes() == noise
    assert path in HERE.iterdir()
    path.unlink()
    call("umount", HERE)


def unloaded() -> None:
    """A transport ends a while after the unmount."""
    end = time.monotonic() + LIMIT
    while subprocess.run(("rmmod", "nfsrdma"), check=False, capture_output=True).returncode:
        assert time.monotonic() < end, "the module stays in use"
        time.sleep(0.1)


def cycle(file: str, options: str) -> dict[str, Any]:
    call("insmod", file)
    assert all(path.exists() for path in places())
    use(options)
    unloaded()
    return left()


def main() -> Any:
    _, file, count, *options = sys.argv
    HERE.mkdir(exist_ok=True)
    # the first use of an NFS version loads its module, which stays
    before = [cycle(file, one) for one in options][-1]
    rounds = [cycle(file, options[number % len(options)]) for number in range(int(count))]
    return [before, *rounds]
