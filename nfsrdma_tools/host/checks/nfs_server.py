# SPDX-License-Identifier: Apache-2.0
"""Checks of the NFS server: nfsd's listeners, the route to a remote server, the packet filter."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfsd import nfsctl

__all__ = ["firewall", "judge_filter", "listeners", "reach", "route"]

_NFS_PORT = 2049
_ROCE_PORT = 4791
_TIMEOUT_S = 5


def listeners(machine: Machine) -> Iterator[Finding]:
    """A running nfsd listens on RDMA as well."""
    # read portlist, not threads, which only root may read
    machine.has("proc/fs/nfsd/portlist")
    found = nfsctl.listeners(machine.path("proc/fs/nfsd"))
    if not found:
        yield Finding("portlist", "ok", "no NFS server runs here")
        return
    shown = ", ".join(map(str, found))
    if any(each.over_rdma for each in found):
        yield Finding("portlist", "ok", f"nfsd listens on {shown}")
    else:
        now = f"echo rdma {nfsctl.RDMA_PORT} > /proc/fs/nfsd/portlist"
        remedy = f"{now}; to make it persistent: nfsrdma server enable DIRECTORY --client CLIENTS"
        expected = f"rdma {nfsctl.RDMA_PORT}"
        yield Finding("portlist", "error", f"nfsd listens on {shown}", expected, remedy)


def reach(machine: Machine) -> Iterator[Finding]:
    """The given server accepts connections on TCP 2049; only a mount can test RDMA."""
    if not machine.server:
        return
    name = f"server {machine.server}"
    if not machine.live:
        yield Finding(name, "unknown", "not tried: these are the files of another host")
        return
    try:
        with socket.create_connection((machine.server, _NFS_PORT), timeout=_TIMEOUT_S) as link:
            address = link.getpeername()[0]
    except OSError as error:
        found = f"TCP {_NFS_PORT} refuses or ignores connections: {error}"
        remedy = "check the name, nfsd on the server, and the firewalls"
        yield Finding(name, "error", found, "a connection", remedy)
        return
    found = f"{address} answers on TCP {_NFS_PORT}; mount to test RDMA {nfsctl.RDMA_PORT}"
    yield Finding(name, "ok", found)


def route(machine: Machine) -> Iterator[Finding]:
    """The route to the given server uses a network device with an RDMA link."""
    if not machine.server:
        return
    addresses = machine.addresses(machine.server)
    if not addresses:
        return  # reach has reported it
    device = json.loads(machine.run("ip", "-j", "route", "get", addresses[0]).stdout)[0]["dev"]
    name = f"route to {machine.server}"
    carrying = {link.netdev for link in machine.links() if link.active}
    if device in carrying:
        yield Finding(name, "ok", f"uses {device}, which has an RDMA link")
    else:
        known = ", ".join(sorted(carrying - {""})) or "no device"
        remedy = "use the server's address on the RDMA network, or add a link on this device"
        yield Finding(name, "error", f"uses {device}", f"one with an RDMA link: {known}", remedy)


def firewall(machine: Machine) -> Iterator[Finding]:
    """The packet filter accepts NFS over RDMA."""
    machine.has("proc/modules")
    loaded = kernel_modules.loaded(machine.path("proc"))
    texts = []
    # calling nft or iptables loads their modules, so call them only if those are loaded
    if "nf_tables" in loaded:
        texts.append(_rules(machine, "nft", "list", "ruleset"))
    if "iptable_filter" in loaded:
        texts.append(_rules(machine, "iptables-legacy-save"))
    yield judge_filter("\n".join(texts))


def _rules(machine: Machine, *argv: str) -> str:
    result = machine.run(*argv)
    if result.returncode and not machine.root_user:
        raise PermissionError(result.stderr)
    return result.stdout


def judge_filter(rules: str) -> Finding:
    """Judge the text of ``nft list ruleset`` or ``iptables-save``.

    RoCE arrives as UDP 4791 and iWARP as TCP 20049.  Hardware NICs bypass the packet filter with
    both, soft links do not.
    """
    drops = re.search(r"hook input[^}]*?policy drop|^:INPUT DROP", rules, re.MULTILINE)
    refuses = re.search(r"\b(drop|reject)\b|-j (DROP|REJECT)\b", rules)
    if not drops and not refuses:
        return Finding("firewall", "ok", "no rule drops packets")
    wanted = (_NFS_PORT, nfsctl.RDMA_PORT, _ROCE_PORT)
    missing = [str(port) for port in wanted if not re.search(rf"\b{port}\b", rules)]
    if not missing:
        return Finding("firewall", "ok", "rules name ports 2049, 20049 and 4791")
    found = f"rules drop packets, and no rule names port {', '.join(missing)}"
    expected = "tcp 2049, tcp 20049 (iWARP), udp 4791 (RoCE) accepted from the peers"
    remedy = "accept them on NFS servers and on hosts with soft links"
    return Finding("firewall", "warning", found, expected, remedy)
