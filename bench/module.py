# SPDX-License-Identifier: Apache-2.0
"""Our client module beside the kernel's: ``make module-bench``, for a host with nothing else to do.

A pair lab; the server keeps the kernel's module. The client takes turns: ours, the kernel's, ours,
..., because the host's speed drifts. Each round compares neighbours; the median of those ratios and
the range of them are printed, so that a difference smaller than the spread shows as one.

With CLOCK=counted a node's clock goes one nanosecond per instruction while its CPU works: CPU time
is then thousands of instructions for each operation, the same on any host, and speed means nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, carry

SCRIPT = Path(__file__).with_name("module_node.py").read_bytes()
COUNTS = ("sequential=48", "scattered=600", "attributes=600")
MOUNT = "vers=3,proto=rdma,port=20049,noac,rsize=1048576"
LOADS = {
    "sequential": "1 MiB reads",
    "scattered": "4 KiB random reads",
    "attributes": "getattr storm",
}
UNITS = {
    "per_second": "/s",
    "cpu_us": " us CPU",
    "switches": " thread switches",
    "ipis": " interrupts between processors",
}
Round = dict[str, dict[str, float]]


def one(pair: Lab, which: str) -> Round:
    """A round of all loads with our module, or with the kernel's."""
    carry(pair, "client", which)
    pair.run("client", "mkdir", "-p", "/mnt/bench")
    pair.run("client", "mount", "-t", "nfs", "-o", MOUNT, "server:/export", "/mnt/bench")
    found = pair.run("client", "python3", "-", *COUNTS, stdin=SCRIPT, timeout=1800).stdout
    pair.run("client", "umount", "/mnt/bench")
    return dict(json.loads(found))


def large_blocks(pair: Lab) -> None:
    """Have the server take requests of 1 MiB: nfsd takes less where memory is below 4 GiB."""
    script = (
        "systemctl stop nfs-server; echo 1048576 > /proc/fs/nfsd/max_block_size;"
        "systemctl start nfs-server; grep -q rdma /proc/fs/nfsd/portlist ||"
        "echo 'rdma 20049' > /proc/fs/nfsd/portlist"
    )
    pair.run("server", "sh", "-c", script)


def ratios(ours: list[Round], kernels: list[Round], load: str, key: str) -> list[float]:
    return sorted(o[load][key] / k[load][key] for o, k in zip(ours, kernels, strict=True))


def line(ours: list[Round], kernels: list[Round], load: str) -> str:
    words = [f"{LOADS[load]:20}"]
    for key, unit in UNITS.items():
        spread = ratios(ours, kernels, load, key)
        values = [statistics.median(r[load][key] for r in rounds) for rounds in (ours, kernels)]
        words.append(
            f"{values[0]:8.1f} : {values[1]:8.1f}{unit}  x{statistics.median(spread):.3f}"
            f" ({spread[0]:.3f}..{spread[-1]:.3f})"
        )
    return "  ".join(words)


def main() -> None:
    rounds, clock = int(sys.argv[1]), sys.argv[2]
    found: dict[str, list[Round]] = {THEIRS: [], OURS: []}
    with Lab(LabConfig("module-bench", shape="pair", clock=clock)) as pair:
        large_blocks(pair)
        for name in ("bench-data", "bench-written"):
            pair.run("server", "fallocate", "-l", "64M", f"/export/{name}")
        for turn in range(rounds):
            for which, mine in found.items():
                mine.append(one(pair, which))
                print(f"round {turn + 1} of {rounds}: {which} {json.dumps(mine[-1])}", flush=True)
        pair.check()
    print("ours : the kernel's, medians; ratio, and the range of ratios of neighbouring rounds")
    for load in LOADS:
        print(line(found[OURS], found[THEIRS], load))


if __name__ == "__main__":
    main()
