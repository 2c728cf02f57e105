# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with NFS over RDMA, looked at one by one.

A check is a small function of a Machine that yields findings; each has a remedy of one line.
"""

from __future__ import annotations

from nfsrdma_tools.host.checks import kernel, links, mounting, ours, server, tools
from nfsrdma_tools.host.checks.finding import Check, Finding, Machine, Status, carry_out

__all__ = ["CHECKS", "Finding", "Machine", "Status", "examine"]

CHECKS: dict[str, Check] = {
    "kernel": kernel.feature,
    "rpcrdma": kernel.module,
    "netid rdma": kernel.netid,
    "nfsrdma": ours.module,
    "links": links.links,
    "mtu": links.mtu,
    "portlist": server.listeners,
    "server": server.reach,
    "route": server.route,
    "firewall": server.firewall,
    "mount.nfs": mounting.utils,
    "read-ahead": mounting.read_ahead,
    "udev rule": mounting.nfsrahead,
    "fstab": mounting.fstab,
    "memlock": tools.memlock,
    "bcc": tools.bcc,
    "headers": kernel.headers,
    "btf": kernel.btf,
}
"""In the order they are shown."""


def examine(machine: Machine) -> list[Finding]:
    """Carry out all checks; never raises for what they meet."""
    return [found for name, check in CHECKS.items() for found in carry_out(name, check, machine)]
