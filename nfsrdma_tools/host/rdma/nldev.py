# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and links through RDMA netlink, the interface ``rdma link`` and ``rdma dev`` use.

The messages are those of include/uapi/rdma/rdma_netlink.h, client RDMA_NL_NLDEV, and of
ib_user_ioctl_verbs.h: numbers that are ABI and only grow.  The decoder skips attributes that are
not listed here.  The kernel's side is drivers/infiniband/core/nldev.c.  Any user may read; adding
and deleting soft links needs root.

Framing is that of netlink(7), written here: importing a library for it costs more than doctor.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.rdma.ports import Device, Link
from nfsrdma_tools.undo import Journal, Run

__all__ = [
    "DRIVERS",
    "Attributes",
    "Command",
    "Device",
    "Link",
    "NetlinkError",
    "NoRdmaError",
    "add_link",
    "check_link",
    "decoded",
    "devices",
    "encoded",
    "links",
    "message_type",
    "remove_link",
    "replies",
    "resources",
    "statistics",
    "to_counters",
    "to_device",
    "to_driver",
    "to_link",
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


Attributes = dict[str, Any]
"""The attributes of a message; the kernel's names without RDMA_NLDEV_ATTR_.

The value of a table is the list of its entries, each a dictionary of the same form.
"""
_TEXT, _TABLE, _ENTRY = "text", "table", "entry"
_ATTRIBUTES = {
    1: ("DEV_INDEX", "=I"),
    2: ("DEV_NAME", _TEXT),
    3: ("PORT_INDEX", "=I"),
    5: ("FW_VERSION", _TEXT),
    6: ("NODE_GUID", "=Q"),
    12: ("PORT_STATE", "=B"),
    13: ("PORT_PHYS_STATE", "=B"),
    14: ("DEV_NODE_TYPE", "=B"),
    15: ("RES_SUMMARY", _TABLE),
    16: ("RES_SUMMARY_ENTRY", _ENTRY),
    17: ("RES_SUMMARY_ENTRY_NAME", _TEXT),
    18: ("RES_SUMMARY_ENTRY_CURR", "=Q"),
    51: ("NDEV_NAME", _TEXT),
    65: ("LINK_TYPE", _TEXT),
    67: ("DEV_PROTOCOL", _TEXT),
    69: ("CHARDEV_TYPE", _TEXT),
    # the header documents a u64, ib_uverbs sends a u32 (drivers/infiniband/core/uverbs_main.c)
    73: ("UVERBS_DRIVER_ID", "=I"),
    80: ("STAT_HWCOUNTERS", _TABLE),
    81: ("STAT_HWCOUNTER_ENTRY", _ENTRY),
    82: ("STAT_HWCOUNTER_ENTRY_NAME", _TEXT),
    83: ("STAT_HWCOUNTER_ENTRY_VALUE", "=Q"),
}
"""Names and kinds by number: a text, a number as struct writes it, or attributes in attributes."""
_NUMBERS = {name: number for number, (name, _) in _ATTRIBUTES.items()}
# struct nlmsghdr: length, type, flags, sequence number, port; and struct nlattr: length, type
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
# NLA_TYPE_MASK: without the flags "nested" and "network byte order"
_TYPE_MASK = 0x3FFF


def _padded(size: int) -> int:
    return size + 3 & ~3


def encoded(attributes: Attributes) -> bytes:
    """The bytes of texts and numbers, as a request has them."""
    parts = []
    for name, value in attributes.items():
        kind = _ATTRIBUTES[_NUMBERS[name]][1]
        data = value.encode() + b"\0" if kind == _TEXT else struct.pack(kind, value)
        head = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), _NUMBERS[name])
        parts.append(head + data.ljust(_padded(len(data)), b"\0"))
    return b"".join(parts)


def decoded(data: bytes) -> Attributes:
    """The attributes in the payload of a reply."""
    return dict(_attributes(data))


