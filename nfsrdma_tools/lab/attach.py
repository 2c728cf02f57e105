# SPDX-License-Identifier: Apache-2.0
"""A lab that another process keeps up, from here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.nodes import Nodes, read_state

__all__ = ["attach", "interactive"]


def attach(name: str) -> Nodes:
    """The nodes of a lab that another process keeps up."""
    state = read_state(name)
    if state.get("phase") != "ready":
        found = state.get("phase", "down")
        raise UserError(f"the lab {name} is {found}", f"nfsrdma lab up {name}")
    nodes = Nodes(LabConfig(**state["config"]), state["accel"], Path(state["keys"]))
    for console in nodes.consoles.values():
        console.skip()
    return nodes


def interactive(name: str, words: list[str]) -> int:
    """Run ``[node] command...`` with this process' own input and output; returns its status.

    Without a node's name in front it is the client. Raises KernelReportError when a kernel of
    the lab reported something meanwhile.
    """
    nodes = attach(name)
    named = bool(words) and words[0] in nodes.config.names
    node, command = (words[0], words[1:]) if named else ("client", words)
    argv = nodes.ssh(node).argv(*command, tty=sys.stdin.isatty())
    status = subprocess.run(argv, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}).returncode
    nodes.check()
    return status
