# SPDX-License-Identifier: Apache-2.0
"""What the accounts cost, beside bpftrace: ``make probes-bench``.

On the instruction clock, in one boot and in turns: reads of 4 KiB by O_DIRECT through the kernel's
transport while nobody counts, while an account does, and while bpftrace does. Client and server are
one machine here.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

READS = 300
MOUNT = """
fallocate -l 64M /export/bench-data; mkdir -p /mnt/bench
mount -t nfs -o vers=3,proto=rdma,port=20049,noac 10.9.1.1:/export /mnt/bench
"""


def main() -> None:
    rounds, kernel = int(sys.argv[1]), sys.argv[2]
    script = Path(__file__).with_name("probes_node.py").read_bytes()
    config = LabConfig("bench-probes", clock="instructions", link="none", kernel=kernel)
    with Lab(config) as lab:
        lab.run("solo", "sh", "-ec", MOUNT)
        argv = ("solo", "python3", "-", str(rounds + 1), str(READS))
        found = json.loads(lab.run(*argv, stdin=script, timeout=7200).stdout)
        lab.check()
    # the first turn of each is for warming up
    turns = {way: times[1:] for way, times in found.items()}
    print(f"{'who counts':28}{'thousand instructions':>22}{'more':>9}   range")
    for way, times in turns.items():
        more = sorted(t / n * 100 - 100 for t, n in zip(times, turns["nobody"], strict=True))
        middle = statistics.median(more)
        text = f"{way:28}{statistics.median(times):22.1f}{middle:8.2f} %"
        print(f"{text}   {more[0]:.2f}..{more[-1]:.2f}")


if __name__ == "__main__":
    main()
