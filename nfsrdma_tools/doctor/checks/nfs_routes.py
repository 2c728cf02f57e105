# SPDX-License-Identifier: Apache-2.0
"""Checks of the routes to NFS servers: that RDMA can use them, and with which MTU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.doctor.checks.rdma_links import mtus
from nfsrdma_tools.doctor.finding import Finding, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import servers
from nfsrdma_tools.host.nfs.servers import ANY_VERSION, MOST_SERVERS, ip_version
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.host.rdma_routes import NoRouteError, Route, RoutePorts, ports_of, route_to

__all__ = ["judge_route", "routes"]

_MOST_SHOWN = 4
_PREFER_IPV4 = -1
"""Of IP: what ``nfsrdma mount`` takes, IPv4 if the name has both (Target.netid)."""


@check(80, "routes")
def routes(machine: Machine) -> Iterator[Finding]:
    """The routes to the given server, and to those of RDMA mounts, mounted or defined, have RDMA.

    A working RDMA mount shows that its route works, whatever the tables say.
    The MTU of the network devices
    below follows.
    """
    mounts = servers.mounted_over_rdma(machine)
    judge = _Routes(machine, {address: entry.directory for _, address, entry in mounts})
    if machine.server:
        yield from judge.server(machine.server, _PREFER_IPV4)
    for host, address, _ in mounts:
        yield from judge.address(host, address)
    hosts = list(dict.fromkeys(servers.requested_over_rdma(machine)))
    for host, version in hosts[:MOST_SERVERS]:
        yield from judge.server(host, version)
    if len(hosts) > MOST_SERVERS:
        text = f"{len(hosts) - MOST_SERVERS} more servers of fstab and units are not judged"
        yield Finding("routes", "unknown", text)
    everywhere = not judge.devices or _serves_rdma(machine)
    yield from mtus(machine, judge.devices, everywhere=everywhere)


def _serves_rdma(machine: Machine) -> bool:
    try:
        listeners = nfsctl.listeners(machine)
    except OSError as error:
        files.note_unread(error)
        return False
    except (UserError, ValueError):
        return False  # listeners reports it
    return any(listener.over_rdma for listener in listeners)


class _Routes:
    """Judges routes, each address of a host once."""

    def __init__(self, machine: Machine, proven: dict[str, Path]) -> None:
        self._machine = machine
        self._proven = proven
        self._judged: dict[str, set[str]] = {}
        self._doubt = ""
        if machine.recording and not machine.of_process("mountinfo").exists():
            unrecorded = machine.unrecorded("/proc/self/mountinfo")
            self._doubt = f"; {unrecorded}, and a mount may prove the route"
        self.devices: dict[str, set[str]] = {}
        """The network devices of routes by the name of the RDMA port that carries them."""

    def server(self, host: str, version: int) -> Iterator[Finding]:
        """Judge the address that a mount from ``host`` takes."""
        name = f"route to {host}"
        plain, _, zone = host.partition("%")
        try:
            addresses = [
                address for address in self._machine.addresses(plain) if ip_version(address)
            ]
        except NotRecordedError as error:
            if not self._has_judged(host, version):
                yield Finding(name, "unknown", error.message)
            return
        if version == _PREFER_IPV4:
            addresses.sort(key=ip_version)
            if not addresses and self._machine.live:
                return  # reach has reported it
        of_version = [
            address
            for address in addresses
            if version in (ip_version(address), ANY_VERSION, _PREFER_IPV4)
        ]
        if of_version:
            yield from self.address(host, of_version[0], zone)
        elif addresses:
            netid = "rdma" if version == 6 else "rdma6"
            text = f"{host} has no IPv{version} address, but {addresses[0]}"
            remedy = f"request proto={netid}, or give the name an IPv{version} address"
            yield Finding(name, "error", text, f"an IPv{version} address", remedy)
        elif not self._has_judged(host, version):
            yield Finding(name, "unknown", f"{host} has no address now")

    def _has_judged(self, host: str, version: int) -> bool:
        known = self._judged.get(host, set())
        return any(version in (ip_version(address), ANY_VERSION, _PREFER_IPV4) for address in known)

    def address(self, host: str, address: str, zone: str = "") -> Iterator[Finding]:
        """Judge the route to an address of ``host``."""
        known = self._judged.setdefault(host, set())
        if address in known:
            return
        name = f"route to {host}" + (f" ({address})" if known else "")
        known.add(address)
        proof = self._proven.get(address)
        try:
            finding = self._finding(name, address, zone)
        except NoRouteError as error:
            remedy = "check the address, and the network devices: ip address"
            finding = Finding(name, "error", error.message, "a route", remedy)
        except UserError as error:
            finding = Finding(name, "unknown", error.message, remedy=error.hint)
        if finding.status in ("error", "warning"):
            finding = finding._replace(found=finding.found + self._doubt)
        if proof:
            also = f", and {finding.found}" if finding.status == "ok" else ""
            text = f"{proof} is mounted over RDMA from {address}{also}"
            finding = Finding(name, "ok", text)
        yield finding

    def _finding(self, name: str, address: str, zone: str) -> Finding:
        try:
            listed = self._machine.links()
        except NotRecordedError:
            raise
        except UserError:
            listed = []
        active = [link for link in listed if link.active]
        doubt = next((link.doubt for link in listed if link.doubt), "")
        if not active:
            self._require_route(address, zone)
            # the cause comes first: links has reported it
            why = doubt or "no RDMA port is active"
            return Finding(name, "unknown", f"not judged, because {why}")
        route = route_to(self._machine, address, zone)
        route_ports = ports_of(self._machine, route)
        if not route_ports.unseen:
            for link in route_ports.ports:
                self.devices.setdefault(link.name, set()).add(route.device)
        finding = judge_route(name, route, route_ports, active)
        if doubt and finding.status != "ok":
            return Finding(name, "unknown", f"uses {route.device}; not judged, because {doubt}")
        return finding

    def _require_route(self, address: str, zone: str) -> None:
        """Raise NoRouteError for an address without any route, which nothing else reports."""
        try:
            route_to(self._machine, address, zone)
        except NoRouteError:
            raise
        except UserError:
            pass  # unknown


def judge_route(
    name: str, route: Route, route_ports: RoutePorts, active: Sequence[Link]
) -> Finding:
    """Judge the RDMA ports of a route; ``active`` are those of all RDMA ports that are."""
    names = ", ".join(link.name for link in route_ports.ports[:_MOST_SHOWN])
    down = [link for link in route_ports.ports if not link.active]
    uses = f"uses {route.device}"
    if route_ports.unseen and (down or route_ports.medium != "IPoIB"):
        remedy = "run nfsrdma on the host itself, or give --from a bundle of nfsrdma collect"
        return Finding(
            name, "unknown", f"{uses}; it is not visible {route_ports.unseen}", remedy=remedy
        )
    if route_ports.unseen:
        return Finding(name, "ok", f"{uses}: IPoIB of one of {names}, all of them ACTIVE")
    if not route_ports.ports and not route_ports.doubt:
        devices = {link.netdev or f"IPoIB of {link.name}" for link in active}
        expected = f"one with an RDMA link: {', '.join(sorted(devices)[:_MOST_SHOWN])}"
        remedy = "use the server's address on the RDMA network, or add a link on this device"
        return Finding(name, "error", uses, expected, remedy)
    shown = f"{uses}: {route_ports.medium} of {names}" if names else uses
    if down and len(down) == len(route_ports.ports):
        states = f"{down[0].state} {down[0].physical_state}"
        remedy = "check the cable, the switch and the subnet manager"
        return Finding(name, "error", f"{shown}, which is {states}", "ACTIVE, LINK_UP", remedy)
    doubt = route_ports.doubt
    if down and not doubt:
        doubt = f"{down[0].name} is {down[0].state}, and rdma_cm may choose it"
    if doubt:
        remedy = f"compare `rdma link` with `ip -d link show {route.device}`, then try a mount"
        return Finding(name, "warning", f"{shown}; {doubt}", "a port for certain", remedy)
    return Finding(name, "ok", shown)
