# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and links through RDMA netlink, the interface ``rdma link`` and ``rdma dev`` use.

The messages are those of include/uapi/rdma/rdma_netlink.h, client RDMA_NL_NLDEV, and of
ib_user_ioctl_verbs.h: numbers that are ABI and only grow.  The decoder skips attributes that are
not listed here.  The kernel's side is drivers/infiniband/core/nldev.c.  Any user may read; adding
and deleting soft links needs root.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, nla, nlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkSocket

from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host.rdma.ports import (
    NETLINK_RDMA,
    PHYSICAL_STATES,
    SOFT_KINDS,
    STATES,
    Device,
    Link,
    require_netlink,
)
from nfsrdma_tools.undo import Journal, Run

__all__ = [
    "DRIVERS",
    "CmListener",
    "Command",
    "Device",
    "Link",
    "Message",
    "add_link",
    "check_link",
    "devices",
    "links",
    "listeners",
    "message_type",
    "owned",
    "remove_link",
    "resources",
    "soft_link",
    "statistics",
    "to_counters",
    "to_device",
    "to_driver",
    "to_link",
    "to_listeners",
    "to_owned",
    "to_resources",
]

_CLIENT_NLDEV = 5


class Command(IntEnum):
    """enum rdma_nldev_command, the commands in use."""

    GET = 1
    NEWLINK = 3
    DELLINK = 4
    PORT_GET = 5
    RES_GET = 9
    RES_CM_ID_GET = 11
    GET_CHARDEV = 15
    STAT_GET = 17


# irdma uses the number of i40iw
# fmt: off
_DRIVERS = (
    "unknown", "mlx5", "mlx4", "cxgb3", "cxgb4", "mthca", "bnxt_re", "ocrdma", "nes", "irdma",
    "vmw_pvrdma", "qedr", "hns", "usnic", "rxe", "hfi1", "qib", "efa", "siw", "erdma", "mana",
)
# fmt: on
DRIVERS = dict(enumerate(_DRIVERS))
"""Driver names by enum rdma_driver_id."""


def message_type(command: Command) -> int:
    """The netlink message type of a command: RDMA_NL_GET_TYPE."""
    return (_CLIENT_NLDEV << 10) + command


class _SummaryEntry(nla):  # type: ignore[misc]
    nla_map = (
        (17, "RES_SUMMARY_ENTRY_NAME", "asciiz"),
        (18, "RES_SUMMARY_ENTRY_CURR", "uint64"),
    )


class _Summary(nla):  # type: ignore[misc]
    nla_map = ((16, "RES_SUMMARY_ENTRY", "entry"),)
    entry = _SummaryEntry


class _CounterEntry(nla):  # type: ignore[misc]
    nla_map = (
        (82, "STAT_HWCOUNTER_ENTRY_NAME", "asciiz"),
        (83, "STAT_HWCOUNTER_ENTRY_VALUE", "uint64"),
    )


class _Counters(nla):  # type: ignore[misc]
    nla_map = ((81, "STAT_HWCOUNTER_ENTRY", "entry"),)
    entry = _CounterEntry


class _CmIdEntry(nla):  # type: ignore[misc]
    nla_map = (
        (27, "RES_STATE", "uint8"),
        (28, "RES_PID", "uint32"),
        (29, "RES_KERN_NAME", "asciiz"),
        (33, "RES_SRC_ADDR", "cdata"),
    )


class _CmIds(nla):  # type: ignore[misc]
    nla_map = ((31, "RES_CM_ID_ENTRY", "entry"),)
    entry = _CmIdEntry


class Message(nlmsg):  # type: ignore[misc]
    """An nldev message; attributes have the kernel's names without RDMA_NLDEV_ATTR_."""

    nla_map = (
        (1, "DEV_INDEX", "uint32"),
        (2, "DEV_NAME", "asciiz"),
        (3, "PORT_INDEX", "uint32"),
        (5, "FW_VERSION", "asciiz"),
        (6, "NODE_GUID", "uint64"),
        (12, "PORT_STATE", "uint8"),
        (13, "PORT_PHYS_STATE", "uint8"),
        (14, "DEV_NODE_TYPE", "uint8"),
        (15, "RES_SUMMARY", "summary"),
        (30, "RES_CM_ID", "cm_ids"),
        (50, "NDEV_INDEX", "uint32"),
        (51, "NDEV_NAME", "asciiz"),
        (65, "LINK_TYPE", "asciiz"),
        (67, "DEV_PROTOCOL", "asciiz"),
        (69, "CHARDEV_TYPE", "asciiz"),
        # the header documents a u64, ib_uverbs sends a u32 (drivers/infiniband/core/uverbs_main.c)
        (73, "UVERBS_DRIVER_ID", "uint32"),
        (80, "STAT_HWCOUNTERS", "counters"),
    )
    summary = _Summary
    cm_ids = _CmIds
    counters = _Counters

    @classmethod
    def of(cls, **attributes: object) -> Message:
        """A request with these attributes."""
        request = cls()
        request["attrs"] = list(attributes.items())
        return request


