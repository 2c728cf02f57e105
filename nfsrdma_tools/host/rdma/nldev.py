# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and links through RDMA netlink, the interface ``rdma link`` and ``rdma dev`` use.

The messages are those of include/uapi/rdma/rdma_netlink.h, client RDMA_NL_NLDEV; the kernel's side
is drivers/infiniband/core/nldev.c.  Any user may read; adding and deleting soft links needs root.
The undo of a new link is its deletion, and vice versa; both are verified.
Importing this module takes 0.1 s (pyroute2 has no smaller parts), so import it when needed.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkSocket

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.rdma.nldev_message import Command, Message, message_type
from nfsrdma_tools.host.rdma.nldev_parse import (
    Device,
    Link,
    to_counters,
    to_device,
    to_driver,
    to_link,
    to_resources,
)
from nfsrdma_tools.undo import Journal, Run

__all__ = [
    "Device",
    "Link",
    "NoRdmaError",
    "add_link",
    "check_link",
    "devices",
    "links",
    "remove_link",
    "resources",
    "statistics",
]

NETLINK_RDMA = 20
SOFT_KINDS = ("rxe", "siw", "card")
# types with another name in the kernel
_LINK_TYPES = {"card": "nfsrdma_card"}


class NoRdmaError(UserError):
    """The running kernel has no RDMA support, or ib_core cannot be loaded."""


def devices() -> list[Device]:
    """All RDMA devices of this network namespace.  NoRdmaError if the kernel has no RDMA."""
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
        answers = _ask(sock, Command.RES_GET, dump=True)
    return {answer.get_attr("DEV_NAME"): to_resources(answer) for answer in answers}


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


@contextmanager
def _socket() -> Iterator[Any]:
    try:
        # test with a plain socket: a failed pyroute2 socket prints a traceback when it is collected
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA).close()
    except OSError as error:
        hint = "modprobe ib_core, or boot a kernel that has RDMA"
        raise NoRdmaError(f"this kernel has no RDMA ({error.strerror})", hint) from error
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
    return UserError(f"cannot {what}: {error.args[1]}", hints.get(error.code, ""))
