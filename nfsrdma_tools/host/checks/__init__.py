# SPDX-License-Identifier: Apache-2.0
"""Checks for known problems of NFS over RDMA.

A check is a small function of a Machine that yields findings, each with a remedy of one line.
"""

from __future__ import annotations

from nfsrdma_tools.host.checks import (
    firewall,
    kernel,
    mount_definitions,
    nfs_mounts,
    nfs_routes,
    nfs_server,
    probe_requirements,
    rdma_links,
)
from nfsrdma_tools.host.checks.finding import Check, Finding, Status, carry_out
from nfsrdma_tools.host.machine import Machine

__all__ = ["CHECKS", "Finding", "Status", "examine"]

CHECKS: dict[str, Check] = {
    "kernel": kernel.feature,
    "rpcrdma": kernel.module,
    "netid rdma": kernel.netid,
    "gpudirect": kernel.gpudirect,
    "nfsrdma": kernel.our_module,
    "links": rdma_links.links,
    "routes": nfs_routes.routes,
    "wire": rdma_links.wire,
    "portlist": nfs_server.listeners,
    "server": nfs_server.reach,
    "firewall": firewall.firewall,
    "mount.nfs": nfs_mounts.utils,
    "read-ahead": nfs_mounts.read_ahead,
    "udev rule": nfs_mounts.udev_rule,
    "fstab": mount_definitions.requested,
    "referrals": mount_definitions.referrals,
    "history": nfs_mounts.history,
    "memlock": probe_requirements.memlock,
    "bcc": probe_requirements.bcc,
    "headers": kernel.headers,
    "btf": kernel.btf,
    "kernel log": kernel.kernel_log,
    "known faults": kernel.known_faults,
}
"""In output order."""


def examine(machine: Machine) -> list[Finding]:
    """Run all checks; their failures become findings, not exceptions."""
    machine = machine.once()
    return [found for name, check in CHECKS.items() for found in carry_out(name, check, machine)]
