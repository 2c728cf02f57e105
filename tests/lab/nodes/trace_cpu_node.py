# SPDX-License-Identifier: Apache-2.0
"""The part of test_trace_cpu.py in a node: figures of CPU time under a load; prints JSON.

``layers``: the rows of probe set cpu in each interval, and the values of bpftrace and /proc/stat.
``hotplug``: the lines of several commands while a CPU goes offline and comes online again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
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


def layers() -> None:
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


CPU1 = Path("/sys/devices/system/cpu/cpu1/online")
# seconds of a spinning process are seconds of CPU time
SPIN = ("sh", "-c", "while :; do :; done")
# values of CPU1 in turn: a CPU that is away for whole intervals, and for a part of one
FLIPS = (("0",), (), ("1",), (), ("0", "1"), ("0",), ("1", "0"), ("1",), ())
SAMPLED: dict[str, tuple[str, ...]] = {
    "trace": ("nfsrdma", "trace", "cpu", "--interval", "1", "--json"),
    "top": ("nfsrdma", "top", "--batch", "--json", "--no-probes", "--interval", "0.5"),
    "server": ("nfsrdma", "server", "cpu", "--interval", "0.5"),
}


def _flip(values: tuple[str, ...]) -> bool:
    """Set the state of CPU 1; returns false if the kernel cannot."""
    try:
        for value in values:
            CPU1.write_text(value)
    except OSError:
        return False
    return True


def hotplug() -> None:
    """Flip CPU 1 when `trace` has printed an interval: it begins another one then."""
    if not (_flip(("0",)) and _flip(("1",))):
        print(json.dumps({"can": False}))
        return
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            for name, argv in SAMPLED.items()
        }
        load = stack.enter_context(subprocess.Popen(SPIN))
        stack.callback(CPU1.write_text, "1")
        stack.callback(load.terminate)
        for program in programs.values():
            stack.callback(program.terminate)
        trace = programs["trace"].stdout
        assert trace
        lines, flipped = [trace.readline(), trace.readline()], True
        for values in FLIPS:
            flipped = _flip(values) and flipped
            lines.append(trace.readline())
        for program in programs.values():
            program.terminate()
        found = {name: program.communicate()[0] for name, program in programs.items()}
    whole = {name: text.splitlines(keepends=True) for name, text in found.items()}
    whole["trace"] = lines
    # the end may cut a line
    rows = {name: [json.loads(x) for x in text if x.endswith("\n")] for name, text in whole.items()}
    print(json.dumps({"can": True, "flipped": flipped, **rows}))


globals()[sys.argv[1]]()
