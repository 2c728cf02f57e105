# SPDX-License-Identifier: Apache-2.0
"""Our module loaded, used and unloaded, over and over: what is left afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import LIMIT
from testbed.scripts import on

__all__ = ["life", "taken_out"]


@contextmanager
def taken_out(lab: Nodes) -> Iterator[str]:
    """Our module is in its file only, nobody has the transport class; then it is loaded."""
    said = lab.run("client", "nfsrdma", "module", "build", "--json").stdout
    lab.run("client", "nfsrdma", "module", "unload")
    lab.run("client", "modprobe", "-r", "rpcrdma")
    try:
        yield json.loads(said)["path"]
    finally:
        lab.run("client", "modprobe", "rpcrdma")
        lab.run("client", "nfsrdma", "module", "load")


def life(lab: Nodes, rounds: int, *options: str) -> dict[str, int]:
    """Loaded, used and unloaded, over and over; returns by how much each kind of memory grew."""
    with taken_out(lab) as file:
        words = (file, str(rounds), *options)
        found = on(lab, "client", "life", *words, timeout=60 * rounds + LIMIT)
    for name in ("resources", "references", "there"):
        assert [one[name] for one in found] == [found[0][name]] * len(found), name
    assert found[0]["there"] == []
    # the first rounds fill caches
    return growth([one["slabs"] for one in found[3:]]) if rounds >= 20 else {}


def growth(slabs: list[dict[str, int]]) -> dict[str, int]:
    """Objects that are there in all of the later rounds, but were not in all of the earlier."""
    half = len(slabs) // 2
    kinds = [name for name in slabs[0] if name.startswith("kmalloc")]
    lowest = {
        name: min(one[name] for one in slabs[half:]) - min(one[name] for one in slabs[:half])
        for name in kinds
    }
    # one object in each round would be as many as there are rounds between the halves
    leaks = {name: n for name, n in lowest.items() if n > half * 4 // 5}
    assert not leaks, leaks
    return {name: n for name, n in lowest.items() if n > 0}