def _attributes(data: bytes) -> Iterator[tuple[str, Any]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, number = _ATTRIBUTE.unpack_from(data, at)
        name, kind = _ATTRIBUTES.get(number & _TYPE_MASK, ("", ""))
        if size < _ATTRIBUTE.size:
            return
        if name:
            yield name, _value(kind, data[at + _ATTRIBUTE.size : at + size])
        at += _padded(size)


def _value(kind: str, data: bytes) -> Any:
    if kind == _TEXT:
        return data.partition(b"\0")[0].decode(errors="replace")
    if kind == _TABLE:
        return [entry for _, entry in _attributes(data)]
    return decoded(data) if kind == _ENTRY else struct.unpack_from(kind, data)[0]


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


def to_device(answer: Attributes, driver: str) -> Device:
    """The device in a reply to GET; ``driver`` is "" if no character device names one.

    The modelled card has no number in enum rdma_driver_id; its firmware version names it.
    """
    firmware = answer.get("FW_VERSION", "")
    if driver in ("", "unknown") and firmware.startswith("nfsrdma_card "):
        driver = "card"
    return Device(
        index=answer["DEV_INDEX"],
        name=answer["DEV_NAME"],
        ports=answer.get("PORT_INDEX", 0),
        node_type=_word(_NODES, answer.get("DEV_NODE_TYPE", 0)),
        protocol=answer.get("DEV_PROTOCOL", ""),
        driver=driver,
        firmware=firmware,
        node_guid=_guid(answer.get("NODE_GUID", 0)),
    )


def to_driver(answer: Attributes) -> str:
    """The driver name in a reply to GET_CHARDEV."""
    number = answer.get("UVERBS_DRIVER_ID")
    return "" if number is None else DRIVERS.get(number, f"driver {number}")


def to_link(answer: Attributes, device: Device) -> Link:
    """The link in a reply to PORT_GET."""
    return Link(
        device=device,
        port=answer["PORT_INDEX"],
        state=_word(_STATES, answer.get("PORT_STATE", 0)),
        physical_state=_word(_PHYSICAL, answer.get("PORT_PHYS_STATE", 0)),
        netdev=answer.get("NDEV_NAME", ""),
    )


def to_resources(answer: Attributes) -> dict[str, int]:
    """The number of objects of each kind, from a reply to RES_GET."""
    stem = "RES_SUMMARY_ENTRY"
    return {one[f"{stem}_NAME"]: one[f"{stem}_CURR"] for one in answer.get("RES_SUMMARY", ())}


def to_counters(answer: Attributes) -> dict[str, int]:
    """The counters of a link, from a reply to STAT_GET."""
    stem = "STAT_HWCOUNTER_ENTRY"
    return {one[f"{stem}_NAME"]: one[f"{stem}_VALUE"] for one in answer.get("STAT_HWCOUNTERS", ())}


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if number < len(words) else f"UNKNOWN_{number}"


def _guid(number: int) -> str:
    text = f"{number:016x}"
    return ":".join(text[i : i + 4] for i in range(0, 16, 4))


NETLINK_RDMA = 20
SOFT_KINDS = ("rxe", "siw", "card")
# types with another name in the kernel
_LINK_TYPES = {"card": "nfsrdma_card"}


class NoRdmaError(UserError):
    """ib_core is not loaded, or the kernel has none."""


class NetlinkError(OSError):
    """The kernel refused a request."""


# linux/netlink.h: NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_SEQUENCE = 1
# the port and the groups of the kernel's socket
_KERNEL = (0, 0)
# a dump has 32 KiB at most in a message (netlink_dump in net/netlink/af_netlink.c)
_BUFFER = 64 << 10


def devices() -> list[Device]:
    """All RDMA devices of this network namespace.  NoRdmaError if ib_core is not loaded."""
    with _socket() as sock:
        return _devices(sock)


def links() -> list[Link]:
    """All ports of all RDMA devices, sorted by name."""
    with _socket() as sock:
        found = [link for device in _devices(sock) for link in _ports(sock, device)]
    return sorted(found, key=lambda link: link.name)


def resources() -> dict[str, dict[str, int]]:
    """The number of objects of each kind per device: ``pd``, ``cq``, ``qp``, ``mr`` ..."""
    with _socket() as sock:
        answers = _ask(sock, Command.RES_GET, _DUMP)
    return {answer["DEV_NAME"]: to_resources(answer) for answer in answers}


def statistics(link: Link) -> dict[str, int]:
    """The hardware counters of a link; empty if its driver has none."""
    with _socket() as sock:
        try:
            answers = _ask(
                sock, Command.STAT_GET, DEV_INDEX=link.device.index, PORT_INDEX=link.port
            )
        except NetlinkError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return {}
            raise
    return to_counters(answers[0]) if answers else {}


def add_link(kind: str, name: str, netdev: str, journal: Journal) -> Link:
    """Add the soft link ``name`` of ``kind`` on ``netdev``; ``journal`` gets the undo.

    The kernel loads the driver itself.  UserError if the kernel refuses, MismatchError if the new
    link differs from the request.
    """
    check_link(kind, name, netdev)
    journal.add(undo := Run(("rdma", "link", "delete", name)))
    try:
        _change(Command.NEWLINK, DEV_NAME=name, LINK_TYPE=_type(kind), NDEV_NAME=netdev)
    except NetlinkError as error:
        journal.drop(undo)
        raise _refused(f"add {kind} link {name} on {netdev}", error) from error
    link = _find(name)
    if link is None or link.netdev != netdev:
        found = f"a link on {link.netdev or 'nothing'}" if link else "no link"
        raise MismatchError(f"RDMA link {name}", f"a link on {netdev}", found)
    return link


def check_link(kind: str, name: str, netdev: str) -> None:
    """UserError if ``add_link`` cannot add this link: an invalid or used name, an unknown type."""
    _check_names(kind, name, netdev)
    if _find(name):
        raise UserError(f"RDMA device {name} already exists", "choose another name")


def remove_link(name: str, journal: Journal) -> Link:
    """Delete a soft link and return it; ``journal`` gets the undo, which adds it again.

    UserError if there is no such link or if it is hardware.
    """
    link = _find(name)
    if link is None:
        raise UserError(f"there is no RDMA device {name!r}", "see: nfsrdma link show")
    if link.device.driver not in SOFT_KINDS:
        kind = link.device.driver or "unknown"
        raise UserError(
            f"{name} is not a soft link (driver {kind})", "nfsrdma deletes only soft links"
        )
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


def _socket() -> socket.socket:
    """A socket of RDMA netlink.  NoRdmaError if the kernel has none."""
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA)
    except OSError as error:
        hint = "load the NIC's driver, or: modprobe ib_core; nfsrdma link add rxe0 --netdev DEVICE"
        message = f"no RDMA link: ib_core is not loaded ({error.strerror})"
        raise NoRdmaError(message, hint) from error


