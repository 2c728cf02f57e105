# SPDX-License-Identifier: Apache-2.0
"""Runs ``nfsrdma trace`` in a node of a lab while a test does something else there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.probes.row_filter import of_mount

__all__ = ["DONE", "SAID", "by_procedure", "said", "tracing"]

SAID = "/run/traced"
"""Its output: one JSON object per line."""
DONE = {"READ": 23, "WRITE": 17}
"""The RPCs of the load of trace_kernels_node.py, by procedure, among others."""
# it prints the first line once all probes are attached
START = f"""
nfsrdma trace "$1" --json --interval 1 >{SAID} 2>&1 </dev/null & echo $! >/run/tracer
for i in $(seq 600); do grep -q missing {SAID} && exit 0; sleep 0.5; done
cat {SAID}; exit 1
"""
END = "kill $(cat /run/tracer); tail --pid=$(cat /run/tracer) -f /dev/null"


@contextmanager
def tracing(lab: Nodes, node: str, probe_set: str) -> Iterator[None]:
    """Attach the probe set in the node; detach it at the end."""
    lab.run(node, "sh", "-c", START, "sh", probe_set, timeout=600)
    try:
        yield
    finally:
        lab.run(node, "sh", "-c", END)


def said(lab: Nodes, node: str) -> list[dict[str, Any]]:
    """The rows of its complete lines so far; the first line has none."""
    lines = lab.run(node, "cat", SAID).stdout.rpartition("\n")[0].splitlines()[1:]
    return [row for line in lines for row in json.loads(line)["rows"]]


def by_procedure(rows: list[dict[str, Any]], count: str) -> dict[str, int]:
    """A count of the rows of the mount at /mnt, by procedure; rows without a mount are of it.

    Another mount of the same superblock shares its client: the rows of both name both.
    """
    return {row["procedure"]: row[count] for row in of_mount(rows, "/mnt")}
