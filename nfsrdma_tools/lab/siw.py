# SPDX-License-Identifier: Apache-2.0
"""Builds soft-iWARP in a node, because Debian's kernel packages have only soft-RoCE."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.kernels import Kernel
from nfsrdma_tools.lab.node_build import compiled
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["module"]

_FOLDER = "drivers/infiniband/sw/siw"


def module(lab: Nodes, node: str, kernel: Kernel, step: Callable[[str], None]) -> bytes:
    """The file siw.ko for a Debian kernel, compiled in a node that runs it.

    Raises UserError if the archive no longer has the kernel's source.
    """
    file = kernel.folder / "siw.ko"
    if not file.exists():
        step("compiling soft-iWARP for this kernel, once (about two minutes)")
    return compiled(lab, node, "siw", file, lambda: _source(kernel), "CONFIG_RDMA_SIW=m")


def _source(kernel: Kernel) -> bytes:
    with tempfile.TemporaryDirectory(dir=kernel.folder) as work, \
            opened(SUITES[kernel.name], Path(work)) as debian:  # fmt: skip
        root = Path(work) / "root"
        debian.unpack([f"linux-source-{kernel.name}"], root)
        (source,) = root.glob("usr/src/linux-source-*.tar.xz")
        words = ("--wildcards", "--strip-components=1", "-C", root, f"*/{_FOLDER}")
        run("tar", "-xf", source, *words, timeout=600)
        run("tar", "-cf", root / "siw.tar", "-C", root / _FOLDER, ".")
        return (root / "siw.tar").read_bytes()
