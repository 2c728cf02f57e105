# SPDX-License-Identifier: Apache-2.0
"""The RDMA netlink messages: commands, attributes, driver numbers.

The numbers are from include/uapi/rdma/rdma_netlink.h and ib_user_ioctl_verbs.h, which are ABI and
only grow.  The decoder skips attributes that are not listed here.
"""

from __future__ import annotations

from enum import IntEnum

from pyroute2.netlink import nla, nlmsg

__all__ = ["DRIVERS", "Command", "Message", "message_type"]

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
    counters = _Counters

    @classmethod
    def of(cls, **attributes: object) -> Message:
        """A request with these attributes."""
        request = cls()
        request["attrs"] = list(attributes.items())
        return request
