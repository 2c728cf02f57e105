# SPDX-License-Identifier: Apache-2.0
"""Builds the modelled card for the kernel of a lab, once per kernel and source."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.kernels import Kernel
from nfsrdma_tools.lab.node_build import compiled
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["built_file", "module"]

_NAME = "nfsrdma_card"
_SUFFIXES = (".c", ".h", ".sh")
_MADE = ("features.h", "whole.c")


def module(lab: Nodes, node: str, kernel: Kernel, step: Callable[[str], None]) -> bytes:
    """The file nfsrdma_card.ko for a kernel, compiled in a node that runs it."""
    file = built_file(kernel)
    if not file.exists():
        step("compiling the modelled card for this kernel, once (about a minute)")
    return compiled(lab, node, _NAME, file, _packed, "WHOLE=1")


def built_file(kernel: Kernel) -> Path:
    """The path of the module for a kernel, which may not exist yet."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return kernel.folder / f"{_NAME}-{digest.hexdigest()[:16]}.ko"


def _folder() -> Path:
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    for folder in (package / "data" / "kmod", package.parent / "kmod"):
        if (folder / "card" / "Kbuild").is_file():
            return folder / "card"
    raise UserError(f"the card's source is missing from {package}/data/kmod", "reinstall nfsrdma")


def _files() -> list[Path]:
    found = (path for path in _folder().iterdir() if path.name not in _MADE)
    kept = (p for p in found if p.suffix in _SUFFIXES or p.name == "Kbuild")
    return sorted(path for path in kept if not path.name.endswith(".mod.c"))


def _packed() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in _files():
            tar.add(path, path.name)
    return buffer.getvalue()
