# SPDX-License-Identifier: Apache-2.0
"""The nodes of a running lab, from any process: commands, link, toolkit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from nfsrdma_tools import process_identity
from nfsrdma_tools.command import Result
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import LabConfig, Link
from nfsrdma_tools.lab.console import Console
from nfsrdma_tools.lab.qemu_binary import version
from nfsrdma_tools.lab.ssh import Ssh
from nfsrdma_tools.lab.toolkit import pack
from nfsrdma_tools.lock import try_file_lock

__all__ = ["Nodes", "read_state"]


class Nodes:
    """The nodes of a running lab. ``run`` fails if a kernel reported an error."""

    def __init__(self, config: LabConfig, accel: str, keys: Path) -> None:
        self.config, self.accel, self.keys = config, accel, keys
        self.folder = paths.lab_dir(config.name)
        self.consoles = {n: Console(n, self.folder / f"{n}.console") for n in config.nodes}

    def ssh(self, node: str) -> Ssh:
        """The ssh connection to a node."""
        return Ssh(self.folder, self.config.machine_of(node), self.keys)

    def run(
        self, node: str, *command: str, stdin: bytes = b"", timeout: float = 600, check: bool = True
    ) -> Result:
        """Run a command in a node; KernelReportError if a kernel reported an error meanwhile."""
        try:
            ssh = self.ssh(node)
            return ssh.run(
                *command,
                stdin=stdin,
                timeout=timeout * self.config.patience,
                check=check,
                watch=self.check,
            )
        finally:
            self.check()

    def check(self) -> None:
        """Raise KernelReportError if a kernel has reported an error since the last check."""
        for console in self.consoles.values():
            console.check()

    def set_link(self, text: str) -> None:
        """Change the link of all nodes, and their records of it."""
        self.config = self.config.with_link(text)
        for node in self.config.nodes:
            self.run(node, "lab-link", *Link.parse(text).words)
            self.run(node, "tee", "/etc/nfsrdma-lab.json", stdin=json.dumps(self.facts).encode())
        self.save_state()

    def refresh(self) -> None:
        """Copy the working tree's toolkit into every node, and set their clocks."""
        tar = pack(self.facts)
        for node in self.config.nodes:
            self.run(node, "lab-refresh", f"{time.time():.0f}", stdin=tar)

    @property
    def facts(self) -> dict[str, Any]:
        """The lab's facts for a node and for the conditions of a measurement."""
        config = self.config
        return {
            **{"name": config.name, "shape": config.shape, "kernel": config.kernel},
            **{"clock": config.clock, "link": str(config.wire), "accel": self.accel},
            "nic": config.nic,
            # the instruction count depends on the emulator, too
            "qemu": version(),
        }

    def save_state(self, **changes: object) -> None:
        """Update the state that ``lab status`` and other processes read."""
        state = {**_state(self.config.name), **changes, "config": self.config.to_dict()}
        write_atomically(self.folder / "state.json", json.dumps(state))


def read_state(name: str) -> dict[str, Any]:
    """The last state written by a lab's owner; empty if the lab is not up.

    Without the key "owner" if the owner has not written anything yet.
    """
    lock = paths.lab_lock(name)
    if not lock.exists():
        return {}
    with try_file_lock(lock) as free:
        if free:
            return {}
    state = _state(name)
    # an owner that was killed leaves its state, until the next one has the lock and removes it
    current = process_identity.is_running(str(state.get("owner", "")))
    return state if current else {"phase": "starting"}


def _state(name: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((paths.lab_dir(name) / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return state
