# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and their links, and the state of ports from /sys/class/infiniband.

sysfs is cheap enough to read every second; host/rdma/nldev.py provides more details, and takes
longer.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError

__all__ = [
    "NETLINK_RDMA",
    "PHYSICAL_STATES",
    "SOFT_KINDS",
    "STATES",
    "Device",
    "Link",
    "NoRdmaError",
    "Port",
    "Ports",
    "parse_links",
    "require_netlink",
]

NETLINK_RDMA = 20
SOFT_KINDS = ("rxe", "siw", "card")
"""The types of links that ``nfsrdma link add`` makes."""
STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
"""Of a port, by the kernel's number."""
PHYSICAL_STATES = (
    "NOP",
    "SLEEP",
    "POLLING",
    "DISABLED",
    "ARMED",
    "LINK_UP",
    "LINK_ERROR_RECOVER",
    "PHY_TEST",
)
"""Of its physical link, by the kernel's number."""
# what rdma(8) prints for other numbers (phys_state_to_str in rdma/link.c of iproute2)
_OTHER_STATES = ("UNKNOWN", "OPA_OFFLINE", "OPA_TEST")


class NoRdmaError(UserError):
    """ib_core is not loaded, or the kernel has none; ``reason`` is the text of the errno."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        hint = "load the NIC's driver, or: modprobe ib_core; nfsrdma link add rxe0 --netdev DEVICE"
        super().__init__(f"no RDMA link: ib_core is not loaded ({reason})", hint)


def require_netlink() -> None:
    """Raise NoRdmaError if the kernel has no RDMA netlink; cheaper than importing nldev."""
    import socket

    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA).close()
    except OSError as error:
        raise NoRdmaError(error.strerror or str(error)) from error


@dataclass(frozen=True)
class Device:
    """An RDMA device: a NIC in hardware or software."""

    index: int
    name: str
    ports: int
    node_type: str
    """``ca`` for InfiniBand and RoCE, ``rnic`` for iWARP."""
    protocol: str
    """``ib``, ``roce``, ``iw``, ``opa``, ``usnic``; empty on kernels before 5.2."""
    driver: str
    """``rxe``, ``siw``, ``card``, ``mlx5`` ...; empty if it has no verbs character device."""
    firmware: str
    node_guid: str


@dataclass(frozen=True)
class Link:
    """One port of an RDMA device."""

    device: Device
    port: int
    state: str
    """Of the port: ``ACTIVE`` if it can carry data; empty if its line is cut."""
    physical_state: str
    """``LINK_UP`` if the physical link is up; empty if its line is cut."""
    netdev: str
    """The Ethernet device below (RoCE, iWARP); empty for InfiniBand."""

    @property
    def name(self) -> str:
        """The name that ``rdma link`` prints: device/port."""
        return f"{self.device.name}/{self.port}"

    @property
    def active(self) -> bool:
        """True if it can carry data."""
        return self.state == "ACTIVE" and self.physical_state == "LINK_UP"

    @property
    def doubt(self) -> str:
        """Why its state is unknown; empty if it is known."""
        if self.state and self.physical_state:
            return ""
        return f"the line of {self.name} in the list of RDMA links is cut"


# "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0"; for InfiniBand rdma(8) has
# "subnet_prefix" and others before them, and older versions a number and a colon in front
_LINK = r"(?:\d+(?:/\d+)?: )?(?:link )?(?P<device>[^\s/]{1,64})/(?P<port>\d{1,3}):?(?P<rest>| .*)"


def parse_links(text: str) -> list[Link]:
    """The links in the output of ``rdma link``; drivers and protocols are unknown there."""
    links = []
    for line in text.splitlines():
        if not (match := re.fullmatch(_LINK, line.strip())):
            continue
        words = match["rest"].split()
        values = dict(zip(words, words[1:]))
        # only InfiniBand has a subnet prefix
        protocol = "ib" if "subnet_prefix" in values else ""
        device = Device(0, match["device"], 1, "", protocol, "", "", "")
        state, physical = _states(words, values)
        netdev = values.get("netdev", "")
        links.append(Link(device, int(match["port"]), state, physical, netdev))
    return sorted(links, key=lambda link: link.name)


def _states(words: list[str], values: dict[str, str]) -> tuple[str, str]:
    """The states of a port and of its physical link; empty if the line is cut."""
    state, physical = values.get("state", ""), values.get("physical_state", "")
    known = state in (*STATES, *_OTHER_STATES) and physical in (*PHYSICAL_STATES, *_OTHER_STATES)
    # after the states come pairs: "netdev" alone, or a part of it, has lost its value
    if not known or words[-2:-1] == [physical]:
        return "", ""
    return state, physical


class Port(NamedTuple):
    """A port: "rxe0/1", its logical and physical state as the kernel spells them."""

    name: str
    netdev: str
    state: str
    physical: str


class Ports:
    """Reads the ports of all RDMA devices repeatedly; ``sysfs`` is its class/infiniband."""

    def __init__(self, sysfs: Path) -> None:
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
