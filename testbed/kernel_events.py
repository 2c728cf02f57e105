# SPDX-License-Identifier: Apache-2.0
"""Events of a node's kernel, recorded by tracefs while something else happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["recorded", "stacks"]

FOLDER = "/sys/kernel/tracing"
EMPTY = f"echo > {FOLDER}/trace; echo $1 > {FOLDER}/buffer_size_kb"
# KiB per processor: while events are recorded, and what a kernel has by itself
LARGE, SMALL = "16384", "1408"


@contextmanager
def recorded(lab: Nodes, node: str, events: dict[str, str]) -> Iterator[list[str]]:
    """Record events in a node, each by its file in tracefs and what is written there.

    The lines are in the list when this ends.
    """
    lines: list[str] = []
    lab.run(node, "sh", "-ec", EMPTY, "sh", LARGE)
    try:
        for file, text in events.items():
            lab.run(node, "tee", f"{FOLDER}/events/{file}", stdin=text.encode())
        yield lines
    finally:
        for file, text in reversed(events.items()):
            # a trigger is removed by its name
            off = f"!{text.split()[0]}" if file.endswith("trigger") else "0"
            lab.run(node, "tee", f"{FOLDER}/events/{file}", stdin=off.encode(), check=False)
        lines += lab.run(node, "cat", f"{FOLDER}/trace").stdout.splitlines()
        lab.run(node, "sh", "-ec", EMPTY, "sh", SMALL)


def stacks(lines: list[str]) -> list[list[str]]:
    """The functions on each recorded stack, the innermost first."""
    traces: list[list[str]] = []
    for line in lines:
        if "<stack trace>" in line:
            traces.append([])
        elif traces and line.startswith(" => "):
            traces[-1].append(line.removeprefix(" => ").split("+")[0].strip())
    return traces
