# SPDX-License-Identifier: Apache-2.0
"""Part of wires.py that runs in the node: direct reads of /mnt/bench/bench-data, eight at a time.

Prints JSON: MB/s, and the busy share of the CPU.
"""

from __future__ import annotations

import json
import subprocess

from nfsrdma_tools.host import cpu_time

SIZE = 64 << 20
LOOPS = 2
FIO = (
    *("fio", "--name=wires", "--filename=/mnt/bench/bench-data", "--rw=read", "--direct=1"),
    *("--ioengine=libaio", "--iodepth=8", "--bs=512k", f"--size={SIZE}", "--output-format=json"),
)


def read(loops: int) -> tuple[float, float]:
    """Seconds of reading by fio's clock, and seconds of this machine's CPU."""
    before = cpu_time.snapshot()
    done = subprocess.run((*FIO, f"--loops={loops}"), check=True, capture_output=True, text=True)
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    (job,) = json.loads(done.stdout)["jobs"]
    return job["read"]["runtime"] / 1e3, spent.busy_ns / 1e9


def main() -> None:
    read(1)
    # the start of fio takes time, too: it is in both runs
    (short, few), (long, many) = read(LOOPS), read(3 * LOOPS)
    seconds = long - short
    moved = 2 * LOOPS * SIZE
    print(json.dumps({"rate": moved / 1e6 / seconds, "cpu": (many - few) / seconds}))


main()
