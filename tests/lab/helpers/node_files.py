# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/lab/nodes, which run inside the machines."""

from __future__ import annotations

from pathlib import Path

__all__ = ["NODES", "node_script"]

NODES = Path(__file__).parents[1] / "nodes"


def node_script(name: str) -> bytes:
    """The text of ``nodes/NAME_node.py``, for the standard input of a node's python3."""
    return (NODES / f"{name}_node.py").read_bytes()
