# SPDX-License-Identifier: Apache-2.0
"""Our module beside the kernel's, client and server of each in one machine: ``make bench``.

On the instruction clock, where a microsecond is a thousand instructions and the figures are the
same on any host. In turns within one boot; the first turn of each is for warming up. Without a wire
between the two soft-RoCE devices: what is counted is the work, the emulated device's included.
"""

from __future__ import annotations

import json
import statistics
import sys

from carriers import OURS, THEIRS, serve

from bench.module import SCRIPT
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

LOADS = {
    "scattered": ("4 KiB random O_DIRECT reads", 400, 0.80),
    "sequential": ("1 MiB O_DIRECT reads", 32, 0.85),
    "writes": ("1 MiB O_DIRECT writes", 24, 0.85),
    "small_writes": ("4 KiB O_DIRECT writes", 300, None),
    "attributes": ("getattr", 600, 0.85),
    "listing": ("readdir of 10,000 entries", 2, 0.95),
}
MOUNT = "vers=3,proto=rdma,port=20049,noac"
# what each side is best with, found by trying: ours has it by default
BEST = {
    OURS: "true",
    THEIRS: "sysctl -w sunrpc.rdma_max_inline_read=8192 sunrpc.rdma_max_inline_write=8192;"
    "sysctl -w sunrpc.svc_rdma.max_req_size=8192",
}
PREPARE = """
fallocate -l 64M /export/bench-data; mkdir -p /export/bench-listed /mnt/bench
seq -f /export/bench-listed/a-file-with-a-name-%g 10000 | xargs touch
"""
REGISTRATIONS = """
cd /sys/kernel/tracing; echo > trace; echo 1 > events/{event}/enable
dd if=/mnt/bench/bench-data of=/dev/null bs=1M count=8 iflag=direct status=none
echo 0 > events/{event}/enable; grep -c {name}: trace
"""
EVENTS = {
    OURS: ("nfsrdma/nfsrdma_mr_fastreg", "nfsrdma_mr_fastreg"),
    THEIRS: ("rpcrdma/xprtrdma_mr_fastreg", "xprtrdma_mr_fastreg"),
}
Turn = dict[str, dict[str, float]]


def sh(lab: Lab, script: str, timeout: float = 600) -> str:
    return lab.run("solo", "sh", "-ec", script, timeout=timeout).stdout


def turn(lab: Lab, which: str, tuned: bool) -> Turn:
    serve(lab, "solo", which)
    if tuned:
        # read when a connection is made
        sh(lab, BEST[which])
    sh(lab, f"mount -t nfs -o {MOUNT} server:/export /mnt/bench")
    counts = [f"{name}={count}" for name, (_, count, _) in LOADS.items()]
    found: Turn = json.loads(
        lab.run("solo", "python3", "-", *counts, stdin=SCRIPT, timeout=3600).stdout
    )
    event, name = EVENTS[which]
    said = sh(lab, REGISTRATIONS.format(event=event, name=name))
    found["sequential"]["registrations"] = int(said) / 8
    sh(lab, "umount /mnt/bench")
    return found


def table(ours: list[Turn], kernels: list[Turn]) -> None:
    print(f"{'':30}{'ours':>10}{'kernel':>10}{'ratio':>8}{'goal':>7}   range of ratios")
    for name, (text, _, goal) in LOADS.items():
        ratios = sorted(o[name]["us"] / k[name]["us"] for o, k in zip(ours, kernels, strict=True))
        values = [statistics.median(t[name]["us"] for t in turns) for turns in (ours, kernels)]
        print(
            f"{text:30}{values[0]:10.1f}{values[1]:10.1f}{statistics.median(ratios):8.3f}"
            f"{goal or '':>7}   {ratios[0]:.3f}..{ratios[-1]:.3f}"
        )
    counts = [turns[0]["sequential"]["registrations"] for turns in (ours, kernels)]
    print(f"{'registrations for 1 MiB':30}{counts[0]:10.2f}{counts[1]:10.2f}")


def main() -> None:
    rounds, kernel = int(sys.argv[1]), sys.argv[2]
    config = LabConfig("bench", clock="instructions", link="none", kernel=kernel, memory=4608)
    with Lab(config) as lab:
        sh(lab, PREPARE)
        for tuned in (False, True):
            turns: dict[str, list[Turn]] = {THEIRS: [], OURS: []}
            for number in range(rounds + 1):
                for which, found in turns.items():
                    found.append(turn(lab, which, tuned))
                    print(f"turn {number} of {rounds}: {which} {json.dumps(found[-1])}", flush=True)
            print("best tunables:" if tuned else "defaults:", "thousands of instructions each")
            table(turns[OURS][1:], turns[THEIRS][1:])
        lab.check()


if __name__ == "__main__":
    main()
