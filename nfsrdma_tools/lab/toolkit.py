# SPDX-License-Identifier: Apache-2.0
"""The toolkit as it is in the working tree, packed for a node."""

from __future__ import annotations

import importlib.resources
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["pack"]

_SOURCE = "opt/nfsrdma/src"
_FACTS = "etc/nfsrdma-lab.json"


def pack(facts: Mapping[str, object]) -> bytes:
    """A tar of the package and of what a node has to know about its lab, to unpack at /."""
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(package, f"{_SOURCE}/nfsrdma_tools", filter=_wanted)
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(_FACTS)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    if "__pycache__" in parts or "recipe" in parts:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