def _ask(
    sock: socket.socket, command: Command, flags: int = 0, **attributes: object
) -> list[Attributes]:
    payload = encoded(attributes)
    # one request at a time: no other reply can have this number
    head = (_HEADER.size + len(payload), message_type(command), _REQUEST | flags, _SEQUENCE, 0)
    sock.sendto(_HEADER.pack(*head) + payload, _KERNEL)
    return [decoded(data) for data in replies(sock, single=not flags)]


def replies(sock: socket.socket, *, single: bool) -> Iterator[bytes]:
    """The payloads of the replies to a request, up to the last one; NetlinkError if it is refused.

    The last one is the first reply of a request for a ``single`` object, the message that ends a
    dump, or the acknowledgement.
    """
    while True:
        data, _, flags, sender = sock.recvmsg(_BUFFER)
        if flags & socket.MSG_TRUNC:
            raise OSError(errno.EMSGSIZE, "a message of RDMA netlink is longer than the buffer")
        for kind, payload in _messages(data) if sender == _KERNEL else ():
            if kind in (_ERROR, _DONE):
                if code := struct.unpack_from("=i", payload)[0]:
                    raise NetlinkError(-code, os.strerror(-code))
                return
            yield payload
            if single:
                return


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The types and the payloads of the messages in a datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + size]
        at += _padded(size)


def _change(command: Command, **attributes: object) -> None:
    with _socket() as sock:
        _ask(sock, command, _ACKNOWLEDGE, **attributes)


def _devices(sock: socket.socket) -> list[Device]:
    answers = _ask(sock, Command.GET, _DUMP)
    return [to_device(a, _driver(sock, a["DEV_INDEX"])) for a in answers]


def _driver(sock: socket.socket, index: int) -> str:
    try:
        answers = _ask(sock, Command.GET_CHARDEV, DEV_INDEX=index, CHARDEV_TYPE="uverbs")
    except NetlinkError:
        # ib_uverbs is not loaded, or the kernel is older than 5.2
        return ""
    return to_driver(answers[0]) if answers else ""


def _ports(sock: socket.socket, device: Device) -> list[Link]:
    answers = _ask(sock, Command.PORT_GET, _DUMP, DEV_INDEX=device.index)
    return [to_link(answer, device) for answer in answers]


def _find(name: str) -> Link | None:
    return next((link for link in links() if link.device.name == name), None)


def _type(kind: str) -> str:
    return _LINK_TYPES.get(kind, kind)


def _check_names(kind: str, name: str, netdev: str) -> None:
    if kind not in SOFT_KINDS:
        raise UserError(f"link type {kind!r}: expected {', '.join(SOFT_KINDS)}")
    # the kernel accepts any name without %; refuse those that are no file name or look like options
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}", name):
        raise UserError(f"link name {name!r}: expected letters, digits, _ . : - (63 at most)")
    if not re.fullmatch(r"[^\s/%\x00-\x1f\x7f]{1,15}", netdev):
        raise UserError(f"network device {netdev!r}: invalid name", "see: ip link")


def _refused(what: str, error: NetlinkError) -> UserError:
    hints = {
        errno.EPERM: "run this as root",
        errno.ENODEV: "there is no such network device, see: ip link",
        errno.EEXIST: "that network device already has an RDMA link",
        errno.EINVAL: "the kernel has no driver of this type",
    }
    return UserError(f"cannot {what}: {error.strerror}", hints.get(error.errno or 0, ""))
