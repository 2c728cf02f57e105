# SPDX-License-Identifier: Apache-2.0
"""The part of test_trace_cpu.py in a node: probe set cpu under a load, and two other clocks.

Prints JSON: the rows of each interval, and the values of bpftrace and /proc/stat for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDED = Path("/run/cpu.folded")
# nanoseconds that threads of nfsd ran, and the monotonic clock, each second
SWITCHES = """
tracepoint:sched:sched_switch {
    if (@on[cpu]) { @ns += nsecs - @on[cpu]; }
    @on[cpu] = args.next_comm == "nfsd" ? nsecs : 0;
}
interval:s:1 { printf("%lld %lld\\n", nsecs, @ns); }
"""
LOAD = "while dd if=/mnt/cpu/cpu-data of=/dev/null bs=1M iflag=direct status=none; do :; done"
TRACE = ("nfsrdma", "trace", "cpu", "--interval", "3", "--count", "4", "--json", "--folded", FOLDED)


def not_idle() -> tuple[int, int]:
    """The monotonic clock, and /proc/stat's busy time, ns."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    now = time.monotonic_ns()
    idle = (ticks[3] + ticks[4]) * 10**9 // os.sysconf("SC_CLK_TCK")
    return now, now * (os.cpu_count() or 1) - idle


def main() -> None:
    load = subprocess.Popen(("sh", "-c", LOAD))
    other = subprocess.Popen(("bpftrace", "-e", SWITCHES), stdout=subprocess.PIPE, text=True)
    found, stat = [], []
    with subprocess.Popen(TRACE, stdout=subprocess.PIPE, text=True) as trace:
        assert trace.stdout
        for line in trace.stdout:
            stat.append(not_idle())
            found.append(json.loads(line))
    load.terminate()
    other.terminate()
    said = other.communicate()[0].splitlines()
    counted = [[int(word) for word in line.split()] for line in said if line[:1].isdigit()]
    meanwhile = [(at, ns) for at, ns in counted if stat[0][0] <= at <= stat[-1][0]]
    if trace.returncode:
        sys.exit(trace.returncode)
    stacks = FOLDED.read_text()
    FOLDED.unlink()
    print(json.dumps({"lines": found, "stat": stat, "nfsd": meanwhile, "stacks": stacks}))


main()
