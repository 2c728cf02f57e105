# SPDX-License-Identifier: Apache-2.0
"""The state of RDMA ports from /sys/class/infiniband, cheap enough to read every second.

host/rdma/nldev.py provides more details, and takes longer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["Port", "Ports"]

_SYSFS = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Port:
    """A port: "rxe0/1", its logical and physical state as the kernel spells them."""

    name: str
    netdev: str
    state: str
    physical: str


class Ports:
    """Reads the ports of all RDMA devices repeatedly."""

    def __init__(self, sysfs: Path = _SYSFS) -> None:
        self._sysfs = sysfs
        self._devices: list[str] = []
        self._known: dict[str, Port] = {}

    def read(self) -> list[Port]:
        """All ports, sorted by name; empty if there are no devices."""
        try:
            devices = os.listdir(self._sysfs)  # noqa: PTH208 -- names only, each second
        except FileNotFoundError:
            return []
        if devices != self._devices:
            self._devices = devices
            folders = sorted(self._sysfs.glob("*/ports/*"))
            self._known = {str(f): Port(f"{f.parts[-3]}/{f.name}", "", "", "") for f in folders}
        for folder, port in self._known.items():
            self._known[folder] = _port(folder, port)
        return list(self._known.values())


def _port(folder: str, known: Port) -> Port:
    state, physical = _word(f"{folder}/state"), _word(f"{folder}/phys_state")
    if known.netdev and (state, physical) == (known.state, known.physical):
        return known
    # for a port without addresses read(2) fails with EINVAL
    netdev = files.readable(f"{folder}/gid_attrs/ndevs/0").strip()
    return Port(known.name, netdev, state, physical)


def _word(path: str) -> str:
    # "4: ACTIVE"
    return files.read(path).partition(":")[2].strip()
