# SPDX-License-Identifier: Apache-2.0
"""Checks for known problems of NFS over RDMA.

A check is a small function of a Machine that yields findings, each with a remedy of one line.
"""

from __future__ import annotations

from collections.abc import Mapping

from nfsrdma_tools.host.checks import (
    firewall,
    kernel,
    mount_definitions,
    nfs_mounts,
    nfs_routes,
    nfs_server,
    probe_requirements,
    rdma_links,
    reboot,
    reboot_mounts,
    replacement,
)
from nfsrdma_tools.host.checks.finding import Check, Finding, Status, carry_out
from nfsrdma_tools.host.machine import Machine

__all__ = ["AFTER_REBOOT", "CHECKS", "Finding", "Status", "examine"]

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


AFTER_REBOOT: dict[str, Check] = {
    "reboot link": reboot.links,
    "reboot module": reboot.modules,
    "reboot listener": reboot.listener,
    "reboot server": reboot.server,
    "reboot threads": reboot.threads,
    "unread file": reboot.unread,
    "reboot mount": reboot_mounts.mounts,
    "reboot read-ahead": reboot_mounts.read_ahead,
    "reboot setting": reboot_mounts.settings,
    "replace": replacement.replace,
    "reload": replacement.reload,
}
"""The checks of ``doctor --after-reboot``, in output order."""


def examine(machine: Machine, which: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """Run all checks; their failures become findings, not exceptions."""
    machine = machine.once()
    return [found for name, check in which.items() for found in carry_out(name, check, machine)]
