# SPDX-License-Identifier: Apache-2.0
"""Part of bench/locks that runs in the node, beside loads_node.py, with the mount in /mnt/bench.

Runs as ``python3 lock_count_node.py MODULE LOAD COUNT``: counts how often the kernel takes locks
that lie in the module's own memory, which all connections share, while a load runs. Prints JSON:
the number of reads, and acquisitions by the name of the variable that has the lock.
"""

from __future__ import annotations

import bisect
import json
import sys
from collections import Counter
from pathlib import Path

import loads_node
from traced_node import traced

# Whatever takes a lock gets its address as the first argument: kernel/locking/spinlock.c, mutex.c,
# rwsem.c.
TAKES = (
    *("_raw_spin_lock*", "_raw_spin_trylock*", "_raw_read_lock*", "_raw_write_lock*"),
    *("mutex_lock*", "mutex_trylock", "down_read*", "down_write*"),
)
PROGRAM = """
BEGIN {{ printf("ready\\n"); }}
{probes} /arg0 >= {start} && arg0 < {end}/ {{ @locks[arg0] = count(); }}
"""


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


def main() -> None:
    module, load, count = sys.argv[1], getattr(loads_node, sys.argv[2]), int(sys.argv[3])
    known = variables(module)
    load(count // 10)
    # a module's memory ends with a page
    program = PROGRAM.format(
        probes=", ".join(f"kprobe:{name}" for name in TAKES),
        start=known[0][0], end=(known[-1][0] | 4095) + 1,
    )  # fmt: skip
    _, maps = traced(program, lambda: load(count))
    locks = Counter[str]()
    # bpftrace prints addresses of the kernel as negative numbers
    for key, number in maps.get("@locks", {}).items():
        locks[name_of(known, int(key) % (1 << 64))] += number
    print(json.dumps({"reads": count, "locks": locks}))


main()
