# SPDX-License-Identifier: Apache-2.0
"""Part of bench/locks that runs in the node, beside loads_node.py, with the mount in /mnt/bench.

Runs as ``python3 locks_node.py LOAD COUNT``: processes read, while bpftrace traces waits for locks.
Prints JSON: operations per second, and by place the number of waits and their nanoseconds.
A place is the function that takes the lock, and its caller.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import loads_node
from traced_node import traced

# A wait for a spin lock is a call of the slow path: the kernel's tracepoint leaves out a processor
# that is the only one to wait (kernel/locking/qspinlock.c). Others have the tracepoint, without 1,
# LCB_F_SPIN alone (include/trace/events/lock.h).
PROGRAM = """
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


def place(stack: str) -> str:
    """The function that took the lock, and its caller."""
    # bpftrace escapes the ends of lines twice
    lines = stack.replace("\\n", "\n").splitlines()
    names = [line.strip().split("+")[0] for line in lines if line.strip()]
    while len(names) > 1 and LOCK.match(names[0]):
        names.pop(0)
    return " < ".join(names[:2])


def main() -> None:
    load, count = getattr(loads_node, sys.argv[1]), int(sys.argv[2])
    load(count // 10)
    seconds, maps = traced(PROGRAM, lambda: load(count))
    waits, ns = Counter[str](), Counter[str]()
    for stack, number in maps.get("@waits", {}).items():
        waits[place(stack)] += number
    for stack, number in maps.get("@ns", {}).items():
        ns[place(stack)] += number
    print(json.dumps({"per_second": count / seconds, "waits": waits, "ns": ns}))


main()
