# SPDX-License-Identifier: Apache-2.0
"""Memory that a kernel does not get back: kmemleak in the nodes of a lab, and counts that grow."""

from __future__ import annotations

from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["check", "growth"]

FOUND = "/sys/kernel/debug/kmemleak"
# an object counts when it is five seconds old and two scans found the same in it
SCAN = f"test ! -e {FOUND} || for time in 1 2; do sleep 6; echo scan > {FOUND}; done"
# siw_alloc_mr() forgets it when its next allocation fails: its error path frees it only if there
# is no region yet (drivers/infiniband/sw/siw/siw_verbs.c, 6.12)
KNOWN = " siw_pbl_alloc+"
OBJECT = "unreferenced object"


def check(lab: Nodes) -> None:
    """Scan every node; AssertionError with the places where what leaked was allocated."""
    for node in lab.config.nodes:
        try:
            lab.run(node, "sh", "-ec", SCAN, timeout=600)
        except KernelReportError as error:
            # the console tells how many, not which
            told = lab.ssh(node).run("cat", FOUND, timeout=600, check=False).stdout
            before, *objects = told.split(OBJECT)
            ours = [leak for leak in objects if KNOWN not in leak]
            if ours or not objects:
                text = OBJECT.join((before, *ours))
                raise AssertionError(f"{error}\n{text}") from error


def growth(slabs: list[dict[str, int]]) -> dict[str, int]:
    """Objects that are there in all of the later rounds, but were not in all of the earlier."""
    half = len(slabs) // 2
    kinds = [name for name in slabs[0] if name.startswith("kmalloc")]
    lowest = {
        name: min(slab[name] for slab in slabs[half:]) - min(slab[name] for slab in slabs[:half])
        for name in kinds
    }
    # one object in each round would be as many as there are rounds between the halves
    leaks = {name: n for name, n in lowest.items() if n > half * 4 // 5}
    assert not leaks, leaks
    return {name: n for name, n in lowest.items() if n > 0}
