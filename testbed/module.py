# SPDX-License-Identifier: Apache-2.0
"""Our module in a node of a lab: not loaded for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["taken_out"]


@contextmanager
def taken_out(lab: Nodes) -> Iterator[str]:
    """Our module is in its file only, nobody has the transport class; then it is loaded."""
    built = lab.run("client", "nfsrdma", "module", "build", "--json").stdout
    lab.run("client", "nfsrdma", "module", "unload")
    lab.run("client", "modprobe", "-r", "rpcrdma")
    try:
        yield json.loads(built)["path"]
    finally:
        lab.run("client", "modprobe", "rpcrdma")
        lab.run("client", "nfsrdma", "module", "load")
