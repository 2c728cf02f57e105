# SPDX-License-Identifier: Apache-2.0
"""Checks of serving: nfsd's listeners here, the way to a server elsewhere, the packet filter."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator

from nfsrdma_tools.command import run
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.checks.finding import Finding, Machine
from nfsrdma_tools.host.nfsd import nfsctl

__all__ = ["firewall", "judge_filter", "listeners", "reach", "route"]

_NFS_PORT = 2049
_ROCE_PORT = 4791
_TIMEOUT_S = 5


def listeners(machine: Machine) -> Iterator[Finding]:
    """A running nfsd listens on RDMA as well."""
    # not its threads: only root may read those
    found = nfsctl.listeners(machine.path("proc/fs/nfsd"))
    if not found:
        yield Finding("portlist", "ok", "no NFS server runs here")
        return
    shown = ", ".join(map(str, found))
    if any(each.over_rdma for each in found):
        yield Finding("portlist", "ok", f"nfsd listens on {shown}")
    else:
        now = f"echo rdma {nfsctl.RDMA_PORT} > /proc/fs/nfsd/portlist"
        remedy = f"{now}; to last: nfsrdma server enable"
        expected = f"rdma {nfsctl.RDMA_PORT}"
        yield Finding("portlist", "error", f"nfsd listens on {shown}", expected, remedy)


def reach(machine: Machine) -> Iterator[Finding]:
    """The server given answers on TCP 2049; RDMA can be tried by mounting only."""
    if not machine.server:
        return
    name = f"server {machine.server}"
    try:
        with socket.create_connection((machine.server, _NFS_PORT), timeout=_TIMEOUT_S) as link:
            address = link.getpeername()[0]
    except OSError as error:
        found = f"TCP {_NFS_PORT} does not answer: {error}"
        remedy = "check the name, that nfsd runs there, and the firewalls"
        yield Finding(name, "error", found, "a connection", remedy)
        return
    found = f"{address} answers on TCP {_NFS_PORT}; RDMA {nfsctl.RDMA_PORT} shows when mounting"
    yield Finding(name, "ok", found)


def route(machine: Machine) -> Iterator[Finding]:
    """The way to the server given leaves by a device with an RDMA link."""
    if not machine.server:
        return
    from nfsrdma_tools.host.rdma import nldev

    try:
        address = socket.getaddrinfo(machine.server, _NFS_PORT, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror:
        return  # reach has said so
    device = json.loads(run("ip", "-j", "route", "get", str(address)).stdout)[0]["dev"]
    name = f"route to {machine.server}"
    carrying = {link.netdev for link in nldev.links() if link.active}
    if device in carrying:
        yield Finding(name, "ok", f"leaves by {device}, which has an RDMA link")
    else:
        known = ", ".join(sorted(carrying - {""})) or "no device"
        remedy = "use the server's address on the RDMA network, or make a link on this device"
        yield Finding(name, "error", f"leaves by {device}", f"one with a link: {known}", remedy)


def firewall(machine: Machine) -> Iterator[Finding]:
    """The packet filter lets NFS over RDMA in."""
    loaded = kernel_modules.loaded(machine.path("proc"))
    texts = []
    # asking nft or iptables when they are not in use would load them
    if "nf_tables" in loaded:
        texts.append(_rules("nft", "list", "ruleset"))
    if "iptable_filter" in loaded:
        texts.append(_rules("iptables-legacy-save"))
    yield judge_filter("\n".join(texts))


def _rules(*argv: str) -> str:
    result = run(*argv, check=False)
    if result.returncode and os.geteuid():
        raise PermissionError(result.stderr)
    return result.stdout


def judge_filter(rules: str) -> Finding:
    """Judge the text of ``nft list ruleset`` or ``iptables-save``.

    RoCE arrives as UDP 4791 and iWARP as TCP 20049.  Hardware takes both past the packet filter,
    soft links do not.
    """
    drops = re.search(r"hook input[^}]*?policy drop|^:INPUT DROP", rules, re.MULTILINE)
    refuses = re.search(r"\b(drop|reject)\b|-j (DROP|REJECT)\b", rules)
    if not drops and not refuses:
        return Finding("firewall", "ok", "nothing is dropped")
    wanted = (_NFS_PORT, nfsctl.RDMA_PORT, _ROCE_PORT)
    missing = [str(port) for port in wanted if not re.search(rf"\b{port}\b", rules)]
    if not missing:
        return Finding("firewall", "ok", "rules name ports 2049, 20049 and 4791")
    found = f"packets are dropped, and no rule names port {', '.join(missing)}"
    expected = "tcp 2049, tcp 20049 (iWARP), udp 4791 (RoCE) let in from the peers"
    remedy = "allow them where NFS is served or a soft link is used"
    return Finding("firewall", "warning", found, expected, remedy)
