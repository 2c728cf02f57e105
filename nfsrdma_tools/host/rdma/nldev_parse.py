# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and links, parsed from the kernel's RDMA netlink messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.host.rdma.nldev_message import DRIVERS

__all__ = [
    "Device",
    "Link",
    "to_counters",
    "to_device",
    "to_driver",
    "to_link",
    "to_resources",
]

# enum ib_port_state and rdma_node_type of include/rdma/ib_verbs.h, physical states of the IB
# specification; spelled as in iproute2's rdma(8)
_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL = (
    "NOP",
    "SLEEP",
    "POLLING",
    "DISABLED",
    "ARMED",
    "LINK_UP",
    "LINK_ERROR_RECOVER",
    "PHY_TEST",
)
_NODES = ("unknown", "ca", "switch", "router", "rnic", "usnic", "usnic_dp", "unspecified")


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
    """Of the port: ``ACTIVE`` if it can carry data."""
    physical_state: str
    """``LINK_UP`` if the physical link is up."""
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


def to_device(answer: Any, driver: str) -> Device:
    """The device in a reply to GET; ``driver`` is "" if no character device names one.

    The modelled card has no number in enum rdma_driver_id; its firmware version names it.
    """
    firmware = answer.get_attr("FW_VERSION", "")
    if driver in ("", "unknown") and firmware.startswith("nfsrdma_card "):
        driver = "card"
    return Device(
        index=answer.get_attr("DEV_INDEX"),
        name=answer.get_attr("DEV_NAME"),
        ports=answer.get_attr("PORT_INDEX", 0),
        node_type=_word(_NODES, answer.get_attr("DEV_NODE_TYPE", 0)),
        protocol=answer.get_attr("DEV_PROTOCOL", ""),
        driver=driver,
        firmware=firmware,
        node_guid=_guid(answer.get_attr("NODE_GUID", 0)),
    )


def to_driver(answer: Any) -> str:
    """The driver name in a reply to GET_CHARDEV."""
    number = answer.get_attr("UVERBS_DRIVER_ID")
    return "" if number is None else DRIVERS.get(number, f"driver {number}")


def to_link(answer: Any, device: Device) -> Link:
    """The link in a reply to PORT_GET."""
    return Link(
        device=device,
        port=answer.get_attr("PORT_INDEX"),
        state=_word(_STATES, answer.get_attr("PORT_STATE", 0)),
        physical_state=_word(_PHYSICAL, answer.get_attr("PORT_PHYS_STATE", 0)),
        netdev=answer.get_attr("NDEV_NAME", ""),
    )


def to_resources(answer: Any) -> dict[str, int]:
    """The number of objects of each kind, from a reply to RES_GET."""
    return _pairs(answer, "RES_SUMMARY", "CURR")


def to_counters(answer: Any) -> dict[str, int]:
    """The counters of a link, from a reply to STAT_GET."""
    return _pairs(answer, "STAT_HWCOUNTER", "VALUE")


def _pairs(answer: Any, stem: str, value: str) -> dict[str, int]:
    tables = answer.get_attrs("RES_SUMMARY") + answer.get_attrs("STAT_HWCOUNTERS")
    entries = [entry for table in tables for entry in table.get_attrs(f"{stem}_ENTRY")]
    return {
        entry.get_attr(f"{stem}_ENTRY_NAME"): entry.get_attr(f"{stem}_ENTRY_{value}")
        for entry in entries
    }


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if number < len(words) else f"UNKNOWN_{number}"


def _guid(number: int) -> str:
    text = f"{number:016x}"
    return ":".join(text[i : i + 4] for i in range(0, 16, 4))
