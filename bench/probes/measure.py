# SPDX-License-Identifier: Apache-2.0
"""Compares the cost of probe sets with bpftrace.

On the instruction clock, in one boot and in turns, it makes 4 KiB reads by O_DIRECT through
rpcrdma: with a probe set or bpftrace attached, and as many without. The cost of a read without
probes varies by a tenth within a boot, so only neighbours are compared. The difference between
"nobody" and no probes is the noise. Client and server are one machine here.
"""

from __future__ import annotations

import statistics

from bench.probes.reads import costs
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab

READS = 250
MOUNT = """
fallocate -l 64M /export/bench-data; mkdir -p /mnt/bench
mount -t nfs -o vers=3,proto=rdma,port=20049,noac 10.9.1.1:/export /mnt/bench
"""


def main(rounds: int = 3, kernel: str = KERNELS[0]) -> None:
    """Compare the cost of a read with each probe set and with bpftrace."""
    config = LabConfig(
        "bench-probes", clock="instructions", link="none", kernel=kernel, extras=True
    )
    with Lab(config) as lab:
        lab.run("solo", "sh", "-ec", MOUNT)
        by_way = costs(lab, rounds, READS)
        lab.check()
    print(f"{'who counts':28}{'thousand instructions':>22}{'more':>9}   middle half")
    for way, pairs in by_way.items():
        more = sorted(during / without * 100 - 100 for without, during in pairs)
        middle = statistics.median(more)
        each = statistics.median(during for _, during in pairs)
        low, _, high = statistics.quantiles(more)
        print(f"{way:28}{each:22.1f}{middle:8.2f} %   {low:.2f}..{high:.2f}")
