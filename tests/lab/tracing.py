# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace`` beside something else, in a node of a lab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["SAID", "tracing"]

SAID = "/run/traced"
"""What it says, a JSON object a line."""
# the first line comes when all is attached
START = f"""
nfsrdma trace "$1" --json --interval 1 >{SAID} 2>&1 </dev/null & echo $! >/run/tracer
for i in $(seq 600); do grep -q missing {SAID} && exit 0; sleep 0.5; done
cat {SAID}; exit 1
"""
END = "kill $(cat /run/tracer); tail --pid=$(cat /run/tracer) -f /dev/null"


@contextmanager
def tracing(lab: Nodes, node: str, account: str) -> Iterator[None]:
    """Attach the probe set in the node; detach it at the end."""
    lab.run(node, "sh", "-c", START, "sh", account, timeout=600)
    try:
        yield
    finally:
        lab.run(node, "sh", "-c", END)
