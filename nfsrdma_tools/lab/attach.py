# SPDX-License-Identifier: Apache-2.0
"""Access to a lab that another process runs."""

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
    """The nodes of a lab that another process runs."""
    state = read_state(name)
    if state.get("phase") != "ready":
        found = state.get("phase", "down")
        raise UserError(f"the lab {name} is {found}", f"run: nfsrdma lab up {name}")
    nodes = Nodes(LabConfig(**state["config"]), state["accel"], Path(state["keys"]))
    for console in nodes.consoles.values():
        console.skip()
    return nodes


def interactive(name: str, words: list[str]) -> int:
    """Run ``[node] command...`` with this process' own input and output; returns its status.

    The default node is the client. Raises KernelReportError if a kernel of the lab reported a
    problem meanwhile.
    """
    nodes = attach(name)
    named = bool(words) and words[0] in nodes.config.names
    node, command = (words[0], words[1:]) if named else ("client", words)
    # a terminal of its own would change line ends in output that goes to a file
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = nodes.ssh(node).argv(*command, tty=terminal)
    status = subprocess.run(argv, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}).returncode
    nodes.check()
    return status
