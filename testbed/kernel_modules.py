# SPDX-License-Identifier: Apache-2.0
"""Modules that tests and benchmarks compile for a lab's kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path

from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["place"]


def place(lab: Nodes, source: Path, path: str, *nodes: str) -> None:
    """Compile the one module of a folder on this host, and write it to a path in the nodes."""
    base, kernel = image.find(lab.config.extras), kernels.find(lab.config.kernel)
    assert base is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "built.ko"
        kernels.compile_module(source, kernel, base, file)
        for node in nodes:
            lab.run(node, "tee", path, stdin=file.read_bytes())