# enum ib_port_state and rdma_node_type of include/rdma/ib_verbs.h, physical states of the IB
# specification; spelled as in iproute2's rdma(8)
_NODES = ("unknown", "ca", "switch", "router", "rnic", "usnic", "usnic_dp", "unspecified")


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
        state=_word(STATES, answer.get_attr("PORT_STATE", 0)),
        physical_state=_word(PHYSICAL_STATES, answer.get_attr("PORT_PHYS_STATE", 0)),
        netdev=answer.get_attr("NDEV_NAME", ""),
    )


def to_resources(answer: Any) -> dict[str, int]:
    """The number of objects of each kind, from a reply to RES_GET."""
    return _pairs(answer, "RES_SUMMARY", "CURR")


class CmListener(NamedTuple):
    """A process that listens by rdma_cm."""

    port: int
    pid: int
    """0 for a process of another PID namespace."""


# enum rdma_cm_state of drivers/infiniband/core/cma_priv.h
_LISTEN = 8


def to_listeners(answer: Any) -> list[CmListener]:
    """The listeners of user space, from a reply to RES_CM_ID_GET; the kernel's have a name."""
    listening = []
    for entry in _entries(answer, "RES_CM_ID"):
        # struct sockaddr_in and sockaddr_in6: the family, then the port
        address = bytes(entry.get_attr("RES_SRC_ADDR") or b"")
        is_ours = entry.get_attr("RES_KERN_NAME") is None
        if entry.get_attr("RES_STATE") == _LISTEN and is_ours and len(address) >= 4:
            port = int.from_bytes(address[2:4], "big")
            listening.append(CmListener(port, entry.get_attr("RES_PID") or 0))
    return listening


def to_owned(answer: Any, module: str) -> int:
    """The number of rdma_cm ids of a kernel module, from a reply to RES_CM_ID_GET."""
    return sum(entry.get_attr("RES_KERN_NAME") == module for entry in _entries(answer, "RES_CM_ID"))


def _entries(answer: Any, table: str) -> list[Any]:
    return [entry for each in answer.get_attrs(table) for entry in each.get_attrs(f"{table}_ENTRY")]


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


# types with another name in the kernel
_LINK_TYPES = {"card": "nfsrdma_card"}


def devices() -> list[Device]:
    """All RDMA devices of this network namespace.  NoRdmaError if ib_core is not loaded."""
    with _socket() as sock:
        return _devices(sock)


def links() -> list[Link]:
    """All ports of all RDMA devices, sorted by name."""
    with _socket() as sock:
        all_links = [link for device in _devices(sock) for link in _ports(sock, device)]
    return sorted(all_links, key=lambda link: link.name)


def resources() -> dict[str, dict[str, int]]:
    """The number of objects of each kind per device: ``pd``, ``cq``, ``qp``, ``mr`` ..."""
    with _socket() as sock:
        answers = _ask(sock, Command.RES_GET, dump=True)
    return {answer.get_attr("DEV_NAME"): to_resources(answer) for answer in answers}


def listeners() -> list[CmListener]:
    """The processes that listen by rdma_cm on a device, each port once."""
    return sorted({listener for answer in _cm_ids() for listener in to_listeners(answer)})


def owned(module: str) -> int:
    """The number of rdma_cm ids, such as connections, that a kernel module has on any device."""
    return sum(to_owned(answer, module) for answer in _cm_ids())


def _cm_ids() -> list[Any]:
    with _socket() as sock:
        return [
            answer
            for device in _devices(sock)
            for answer in _ask(sock, Command.RES_CM_ID_GET, dump=True, DEV_INDEX=device.index)
        ]


def statistics(link: Link) -> dict[str, int]:
    """The hardware counters of a link; empty if its driver has none."""
    with _socket() as sock:
        try:
            answers = _ask(
                sock, Command.STAT_GET, DEV_INDEX=link.device.index, PORT_INDEX=link.port
            )
        except NetlinkError as error:
            if error.code in (errno.EINVAL, errno.EOPNOTSUPP):
                return {}
            raise
    return to_counters(answers[0]) if answers else {}


