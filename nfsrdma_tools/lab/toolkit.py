# SPDX-License-Identifier: Apache-2.0
"""Packs the working tree's toolkit with its kernel sources for a node."""

from __future__ import annotations

import importlib.resources
import io
import json
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

__all__ = ["pack"]

_SOURCE = "opt/nfsrdma/src"
_FACTS = "etc/nfsrdma-lab.json"
_KERNEL_SOURCES = ("bpf", "kmod")
# build products of the module
_PRODUCTS = (
    *("*.o", "*.ko", "*.mod", "*.mod.c", ".*"),
    *("Module.symvers", "modules.order", "features.h", "whole.c"),
)


def pack(facts: Mapping[str, object]) -> bytes:
    """A tar of the package and of the lab's facts for a node, to be unpacked at /."""
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(package, f"{_SOURCE}/nfsrdma_tools", filter=_wanted)
        # in a wheel they are part of the package
        if (package.parent / "pyproject.toml").is_file():
            for name in _KERNEL_SOURCES:
                place = f"{_SOURCE}/nfsrdma_tools/data/{name}"
                tar.add(package.parent / name, place, filter=_wanted)
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(_FACTS)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    if "__pycache__" in parts or "recipe" in parts:
        return None
    if any(fnmatch(parts[-1], pattern) for pattern in _PRODUCTS):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
