# SPDX-License-Identifier: Apache-2.0
"""Runs ``nfsrdma trace`` in a node of a lab while a test does something else there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["SAID", "said", "sums", "tracing"]

SAID = "/run/traced"
"""Its output: one JSON object per line."""
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


def sums(lab: Nodes, node: str, *names: str, **where: str) -> dict[str, int]:
    """Sums of columns, over the rows so far that have these values."""
    rows = [row for row in said(lab, node) if where.items() <= row.items()]
    return {name: sum(row[name] for row in rows) for name in names}
