# SPDX-License-Identifier: Apache-2.0
"""Checks of RDMA links and the network devices below them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.checks.finding import Finding, Status
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.rdma.ports import Link

__all__ = ["judge_links", "judge_mtu", "links", "mtu"]

# a RoCE packet has a power of two up to 4096 bytes of data and 60 to 70 of headers and CRC
_WANTED_MTU = 4200


def links(machine: Machine) -> Iterator[Finding]:
    """At least one RDMA link is active."""
    try:
        found = machine.links()
    except NotRecordedError:
        raise
    except UserError as error:
        yield Finding("links", "error", error.message, "RDMA support in the kernel", error.hint)
    else:
        yield from judge_links(found)


def judge_links(found: Sequence[Link]) -> Iterator[Finding]:
    """Judge all links: a link that is down is an error only if no other link is up."""
    expected = "ACTIVE, LINK_UP"
    if not found:
        remedy = "load the NIC's driver, or: nfsrdma link add rxe0 --type rxe --netdev DEVICE"
        yield Finding("links", "error", "no RDMA link", expected, remedy)
    any_active = any(link.active for link in found)
    for link in found:
        kind = link.device.driver or link.device.protocol or "RDMA"
        shown = (
            f"{link.state} {link.physical_state} ({kind} on {link.netdev or 'no network device'})"
        )
        if link.active:
            yield Finding(f"link {link.name}", "ok", shown)
            continue
        below = f"ip link set {link.netdev} up; " if link.netdev else ""
        remedy = f"{below}check the cable, the switch and the subnet manager"
        status: Status = "warning" if any_active else "error"
        yield Finding(f"link {link.name}", status, shown, expected, remedy)


def mtu(machine: Machine) -> Iterator[Finding]:
    """The MTU of the network device below a RoCE link fits the largest RoCE packets."""
    # links() has reported the error
    with contextlib.suppress(UserError):
        yield from (_mtu(machine, link) for link in machine.links() if _is_roce(link))


def _is_roce(link: Link) -> bool:
    return link.device.protocol == "roce" and bool(link.netdev)


def _mtu(machine: Machine, link: Link) -> Finding:
    size = int(machine.read(f"sys/class/net/{link.netdev}/mtu"))
    return judge_mtu(link.name, link.netdev, size)


def judge_mtu(link: str, netdev: str, size: int) -> Finding:
    """Judge the MTU (bytes) of ``netdev`` below a RoCE link."""
    payload = next((p for p in (4096, 2048, 1024, 512) if size >= p + _WANTED_MTU - 4096), 256)
    name, found = f"mtu {link}", f"{netdev} has MTU {size}: RoCE packets carry {payload} bytes"
    if size >= _WANTED_MTU:
        return Finding(name, "ok", found)
    remedy = f"ip link set {netdev} mtu 9000 (on switch and peer too), then add the link again"
    return Finding(name, "warning", found, f"{_WANTED_MTU} or more for 4096 bytes", remedy)
