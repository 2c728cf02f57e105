# SPDX-License-Identifier: Apache-2.0
"""Programs of tests/lab/nodes that import each other, and how a test calls their functions."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

from node_files import NODES

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["bring_programs", "called"]

THERE = "/run/programs"
NAMES = ("optimistic", "bypass", "ends", "permits")


def bring_programs(lab: Nodes, node: str = "client") -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in NAMES:
            file = NODES / f"{name}_node.py"
            tar.add(file, f"lab/nodes/{file.name}")
    script = f"mkdir -p {THERE} && tar -xC {THERE}"
    lab.run(node, "sh", "-c", script, stdin=buffer.getvalue())


def called(
    lab: Nodes, program: str, *words: str, node: str = "client", timeout: float = 900
) -> Any:
    """The result of a function of ``nodes/PROGRAM_node.py``."""
    argv = ("env", f"PYTHONPATH={THERE}", "python3", "-m", f"lab.nodes.{program}_node", *words)
    found = json.loads(lab.run(node, *argv, timeout=timeout).stdout)
    print(words, json.dumps(found)[:2000])
    return found
