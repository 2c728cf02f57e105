# SPDX-License-Identifier: Apache-2.0
"""The state of RDMA ports, cheaply enough to be asked each second: /sys/class/infiniband.

host/nldev.py knows more of them, and takes longer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["Port", "ports"]

_SYSFS = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Port:
    """A port: "rxe0/1", its logical and physical state as the kernel spells them."""

    name: str
    netdev: str
    state: str
    physical: str


def ports(sysfs: Path = _SYSFS) -> list[Port]:
    """All ports of all RDMA devices, sorted by name."""
    return [_port(path) for path in sorted(sysfs.glob("*/ports/*"))]


def _port(folder: Path) -> Port:
    netdev = ""
    # a port without addresses has none: reading says EINVAL
    with contextlib.suppress(OSError):
        netdev = files.read(folder / "gid_attrs" / "ndevs" / "0").strip()
    name = f"{folder.parent.parent.name}/{folder.name}"
    return Port(name, netdev, _word(folder / "state"), _word(folder / "phys_state"))


def _word(path: Path) -> str:
    # "4: ACTIVE"
    return files.read(path).partition(":")[2].strip()
