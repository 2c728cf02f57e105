# SPDX-License-Identifier: Apache-2.0
"""The servers of NFS mounts over RDMA, mounted or defined, and whether a host is one itself."""

from __future__ import annotations

import contextlib
import ipaddress
import json
from collections.abc import Iterator

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import fstab, mountinfo, units
from nfsrdma_tools.host.nfs.fstab import RequestedOptions
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.target import Target

__all__ = [
    "ANY_VERSION",
    "MOST_SERVERS",
    "first_host",
    "ip_version",
    "is_own",
    "mounted_over_rdma",
    "requested_over_rdma",
]

MOST_SERVERS = 32
"""The most servers of definitions whose routes are read."""
ANY_VERSION = 0
"""Of IP: the first address that the resolver has."""


def ip_version(address: str) -> int:
    """4 or 6; 0 for what is no IP address."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def first_host(source: str) -> str:
    """The host of a mount's source: mount.nfs uses the first of several."""
    # nfs_parse_simple_hostname
    return Target.of(source).host.partition(",")[0]


def mounted_over_rdma(machine: Machine) -> list[tuple[str, str, Entry]]:
    """The host, the address without its zone, and the entry of each mount over RDMA."""
    try:
        entries = mountinfo.of(machine)
    except FileNotFoundError:
        return []
    mounts = []
    for entry in entries:
        address = entry.options.get("addr", "").partition("%")[0]
        if entry.is_nfs and entry.over_rdma and ip_version(address):
            mounts.append((Target.of(entry.source).host, address, entry))
    return mounts


def requested_over_rdma(machine: Machine) -> Iterator[tuple[str, int]]:
    """The host, and the version of IP, of each line of fstab and mount unit that requests RDMA."""
    for line in fstab.nfs_lines(machine.text("etc/fstab")):
        yield from _over_rdma(line.source, RequestedOptions.of(line.options, line.fstype))
    for unit in units.nfs_units(machine):
        # the same host as its line, if that is recorded
        yield from _over_rdma(unit.source, RequestedOptions.of(unit.options, unit.fstype))


def _over_rdma(source: str, requested: RequestedOptions) -> Iterator[tuple[str, int]]:
    host = first_host(source)
    if requested.transport == "rdma" and host:
        proto = requested.proto
        yield host, ANY_VERSION if proto is None else 6 if proto.endswith("6") else 4


def is_own(machine: Machine, host: str) -> bool:
    """Whether a name or an address is known to be one of this host."""
    if host in ("localhost", machine.text("proc/sys/kernel/hostname").strip()):
        return True
    with contextlib.suppress(ValueError, KeyError, TypeError, UserError):
        listed = json.loads(machine.run("ip", "-j", "address", "show").stdout)
        own = {row["local"] for device in listed for row in device["addr_info"]}
        addresses = machine.addresses(host)
        return any(
            address in own or ipaddress.ip_address(address).is_loopback for address in addresses
        )
    return False
