# SPDX-License-Identifier: Apache-2.0
"""Memory of a node's kernel."""

from __future__ import annotations

from pathlib import Path

__all__ = ["meminfo", "slabs"]


def meminfo(name: str) -> int:
    """Bytes of a row of /proc/meminfo, such as MemAvailable."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * next(int(row[1]) for row in rows if row[0] == f"{name}:")


def slabs() -> dict[str, int]:
    """Objects in use by kind (slabinfo(5)), without those that a CPU keeps for itself."""
    for path in Path("/sys/kernel/slab").glob("kmalloc-*/shrink"):
        path.write_text("1\n")
    rows = [line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:]]
    return {row[0]: int(row[1]) for row in rows}