def add_link(kind: str, name: str, netdev: str, journal: Journal) -> Link:
    """Add the soft link ``name`` of ``kind`` on ``netdev``; ``journal`` gets the undo.

    The kernel loads the driver itself.  UserError if the kernel refuses, MismatchError if the new
    link differs from the request.
    """
    check_link(kind, name, netdev)
    # this process may end before there is a link
    there = f"/sys/class/infiniband/{name}"
    journal.add(undo := Run(("rdma", "link", "delete", name), when=there))
    try:
        _change(Command.NEWLINK, DEV_NAME=name, LINK_TYPE=_type(kind), NDEV_NAME=netdev)
    except NetlinkError as error:
        journal.drop(undo)
        raise _refused(f"add {kind} link {name} on {netdev}", error) from error
    link = _find(name)
    if link is None or link.netdev != netdev:
        actual = f"a link on {link.netdev or 'nothing'}" if link else "no link"
        raise MismatchError(f"RDMA link {name}", f"a link on {netdev}", actual)
    return link


def check_link(kind: str, name: str, netdev: str) -> None:
    """UserError if ``add_link`` cannot add this link: an invalid or used name, an unknown type."""
    _check_names(kind, name, netdev)
    if _find(name):
        raise UserError(f"RDMA device {name} already exists", "choose another name")


def soft_link(name: str) -> Link:
    """The soft link with this name; UserError if there is none or if it is hardware."""
    link = _find(name)
    if link is None:
        raise UserError(f"there is no RDMA device {name!r}", "see: nfsrdma link show")
    if link.device.driver not in SOFT_KINDS:
        kind = link.device.driver or "unknown"
        raise UserError(
            f"{name} is not a soft link (driver {kind})", "nfsrdma deletes only soft links"
        )
    return link


def remove_link(name: str, journal: Journal) -> Link:
    """Delete a soft link and return it; ``journal`` gets the undo, which adds it again.

    UserError if there is no such link or if it is hardware.
    """
    link = soft_link(name)
    kind = _type(link.device.driver)
    undo = Run(("rdma", "link", "add", name, "type", kind, "netdev", link.netdev))
    journal.add(undo)
    try:
        _change(Command.DELLINK, DEV_INDEX=link.device.index)
    except NetlinkError as error:
        journal.drop(undo)
        raise _refused(f"delete link {name}", error) from error
    if _find(name):
        raise MismatchError(f"RDMA link {name}", "deleted", "still present")
    return link


@contextmanager
def _socket() -> Iterator[Any]:
    # a failed socket of pyroute2 prints a traceback when it is collected
    require_netlink()
    sock = NetlinkSocket(family=NETLINK_RDMA)
    try:
        sock.bind()
        sock.register_policy({message_type(command): Message for command in Command})
        yield sock
    finally:
        sock.close()


def _ask(sock: Any, command: Command, *, dump: bool = False, **attributes: object) -> list[Any]:
    request = Message.of(**attributes)
    flags = NLM_F_REQUEST | (NLM_F_DUMP if dump else 0)
    return list(sock.nlm_request(request, message_type(command), flags))


def _change(command: Command, **attributes: object) -> None:
    with _socket() as sock:
        request = Message.of(**attributes)
        list(sock.nlm_request(request, message_type(command), NLM_F_REQUEST | NLM_F_ACK))


def _devices(sock: Any) -> list[Device]:
    answers = _ask(sock, Command.GET, dump=True)
    return [to_device(a, _driver(sock, a.get_attr("DEV_INDEX"))) for a in answers]


def _driver(sock: Any, index: int) -> str:
    try:
        answers = _ask(sock, Command.GET_CHARDEV, DEV_INDEX=index, CHARDEV_TYPE="uverbs")
    except NetlinkError:
        # ib_uverbs is not loaded, or the kernel is older than 5.2
        return ""
    return to_driver(answers[0]) if answers else ""


def _ports(sock: Any, device: Device) -> list[Link]:
    answers = _ask(sock, Command.PORT_GET, dump=True, DEV_INDEX=device.index)
    return [to_link(answer, device) for answer in answers]


def _find(name: str) -> Link | None:
    return next((link for link in links() if link.device.name == name), None)


def _type(kind: str) -> str:
    return _LINK_TYPES.get(kind, kind)


def _check_names(kind: str, name: str, netdev: str) -> None:
    if kind not in SOFT_KINDS:
        raise UsageError(f"link type {kind!r}: expected {', '.join(SOFT_KINDS)}")
    # the kernel accepts any name without %; refuse those that are no file name or look like options
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}", name):
        raise UsageError(
            f"link name {name!r}: expected a letter, digit or _ and up to 62 of these and . : -"
        )
    if not re.fullmatch(r"[^\s/%\x00-\x1f\x7f]{1,15}", netdev):
        raise UsageError(f"network device {netdev!r}: invalid name", "see: ip link")


def _refused(action: str, error: NetlinkError) -> UserError:
    hints = {
        errno.EPERM: "run this as root",
        errno.ENODEV: "there is no such network device, see: ip link",
        errno.EEXIST: "that network device already has an RDMA link",
        errno.EINVAL: "the kernel has no driver of this type, or none for this network device",
    }
    return UserError(f"cannot {action}: {error.args[1]}", hints.get(error.code, ""))
