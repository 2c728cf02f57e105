# SPDX-License-Identifier: Apache-2.0
"""Checks of RDMA links: their ports and the MTU of the network devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.host.rdma_routes import folder

__all__ = ["judge_links", "judge_mtu", "links", "mtus"]

_EXPECTED = "ACTIVE, LINK_UP"
_CONTAINER = (
    "run/.containerenv",
    ".dockerenv",
    "run/systemd/container",
    "run/secrets/kubernetes.io",
    "var/run/secrets/kubernetes.io",
)
"""What podman, CRI-O, Docker, systemd and Kubernetes leave in a container."""
_MOST_SHOWN = 4
# a RoCE packet has a power of two up to 4096 bytes of data and 60 to 70 of headers and CRC
_WANTED_MTU = 4200
_IDLE = ("DOWN", "NOP")


def links(machine: Machine) -> Iterator[Finding]:
    """At least one RDMA link is active."""
    try:
        found = machine.links()
    except NotRecordedError:
        raise
    except UserError as error:
        yield Finding("links", "error", error.message, "RDMA support in the kernel", error.hint)
        return
    if not found and any(machine.path(name).exists() for name in _CONTAINER):
        text = "no RDMA link is visible in this container; the host may have some"
        yield Finding("links", "unknown", text, remedy="run this on the host")
        return
    yield from judge_links(found)


def judge_links(found: Sequence[Link]) -> Iterator[Finding]:
    """Judge all links: one error if none is active; else, an unused link is information."""
    if not found:
        remedy = "load the NIC's driver, or: nfsrdma link add rxe0 --type rxe --netdev DEVICE"
        yield Finding("links", "error", "no RDMA link", _EXPECTED, remedy)
    elif any(link.active for link in found):
        yield from map(_judge_one, found)
    else:
        shown = ", ".join(f"{link.name} is {_state(link)}" for link in found[:_MOST_SHOWN])
        more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        netdevs = [link.netdev for link in found if link.netdev]
        below = f"ip link set {netdevs[0]} up; " if netdevs else ""
        remedy = f"{below}check the cable, the switch and the subnet manager"
        yield Finding("links", "error", f"{shown}{more}", f"one {_EXPECTED}", remedy)


def _judge_one(link: Link) -> Finding:
    name, shown = f"link {link.name}", _state(link)
    if link.active:
        return Finding(name, "ok", shown)
    if link.state in _IDLE:
        return Finding(name, "ok", f"idle: {shown}")
    why = "the cable is in, but the port is not in use"
    remedy = "check the subnet manager (sminfo), or the switch; ignore this if the port is unused"
    return Finding(name, "warning", f"{shown}: {why}", f"{_EXPECTED}, or DOWN", remedy)


def _state(link: Link) -> str:
    kind = link.device.driver or link.device.protocol or "RDMA"
    infiniband = link.device.protocol == "ib"
    on = "InfiniBand" if infiniband else link.netdev or "no network device"
    return f"{link.state} {link.physical_state} ({kind} on {on})"


def mtus(
    machine: Machine, devices: Mapping[str, set[str]], *, everywhere: bool
) -> Iterator[Finding]:
    """The MTU of the network devices below active RoCE links fits the largest RoCE packets.

    ``devices`` are those of NFS routes by link: a VLAN has an MTU of its own.  A small MTU matters
    on the other links only if ``everywhere`` is set.
    """
    try:
        roce = [link for link in machine.links() if _is_active_roce(link)]
    except UserError:
        return  # links has reported it
    active = _active_mtus(machine) if roce else {}
    for link in roce:
        mine = devices.get(link.name, set())
        if link.netdev:
            used = everywhere or bool(mine)
            yield _mtu(machine, link.name, link.netdev, active.get(link.name, 0), used)
        for device in sorted(mine - {link.netdev}):
            yield _mtu(machine, device, device, 0, used=True)


def _is_active_roce(link: Link) -> bool:
    return link.active and link.device.protocol == "roce"


def _mtu(machine: Machine, name: str, netdev: str, active: int, used: bool) -> Finding:
    path = folder(machine, "net", netdev)
    text = files.readable(path / "mtu").strip() if path else ""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return Finding(f"mtu {name}", "unknown", f"the MTU of {netdev} is not visible")
    finding = judge_mtu(name, netdev, int(text), active)
    if finding.status == "ok" or used:
        return finding
    return Finding(finding.name, "ok", f"{finding.found}; no route of NFS uses it")


def judge_mtu(link: str, netdev: str, size: int, active: int = 0) -> Finding:
    """Judge the MTU (bytes) of ``netdev`` below a RoCE link, and the link's ``active`` one."""
    payload = next((p for p in (4096, 2048, 1024, 512) if size >= p + _WANTED_MTU - 4096), 256)
    name = f"mtu {link}"
    if 0 < active < payload:
        found = f"{netdev} has MTU {size}, but RoCE packets carry {active} bytes (active_mtu)"
        remedy = f"raise the MTU of the physical function below, or set {netdev} down and up"
        return Finding(name, "warning", found, f"active_mtu {payload}", remedy)
    found = f"{netdev} has MTU {size}: RoCE packets carry {payload} bytes"
    if size >= _WANTED_MTU:
        return Finding(name, "ok", found)
    remedy = f"ip link set {netdev} mtu 9000 (on switch and peer too), then add the link again"
    return Finding(name, "warning", found, f"{_WANTED_MTU} or more for 4096 bytes", remedy)


def _active_mtus(machine: Machine) -> dict[str, int]:
    """The active MTU by link, from ``ibv_devinfo``; {} if that is not installed.

    Neither sysfs nor RDMA netlink has it.
    """
    try:
        text = machine.run("ibv_devinfo", timeout=10).stdout
    except UserError:
        return {}
    found: dict[str, int] = {}
    device = port = ""
    for key, value in re.findall(r"^\s*(hca_id|port|active_mtu):\s*(\S{1,64})", text, re.MULTILINE):
        if key == "hca_id":
            device = value
        elif key == "port":
            port = value
        elif re.fullmatch(r"[0-9]{1,5}", value):
            found[f"{device}/{port}"] = int(value)
    return found
