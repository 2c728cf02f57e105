# SPDX-License-Identifier: Apache-2.0
"""Locks of a load over the mount in /mnt/bench, which bpftrace traces in the node."""

from __future__ import annotations

import bisect
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.loads import WORKS
from testbed.remote import on

__all__ = ["Waits", "acquisitions", "waits"]

# A wait for a spin lock is a call of the slow path: the kernel's tracepoint leaves out a processor
# that is the only one to wait (kernel/locking/qspinlock.c). Others have the tracepoint, without 1,
# LCB_F_SPIN alone (include/trace/events/lock.h).
TRACE_WAITS = """
BEGIN { printf("ready\\n"); }
kprobe:native_queued_spin_lock_slowpath { @spin[cpu] = nsecs; @stack[cpu] = kstack(8); }
kretprobe:native_queued_spin_lock_slowpath /@spin[cpu]/ {
	@waits[@stack[cpu]] = count();
	@ns[@stack[cpu]] = sum(nsecs - @spin[cpu]);
	delete(@spin[cpu]);
}
tracepoint:lock:contention_begin /args.flags != 1/ {
	@since[tid] = nsecs; @place[tid] = kstack(12);
}
tracepoint:lock:contention_end /@since[tid]/ {
	@waits[@place[tid]] = count();
	@ns[@place[tid]] = sum(nsecs - @since[tid]);
	delete(@since[tid]);
}
END { clear(@spin); clear(@stack); clear(@since); clear(@place); }
"""
# functions of locks themselves
LOCK = re.compile(
    r"(__)?((native_)?queued_|_?raw_|pv_|osq_|mutex_|rt_|rwsem_|down_|up_|percpu_|traceiter_)"
    r"|(perf_trace|trace_event_raw_event|bpf)_|0x|kretprobe|arch_rethook|.*slowpath"
)
# Whatever takes a lock gets its address as the first argument: kernel/locking/spinlock.c, mutex.c,
# rwsem.c.
TAKES = (
    *("_raw_spin_lock*", "_raw_spin_trylock*", "_raw_read_lock*", "_raw_write_lock*"),
    *("mutex_lock*", "mutex_trylock", "down_read*", "down_write*"),
)
COUNT_LOCKS = """
BEGIN {{ printf("ready\\n"); }}
{probes} /arg0 >= {start} && arg0 < {end}/ {{ @locks[arg0] = count(); }}
"""


class Waits(NamedTuple):
    """Waits for locks, by place: the function that takes the lock, and its caller."""

    per_second: float
    """operations"""
    waits: dict[str, int]
    ns: dict[str, int]
    """their nanoseconds"""


@on("solo", timeout=3600)
def waits(load: str, count: int) -> Waits:
    """Trace the waits for locks while a load runs."""
    work = WORKS[load]
    work(count // 10)
    seconds, maps = traced(TRACE_WAITS, lambda: work(count))
    waits, ns = Counter[str](), Counter[str]()
    for stack, number in maps.get("@waits", {}).items():
        waits[place(stack)] += number
    for stack, number in maps.get("@ns", {}).items():
        ns[place(stack)] += number
    return Waits(count / seconds, dict(waits), dict(ns))


@on("solo", timeout=3600)
def acquisitions(module: str, load: str, count: int) -> dict[str, int]:
    """Count how often the kernel takes each lock in a module's own memory while a load runs.

    All connections share that memory.  By the name of the variable that has the lock.
    """
    known, work = variables(module), WORKS[load]
    work(count // 10)
    # a module's memory ends with a page
    program = COUNT_LOCKS.format(
        probes=", ".join(f"kprobe:{name}" for name in TAKES),
        start=known[0][0], end=(known[-1][0] | 4095) + 1,
    )  # fmt: skip
    _, maps = traced(program, lambda: work(count))
    locks = Counter[str]()
    # bpftrace prints addresses of the kernel as negative numbers
    for key, number in maps.get("@locks", {}).items():
        locks[name_of(known, int(key) % (1 << 64))] += number
    return dict(locks)


def traced(program: str, load: Callable[[], object]) -> tuple[float, dict[str, Any]]:
    """Run a load under a program of bpftrace that prints "ready" when its probes are there.

    Returns the seconds of the load, and the maps of the program by their names.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "maps"
        argv = ("bpftrace", "-q", "-f", "json", "-o", str(output), "-e", program)
        tracer = subprocess.Popen(argv)
        while not (output.exists() and "ready" in output.read_text()):
            if tracer.poll() is not None:
                raise SystemExit("bpftrace ended")
            time.sleep(0.1)
        start = time.monotonic()
        load()
        seconds = time.monotonic() - start
        tracer.terminate()
        if tracer.wait():
            raise SystemExit("bpftrace failed")
        lines = [json.loads(line) for line in output.read_text().splitlines() if line]
    maps = [line["data"] for line in lines if line["type"] == "map"]
    return seconds, {name: values for data in maps for name, values in data.items()}


def place(stack: str) -> str:
    """The function that took the lock, and its caller."""
    # bpftrace escapes the ends of lines twice
    lines = stack.replace("\\n", "\n").splitlines()
    names = [line.strip().split("+")[0] for line in lines if line.strip()]
    while len(names) > 1 and LOCK.match(names[0]):
        names.pop(0)
    return " < ".join(names[:2])


def variables(module: str) -> list[tuple[int, str]]:
    """The addresses and names of the variables of a module, in order."""
    symbols = []
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name, *where = line.split()
        if where == [f"[{module}]"] and kind in "bBdD":
            symbols.append((int(address, 16), name))
    if not symbols:
        raise SystemExit(f"{module}: kallsyms has none of its variables")
    return sorted(symbols)


def name_of(variables: list[tuple[int, str]], address: int) -> str:
    return variables[bisect.bisect_right(variables, (address, "\U0010ffff")) - 1][1]
