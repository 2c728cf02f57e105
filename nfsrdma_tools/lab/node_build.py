# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel module in a node, and keeps it in the folder of the node's kernel."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lock import file_lock

__all__ = ["compiled"]

_MAKE = """
name=$1
shift
mkdir "/run/$name"
tar -xC "/run/$name"
make -s -C "/lib/modules/$(uname -r)/build" M="/run/$name" "$@" modules >&2
strip --strip-debug "/run/$name/$name.ko"
base64 "/run/$name/$name.ko"
rm -r "/run/$name"
"""


def compiled(
    lab: Nodes, node: str, name: str, file: Path, source: Callable[[], bytes], *options: str
) -> bytes:
    """The module ``name``: from ``file`` if that exists, else compiled from the tar ``source``.

    ``options`` are arguments of make.  Of several processes, one compiles and the others wait.
    """
    with file_lock(file.with_suffix(".lock")):
        if not file.exists():
            argv = ("sh", "-ec", _MAKE, "sh", name, *options)
            text = lab.run(node, *argv, stdin=source(), timeout=1800).stdout
            draft = file.with_suffix(".draft")
            draft.write_bytes(base64.b64decode(text))
            draft.rename(file)
    return file.read_bytes()
