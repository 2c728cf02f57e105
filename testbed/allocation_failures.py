# SPDX-License-Identifier: Apache-2.0
"""Allocations of our module that fail, in nodes whose kernel can make them fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import Fault
from testbed.scripts import node_script

__all__ = ["LOST", "Failed", "arm", "failing", "swept"]

THERE = "/run/failures.py"
CODE = node_script("module_failures")
# net/sunrpc/fail.h: connections end that nothing is wrong with, here five of them
_LOSE = """
cd /sys/kernel/debug/fail_sunrpc
for name in verbose task-filter ignore-*-disconnect; do echo 0 > $name; done
echo 20 > interval
echo 5 > times
echo 100 > probability
"""
LOST = tuple(Fault(f"{node}'s connections lost", node, _LOSE) for node in ("client", "server"))


@dataclass
class Failed:
    """How many allocations failed, by node, and at which functions of the module."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def add(self, node: str, report: dict[str, Any]) -> None:
        self.counts[node] = self.counts.get(node, 0) + report["failed"]
        for place, count in report["places"].items():
            self.places[place] = self.places.get(place, 0) + count


def bring(lab: Nodes, node: str) -> None:
    lab.run(node, "tee", THERE, stdin=CODE)


def arm(node: str, every: int, times: int = 1_000_000, under: str = "") -> Fault:
    """From here on, of all allocations under a function of the module, each ``every``-th fails.

    The default: under any of its functions.
    """
    script = f"python3 {THERE} begin {every} {times} {under}\n"
    return Fault(f"each {every}. allocation fails", node, script)


@contextmanager
def failing(lab: Nodes, failed: Failed, *faults: Fault) -> Iterator[None]:
    """These of ``arm`` happen; when this ends nothing fails any more in any node."""
    with ExitStack() as undo:
        for node in lab.config.nodes:
            bring(lab, node)
            undo.callback(_end, lab, node, failed)
        for fault in faults:
            lab.run(fault.node, "sh", "-ec", fault.script)
        yield


def _end(lab: Nodes, node: str, failed: Failed) -> None:
    # a report on a console must not leave it switched on
    done = lab.ssh(node).run("python3", THERE, "end", timeout=600)
    failed.add(node, json.loads(done.stdout))


def swept(lab: Nodes, node: str, file: str) -> dict[str, Any]:
    """The module is loaded and unloaded with the first allocation failing, the second, ..."""
    bring(lab, node)
    done = lab.run(node, "python3", THERE, "sweep", file, timeout=1200)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
