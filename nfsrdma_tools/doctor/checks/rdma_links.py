# SPDX-License-Identifier: Apache-2.0
"""Checks of RDMA links: their ports, the MTU of the network devices, and what the wire loses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.checks import kernel
from nfsrdma_tools.doctor.finding import Finding, Status, carry_out, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.host.rdma_routes import folder, mtu_of

__all__ = ["fault", "judge_links", "judge_mtu", "judge_wire", "links", "mtus", "wire"]

_EXPECTED = "ACTIVE, LINK_UP"
_ON_HOST = "run this on the host"
_MOST_SHOWN = 4
# a RoCE packet has a power of two up to 4096 bytes of data and 60 to 70 of headers and CRC
_MOST_PAYLOAD = 4096
_WANTED_MTU = 4200
_IDLE = ("DOWN", "NOP")


@check(70, "links")
def links(machine: Machine) -> Iterator[Finding]:
    """At least one RDMA link is active."""
    try:
        listed = machine.links()
    except NotRecordedError as error:
        text = f"{error.message}: ports, their MTU and their losses are not judged"
        yield Finding("links", "unknown", text, remedy=error.hint)
        return
    except UserError as error:
        if kernel.lacking(machine):
            yield Finding("links", "unknown", f"not judged, because {kernel.fault(machine)}")
        elif machine.in_container:
            yield Finding(
                "links", "unknown", f"{error.message}; the host may have some", remedy=_ON_HOST
            )
        else:
            yield Finding("links", "error", error.message, _EXPECTED, error.hint)
        return
    if not listed and machine.in_container:
        text = "no RDMA link is visible in this container; the host may have some"
        yield Finding("links", "unknown", text, remedy=_ON_HOST)
        return
    yield from judge_links(listed)


def fault(machine: Machine) -> str:
    """Why no mount and no listener over RDMA can work; "" if they may, or if that is unknown."""
    if cause := kernel.fault(machine):
        return cause
    if any(finding.status == "error" for finding in carry_out("links", links, machine)):
        return "no RDMA port is active"
    return ""


def judge_links(listed: Sequence[Link]) -> Iterator[Finding]:
    """Judge all links: one error if none can be active; else, an unused link is information."""
    if not listed:
        remedy = "load the NIC's driver, or: nfsrdma link add rxe0 --type rxe --netdev DEVICE"
        yield Finding("links", "error", "no RDMA link", _EXPECTED, remedy)
    elif any(link.active or link.doubt for link in listed):
        yield from map(_judge_one, listed)
    else:
        shown = ", ".join(f"{link.name} is {_state(link)}" for link in listed[:_MOST_SHOWN])
        more = f" and {len(listed) - _MOST_SHOWN} more" if len(listed) > _MOST_SHOWN else ""
        netdevs = [link.netdev for link in listed if link.netdev]
        below = f"ip link set {netdevs[0]} up; " if netdevs else ""
        remedy = f"{below}check the cable, the switch and the subnet manager"
        yield Finding("links", "error", f"{shown}{more}", f"one {_EXPECTED}", remedy)


def _judge_one(link: Link) -> Finding:
    name, shown = f"link {link.name}", _state(link)
    if link.doubt:
        return Finding(name, "unknown", link.doubt, remedy="record it again: rdma link")
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
        active = [link for link in machine.links() if link.active]
    except UserError:
        return  # links has reported it
    active = [link for link in active if link.device.protocol in ("roce", "")]
    ports = _verbs_ports(machine) if active else {}
    for link in active:
        port = ports.get(link.name, _UNKNOWN)
        is_roce = _is_roce(machine, link, port)
        if is_roce is None:
            text = f"not judged: neither sysfs nor ibv_devinfo tells whether {link.name} is RoCE"
            yield Finding(f"mtu {link.name}", "unknown", text, remedy="run this on the host")
        if not is_roce:
            continue
        mine = devices.get(link.name, set())
        if link.netdev:
            used = everywhere or bool(mine)
            finding = _mtu(machine, link.name, link.netdev, port, used)
            if not port.active_mtu:
                finding = finding._replace(found=f"{finding.found}; {_NO_ACTIVE_MTU}")
            yield finding
        for device in sorted(mine - {link.netdev}):
            yield _mtu(machine, device, device, _UNKNOWN, used=True)


_NO_ACTIVE_MTU = "without ibv_devinfo, the active_mtu is unknown"


class _VerbsPort(NamedTuple):
    """A port in the output of ``ibv_devinfo``; "" and 0 for what it does not name."""

    transport: str = ""
    """``InfiniBand``, of RoCE too, or ``iWARP``."""
    link_layer: str = ""
    max_mtu: int = 0
    active_mtu: int = 0


_UNKNOWN = _VerbsPort()
_VERBS = re.compile(r"^\s*(transport|max_mtu|active_mtu|link_layer):\s*(\S{1,64})", re.MULTILINE)


def _is_roce(machine: Machine, link: Link, port: _VerbsPort) -> bool | None:
    """Whether a link is one of RoCE, by netlink, ``ibv_devinfo`` or sysfs; None if unknown."""
    if link.device.protocol:
        return link.device.protocol == "roce"
    device = folder(machine, "infiniband", link.device.name)
    node, layer = link.device.node_type, port.link_layer
    if device:
        # "1: CA", "4: RNIC"
        node = node or files.readable(device / "node_type").strip().partition(": ")[2].lower()
        layer = layer or files.readable(device / f"ports/{link.port}/link_layer").strip()
    is_infiniband = layer == "InfiniBand" or not (layer or link.netdev)
    if not (is_infiniband or port.transport or node):
        return None
    return not is_infiniband and (port.transport == "InfiniBand" or node == "ca")


def _mtu(machine: Machine, name: str, netdev: str, port: _VerbsPort, used: bool) -> Finding:
    size = mtu_of(machine, netdev)
    unseen = f"the MTU of {netdev} is not visible: neither sysfs nor ip link has it"
    if not size and not port.active_mtu:
        return Finding(f"mtu {name}", "unknown", unseen)
    if not size:
        text = f"RoCE packets carry {port.active_mtu} bytes (active_mtu)"
        status: Status = "ok" if port.active_mtu >= _MOST_PAYLOAD else "unknown"
        return Finding(f"mtu {name}", status, f"{text}; {unseen}")
    finding = judge_mtu(name, netdev, size, port.active_mtu, port.max_mtu)
    if finding.status == "ok" or used:
        return finding
    return Finding(finding.name, "ok", f"{finding.found}; no route of NFS uses it")


def judge_mtu(link: str, netdev: str, size: int, active: int = 0, most: int = 0) -> Finding:
    """Judge the MTU (bytes) of ``netdev`` below a RoCE link, and the link's ``active`` one.

    ``most`` is the largest that the RDMA device has; 0 is unknown.
    """
    fits = (p for p in (4096, 2048, 1024, 512) if size >= p + _WANTED_MTU - _MOST_PAYLOAD)
    payload = min(next(fits, 256), most or _MOST_PAYLOAD)
    name = f"mtu {link}"
    if 0 < active < payload:
        text = f"{netdev} has MTU {size}, but RoCE packets carry {active} bytes (active_mtu)"
        remedy = f"raise the MTU of the physical function below, or set {netdev} down and up"
        return Finding(name, "warning", text, f"active_mtu {payload}", remedy)
    text = f"{netdev} has MTU {size}: RoCE packets carry {payload} bytes"
    if size >= _WANTED_MTU:
        return Finding(name, "ok", text)
    remedy = f"ip link set {netdev} mtu 9000 (on switch and peer too), then add the link again"
    if active == payload:
        text = f"{text}, which is the active_mtu of {link}"
        return Finding(name, "ok", text, remedy=f"for larger packets: {remedy}")
    return Finding(name, "warning", text, f"{_WANTED_MTU} or more for 4096 bytes", remedy)


def _verbs_ports(machine: Machine) -> dict[str, _VerbsPort]:
    """The ports by link, from ``ibv_devinfo``; {} if that is not installed.

    Neither sysfs nor RDMA netlink has the active MTU.
    """
    try:
        text = inputs.verbs(machine).stdout
    except UserError:
        return {}
    by_link: dict[str, _VerbsPort] = {}
    for device in re.split(r"^\s*hca_id:", text, flags=re.MULTILINE)[1:]:
        head, *ports = re.split(r"^\s*port:", device, flags=re.MULTILINE)
        for port in ports:
            name = "/".join((*head.split()[:1], *port.split()[:1]))
            by_link[name] = _verbs_port(dict(_VERBS.findall(head + port)))
    return by_link


def _verbs_port(values: Mapping[str, str]) -> _VerbsPort:
    sizes = (values.get(key, "") for key in ("max_mtu", "active_mtu"))
    return _VerbsPort(
        values.get("transport", ""),
        values.get("link_layer", ""),
        *(int(size) if re.fullmatch(r"[0-9]{1,5}", size) else 0 for size in sizes),
    )


# ---- the wire

_PACKETS = (
    "counters/port_rcv_packets",
    "counters/port_xmit_packets",
    # rxe and bnxt_re
    "hw_counters/rcvd_pkts",
    "hw_counters/sent_pkts",
    "hw_counters/rx_pkts",
    "hw_counters/tx_pkts",
)
_LOSSES = (
    # mlx5 (drivers/infiniband/hw/mlx5/counters.c), and others with the same names
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    # rxe (drivers/infiniband/sw/rxe/rxe_hw_counters.c)
    "hw_counters/out_of_seq_request",
    "hw_counters/rcvd_seq_err",
    "hw_counters/rcvd_rnr_err",
    "hw_counters/retry_exceeded_err",
    # bnxt_re (drivers/infiniband/hw/bnxt_re/hw_counters.c)
    "hw_counters/to_retransmits",
    "hw_counters/seq_err_naks_rcvd",
    "hw_counters/rnr_naks_rcvd",
    "hw_counters/rx_roce_discards",
    # of the port, for InfiniBand and RoCE (drivers/infiniband/core/sysfs.c)
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
)
_INFORMATION = (
    "counters/link_downed",
    "counters/link_error_recovery",
    "hw_counters/np_cnp_sent",
    "hw_counters/rp_cnp_handled",
    "hw_counters/np_ecn_marked_roce_packets",
)
# one packet of 4096 bytes in 40 MB: with go-back-N each one costs a window of packets
_NOTICEABLE = 1e-4


@check(90, "wire")
def wire(machine: Machine) -> Iterator[Finding]:
    """Active ports of InfiniBand and RoCE lose and repeat few packets."""
    try:
        active = [link for link in machine.links() if link.active]
    except UserError:
        return  # links has reported it
    uncounted = []
    for link in active:
        if link.device.protocol in ("iw", "usnic"):
            continue
        packets, losses, information = (
            _counters(machine, link, names) for names in (_PACKETS, _LOSSES, _INFORMATION)
        )
        if losses:
            control = _flow_control(machine, link) if any(losses.values()) else ""
            yield judge_wire(link.name, packets, losses, information, control)
        else:
            uncounted.append(link.name)
    if uncounted:
        # virtual functions and some drivers have none
        more = f" and {len(uncounted) - _MOST_SHOWN} more" if uncounted[_MOST_SHOWN:] else ""
        text = f"not judged: no counters of losses of {', '.join(uncounted[:_MOST_SHOWN])}{more}"
        yield Finding("wire", "unknown", text)


def _counters(machine: Machine, link: Link, names: Sequence[str]) -> dict[str, int]:
    port = folder(machine, "infiniband", link.device.name, "ports", str(link.port))
    counters = {}
    for name in names if port else ():
        text = files.readable(f"{port}/{name}").strip()
        if re.fullmatch(r"[0-9]{1,20}", text):
            counters[name.partition("/")[2]] = int(text)
    return counters


def judge_wire(
    link: str,
    packets: Mapping[str, int],
    losses: Mapping[str, int],
    information: Mapping[str, int],
    control: str = "",
) -> Finding:
    """Judge the counters of a port since its driver was loaded.

    ``losses`` count packets that were lost, damaged or repeated; ``control`` is the flow control
    of the network device, as text.
    """
    name, total, lost = f"wire {link}", sum(packets.values()), sum(losses.values())
    if not total and lost:
        return Finding(name, "unknown", f"{_text(losses)}, and packets are not counted")
    first = _text(losses) if lost else "no loss and no retry"
    counted = f"{first} in {total} packets" if total else first
    text = "; ".join(filter(None, (counted, _text(information), control)))
    if lost <= total * _NOTICEABLE:
        return Finding(name, "ok", text)
    expected = "at most 1 of 10000, since the driver was loaded; they may be old"
    if losses.get("out_of_sequence", 0) * 2 > lost:
        expected += ", or the work of adaptive routing"
    remedy = f"see whether they grow: rdma statistic show link {link}; check PFC or ECN, the cable"
    return Finding(name, "warning", text, expected, remedy)


def _text(counters: Mapping[str, int]) -> str:
    """The counters that are not 0, the largest first."""
    largest = sorted(counters.items(), key=lambda pair: -pair[1])[:_MOST_SHOWN]
    return ", ".join(f"{name} {value}" for name, value in largest if value)


def _flow_control(machine: Machine, link: Link) -> str:
    """What is known about PFC and ECN of a RoCE port, without root; "" if nothing is."""
    path = folder(machine, "net", link.netdev)
    if link.device.protocol != "roce" or not path:
        return ""
    # of the vendor's driver only
    switches = [
        files.readable(file).strip() for file in files.matching(path, "ecn/roce_[nr]p/enable/[0-7]")
    ]
    ecn = f"ECN is {'on' if '1' in switches else 'off'}" if any(switches) else ""
    return "; ".join(filter(None, (_pfc(machine, link.netdev), ecn)))


def _pfc(machine: Machine, netdev: str) -> str:
    try:
        document = json.loads(inputs.flow_control(machine, netdev).stdout)
    except (UserError, ValueError, RecursionError):
        return ""
    if isinstance(document, list):
        document = document[0] if document else {}
    enabled = document.get("prio_pfc") if isinstance(document, dict) else None
    if not isinstance(enabled, list):
        return ""
    priorities = [str(number) for number, on in enumerate(enabled[:8]) if on in (True, "on")]
    return f"PFC is on for priority {', '.join(priorities)}" if priorities else "PFC is off"
