# SPDX-License-Identifier: Apache-2.0
"""Which RDMA ports carry a route: from an address to the network device, and on to the ports.

This repeats the choice of rdma_cm (cma_validate_port in drivers/infiniband/core/cma.c), which
never compares names of RDMA devices and network devices:

* IPoIB: the last 16 bytes of the network device's hardware address (type 32) are the first GID of
  its port, for children (P_Keys) and bonds, too.  RDMA netlink names no network device there.
* RoCE: a GID of the port has the source address, and names the route's network device.  The kernel
  adds GIDs for the addresses of the port's own network device and of all devices above it: VLANs,
  bridges, macvlan, ipvlan, teams, and bonds whose active slave it is
  (drivers/infiniband/core/roce_gid_mgmt.c).
* iWARP: the route's network device is that of the port.

It reads the GIDs of those ports only whose network device is below that of the route, and stops at
the first GID that matches.  Names come from files of other hosts, too, so they are checked before
they become paths.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.rdma.ports import Link

__all__ = [
    "NoRouteError",
    "Route",
    "RoutePorts",
    "folder",
    "mtu_of",
    "parse_routes",
    "ports_of",
    "route_to",
]

_ROUTES = ("ip", "-j", "route", "show", "table", "all")
_ADDRESSES = ("ip", "-j", "address", "show")
_LINKS = ("ip", "-d", "-j", "link", "show")
# the order of the kernel's default rules
_TABLES = ("local", "main", "default")
# fmt: off
_TYPES = (
    "unicast", "local", "broadcast", "multicast", "anycast", "unreachable", "blackhole", "prohibit",
    "throw", "nat",
)
# fmt: on
_REFUSING = ("unreachable", "blackhole", "prohibit")
# ARPHRD_* of include/uapi/linux/if_arp.h
_KINDS = {"1": "ether", "32": "infiniband", "772": "loopback"}
# "7: bond0.100@bond0: <BROADCAST,UP> mtu 9000 qdisc noqueue master br0 ...", "    link/ether ..."
_LINK_TEXT = (
    r"(?m)^\d+: (?P<name>[^\s@:]+)(?:@(?P<other>[^\s:]+))?: <[^>\n]*>(?P<words>[^\n]*)\n"
    r"\s+link/(?P<type>\S+)(?: (?P<address>[0-9a-f:]+))?"
)
_MOST_DEVICES = 4096
_MOST_PLACES = 4096
_FREE_PLACES = 64
_ZERO_GID = ":".join(["0000"] * 8)
_MOST_DOUBTS = 2
_ROCE, _ROCE_V1, _ROCE_V2 = "RoCE", "RoCE v1", "RoCE v2"
_RDMA = "RDMA"


class NoRouteError(UserError):
    """The kernel has no route to the address."""


class Route(NamedTuple):
    """The kernel's route to an address; an unknown source address or no gateway is ""."""

    address: str
    device: str
    """The network device."""
    source: str = ""
    gateway: str = ""


class RoutePorts(NamedTuple):
    """The RDMA ports that carry a route.

    Without ports, without ``unseen`` and without ``doubt`` it is certain that RDMA cannot use the
    route.
    """

    ports: tuple[Link, ...] = ()
    medium: str = ""
    """``IPoIB``, ``RoCE v2``, ``RoCE v1``, ``RoCE``, ``iWARP`` or ``RDMA`` if that is unknown."""
    unseen: str = ""
    """What is not readable, and would decide; the ports are then those that come into question."""
    doubt: str = ""
    """Why RDMA may fail on this route."""


class _NetDevice(NamedTuple):
    name: str
    kind: str
    """``ether``, ``infiniband``, ``loopback``, another word or number; "" if unknown."""
    address: str
    below: tuple[str, ...]
    """The devices directly below: of a VLAN, a bond, a bridge, a macvlan ..."""
    elsewhere: bool
    """Whether a device below it may be in another network namespace, or is not recorded."""


def folder(machine: Machine, *names: str) -> Path | None:
    """A folder below sys/class, or None if a name cannot be that of a device."""
    # from netlink, from JSON and from files of other hosts
    if any(not name or name in (".", "..") or "/" in name or "\0" in name for name in names):
        return None
    return machine.path("sys/class").joinpath(*names)


# ---- from an address to a network device


def route_to(machine: Machine, address: str, zone: str = "") -> Route:
    """The route to an IP address; ``zone`` is the network device of a link-local address.

    Raises NoRouteError, and UserError if the route is unknown.
    """
    if zone:
        return Route(address, _device_of_zone(machine, zone))
    try:
        result = machine.run("ip", "-j", "route", "get", address)
    except NotRecordedError:
        row = _from_tables(machine, address)
    else:
        row = next(parse_routes(result.stdout), {})
        if not row:
            error = one_line(result.stderr)
            if re.search(r"unreachable|No route to host", error):
                raise NoRouteError(f"no route to {address}: {error}")
            raise UserError(f"ip route get {address} printed no route: {error}"[:200])
    device, source = _word(row, "dev"), _word(row, "prefsrc")
    if not device:
        raise UserError(f"the route to {address} names no network device")
    if device == "lo" and not ipaddress.ip_address(address).is_loopback:
        # an address of this host: rdma_cm uses the device that has it
        device, source = _device_with(machine, address), address
    return Route(address, device, source, _gateway(row))


def _device_of_zone(machine: Machine, zone: str) -> str:
    if not zone.isdigit():
        return zone
    for path in files.matching(machine.path("sys/class/net"), "*/ifindex"):
        if files.readable(path).strip() == zone:
            return path.parent.name
    raise UserError(f"no network device has the number {zone} of the zone")


def _device_with(machine: Machine, address: str) -> str:
    for row in _objects(machine.run(*_ADDRESSES).stdout):
        if any(_word(entry, "local") == address for entry in _dicts(row.get("addr_info"))):
            return _word(row, "ifname")
    raise UserError(f"no network device has the address {address}")


def _from_tables(machine: Machine, address: str) -> dict[str, Any]:
    """The row of ``ip route show table all`` with the longest prefix that has the address."""
    wanted = ipaddress.ip_address(address)
    of_family = [
        (net, row)
        for row in parse_routes(machine.run(*_ROUTES).stdout)
        if (net := _prefix(row)) and net.version == wanted.version
    ]
    if not of_family:
        raise NotRecordedError(f"no route of IPv{wanted.version} was recorded")
    best: dict[str, dict[str, Any]] = {}
    for net, row in sorted(of_family, key=lambda pair: (-pair[0].prefixlen, _metric(pair[1]))):
        if wanted in net and row.get("type") not in ("broadcast", "multicast", "anycast"):
            best.setdefault(_word(row, "table") or "main", row)
    chosen = next(
        (best[name] for name in _TABLES if name in best and best[name].get("type") != "throw"), {}
    )
    others = {_word(row, "dev") for name, row in best.items() if name not in _TABLES}
    if others - {_word(chosen, "dev")}:
        raise NotRecordedError(f"ip rule decides between tables for {address}: record ip route get")
    if not chosen or chosen.get("type") in _REFUSING:
        raise NoRouteError(f"no route to {address}")
    if not _word(chosen, "dev"):
        raise NotRecordedError(f"several next hops lead to {address}: record ip route get")
    return chosen


def _prefix(row: dict[str, Any]) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    text = _word(row, "dst")
    if text == "default":
        # the kernel prints a preference for routes of IPv6 only
        text = "::/0" if "pref" in row or ":" in _gateway(row) else "0.0.0.0/0"
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _metric(row: dict[str, Any]) -> int:
    metric = row.get("metric", 0)
    return metric if isinstance(metric, int) else 0


def _gateway(row: dict[str, Any]) -> str:
    via = row.get("via")
    return _word(row, "gateway") or (_word(via, "host") if isinstance(via, dict) else "")


def parse_routes(text: str) -> Iterator[dict[str, Any]]:
    """The routes in the output of ``ip route``: its JSON, or its text as people paste it."""
    rows = _objects(text)
    yield from rows or (row for line in text.splitlines() if (row := _row_of_text(line)))


def _row_of_text(line: str) -> dict[str, Any]:
    words = line.split()
    # lines of an output that begin with a blank continue the one above
    if len(words) < 2 or line[0].isspace():
        return {}
    kind = words.pop(0) if words[0] in _TYPES else "unicast"
    pairs = {name: words[i + 1] for i, name in enumerate(words[:-1]) if i}
    row: dict[str, Any] = {"type": kind, "dst": words[0]}
    if not _prefix(row):
        return {}
    names = {"dev": "dev", "via": "gateway", "src": "prefsrc", "table": "table", "pref": "pref"}
    row |= {key: pairs[name] for name, key in names.items() if name in pairs}
    if re.fullmatch(r"\d{1,10}", pairs.get("metric", "")):
        row["metric"] = int(pairs["metric"])
    return row


def _objects(text: str) -> list[dict[str, Any]]:
    """The objects of ip's JSON; [] if it is no JSON."""
    try:
        return _dicts(json.loads(text))
    except (ValueError, RecursionError):
        return []


def _dicts(document: object) -> list[dict[str, Any]]:
    rows = document if isinstance(document, list) else [document]
    return [row for row in rows if isinstance(row, dict)]


def _word(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


# ---- from a network device to RDMA ports


def ports_of(machine: Machine, route: Route) -> RoutePorts:
    """The RDMA ports that carry ``route``.

    Raises NoRdmaError (a UserError) if ib_core is not loaded, NotRecordedError if that is unknown.
    """
    links = machine.links()
    if ipaddress.ip_address(route.address).is_loopback:
        # cma_bind_loopback: the first active port
        return RoutePorts(tuple(link for link in links if link.active), _RDMA)
    stack = _stack(machine, route.device)
    if stack and stack[0].kind == "infiniband":
        return _ipoib(machine, stack[0], links)
    return _ethernet(machine, route, stack, links)


def _ipoib(machine: Machine, device: _NetDevice, links: list[Link]) -> RoutePorts:
    ports = [link for link in links if _is_infiniband(machine, link) is not False]
    guid = _guid(device.address.replace(":", "")[-32:])
    gids = {link: _first_gid(machine, link) for link in ports}
    matching = [link for link, gid in gids.items() if guid and guid == _guid(gid)]
    matching = matching or [link for link in ports if _on_same_function(machine, device.name, link)]
    if matching:
        return RoutePorts(tuple(matching), "IPoIB")
    hidden = tuple(link for link, gid in gids.items() if not gid)
    if guid and not hidden:
        return RoutePorts()
    if len(ports) == 1:
        # an IPoIB device cannot exist without a port
        return RoutePorts(tuple(ports), "IPoIB")
    return RoutePorts(tuple(ports), "IPoIB", f"which InfiniBand port {device.name} belongs to")


def _first_gid(machine: Machine, link: Link) -> str:
    path = folder(machine, "infiniband", link.device.name, "ports", str(link.port), "gids", "0")
    return files.readable(path).strip().replace(":", "") if path else ""


def _guid(gid: str) -> str:
    """The lower half of a GID in hexadecimal; "" if it has another length or is not set.

    The upper half, the prefix of the subnet, changes with the subnet manager.
    """
    return gid[16:].lower() if len(gid) == 32 and gid[16:].strip("0") else ""


def _on_same_function(machine: Machine, netdev: str, link: Link) -> bool:
    """Whether both devices are of one PCI function, and the network device of this port."""
    net, rdma = folder(machine, "net", netdev), folder(machine, "infiniband", link.device.name)
    if not net or not rdma or not (net / "device").is_symlink():
        return False
    # older kernels number the ports in dev_id, in hexadecimal
    number = files.readable(net / "dev_port").strip() or files.readable(net / "dev_id").strip()
    try:
        port = int(number, 0) + 1
    except ValueError:
        return False
    same = os.path.realpath(net / "device") == os.path.realpath(rdma / "device")
    return same and port == link.port


def _ethernet(
    machine: Machine, route: Route, stack: list[_NetDevice], links: list[Link]
) -> RoutePorts:
    names = {device.name for device in stack}
    whole = bool(stack) and not any(device.elsewhere for device in stack)
    answers = [
        (link, _over(machine, route, names, link))
        for link in links
        if not stack or not _is_infiniband(machine, link)
        if not whole or not link.netdev or link.netdev in names
    ]
    ports = _with(answers, "certain")
    if ports:
        media = {answer.text for _, answer in answers if answer.kind == "certain"}
        doubt = ""
        if media == {_ROCE_V1} and route.gateway:
            doubt = f"RoCE v1 is not routed, and the route has the gateway {route.gateway}"
        return RoutePorts(ports, _ROCE_V2 if _ROCE_V2 in media else min(media), doubt=doubt)
    ports = _with(answers, "below")
    doubts = [answer.text for _, answer in answers if answer.kind == "doubt"]
    if ports or doubts:
        return RoutePorts(ports, _ROCE, doubt="; ".join(doubts[:_MOST_DOUBTS]))
    ports = _with(answers, "hidden")
    unseen = f"which RDMA port {route.device} uses"
    return RoutePorts(ports, _RDMA, unseen) if ports else RoutePorts()


class _Answer(NamedTuple):
    """Whether a port carries a route over Ethernet; ``text`` is the medium, or the doubt."""

    kind: Literal["certain", "below", "doubt", "hidden", "none"]
    text: str = ""


def _with(answers: list[tuple[Link, _Answer]], kind: str) -> tuple[Link, ...]:
    return tuple(link for link, answer in answers if answer.kind == kind)


def _over(machine: Machine, route: Route, names: set[str], link: Link) -> _Answer:
    """Judge one port; ``names`` are the route's device and all that is known to be below it."""
    if _is_infiniband(machine, link):
        # nothing is known about the route's device: it may be IPoIB
        return _Answer("hidden")
    gids = None if _is_iwarp(link) else _gids(machine, link, route)
    if gids is None:
        return _without_gids(route, names, link)
    if gids.types:
        return _Answer("certain", _ROCE_V2 if _ROCE_V2 in gids.types else _ROCE_V1)
    if gids.of_device:
        return _Answer("doubt", f"no GID of {link.name} has the source address {route.source}")
    return _Answer("none")


def _without_gids(route: Route, names: set[str], link: Link) -> _Answer:
    if link.netdev == route.device:
        return _Answer("certain", _medium(link))
    if link.netdev not in names:
        return _Answer("hidden")
    if _is_iwarp(link):
        return _Answer("doubt", f"iWARP of {link.name} serves {link.netdev}, not {route.device}")
    return _Answer("below" if link.device.protocol == "roce" else "hidden")


def _medium(link: Link) -> str:
    return "iWARP" if _is_iwarp(link) else _ROCE if link.device.protocol == "roce" else _RDMA


def _is_iwarp(link: Link) -> bool:
    return link.device.protocol == "iw" or link.device.node_type == "rnic"


def _is_infiniband(machine: Machine, link: Link) -> bool | None:
    """Whether a port's link layer is InfiniBand; None if unknown."""
    if link.device.protocol:
        return link.device.protocol in ("ib", "opa")
    if link.netdev:
        return False
    ports = folder(machine, "infiniband", link.device.name, "ports", str(link.port))
    layer = files.readable(ports / "link_layer").strip() if ports else ""
    return layer == "InfiniBand" if layer else None


class _Gids(NamedTuple):
    """The types of the GIDs that a route can use, and whether any GID is of its device."""

    types: set[str]
    of_device: bool


def _gids(machine: Machine, link: Link, route: Route) -> _Gids | None:
    """The GIDs of a port for a route; None if they are not readable."""
    port = folder(machine, "infiniband", link.device.name, "ports", str(link.port))
    types: set[str] = set()
    of_device = False
    try:
        for number, netdev in places_in_use(f"{port}/gid_attrs/ndevs" if port else ""):
            if netdev.strip() != route.device:
                continue
            of_device = True
            # a device of another network namespace may have the same name: compare addresses, too
            if _fits(files.readable(f"{port}/gids/{number}").strip(), route):
                types.add(files.readable(f"{port}/gid_attrs/types/{number}").strip())
            if _ROCE_V2 in types:
                break
    except OSError as error:
        files.note_unread(error)
        return None
    return _Gids(types, of_device)


def places_in_use(table: str) -> Iterator[tuple[int, str]]:
    """The number and the text of each place in use of a port's ``gids`` or ``gid_attrs/ndevs``.

    A table has up to 1024 places.  The kernel uses the first free one (find_gid in
    drivers/infiniband/core/cache.c), so behind many free ones there is none in use.  Raises
    OSError if there is no table, or no place in it.
    """
    numbers = sorted(map(int, filter(str.isdecimal, os.listdir(table))))  # noqa: PTH208 -- names
    if not numbers:
        raise FileNotFoundError(f"{table} is empty")
    free = 0
    for number in numbers[:_MOST_PLACES]:
        text = files.readable(f"{table}/{number}")
        # read(2) of the network device of a free place fails with EINVAL
        if text.strip() not in ("", _ZERO_GID):
            free = 0
            yield number, text
            continue
        free += 1
        if free > _FREE_PLACES:
            return


def _fits(gid: str, route: Route) -> bool:
    try:
        have = ipaddress.IPv6Address(gid)
        wanted = ipaddress.ip_address(route.source or route.address)
    except ValueError:
        return False
    if not route.source:
        return (have.ipv4_mapped is None) == (wanted.version == 6)
    return (have.ipv4_mapped or have) == wanted


def _stack(machine: Machine, device: str) -> list[_NetDevice]:
    """A network device and all devices below it; [] if nothing is known about it."""
    rows = None
    devices: dict[str, _NetDevice] = {}
    waiting = [device]
    while waiting and len(devices) < _MOST_DEVICES:
        name = waiting.pop()
        if name in devices:
            continue
        net_device = _from_sysfs(machine, name)
        if net_device is None:
            rows = _link_rows(machine) if rows is None else rows
            net_device = _from_link_row(name, rows)
        if net_device is None and not devices:
            return []
        devices[name] = net_device or _NetDevice(name, "", "", (), elsewhere=True)
        waiting += devices[name].below
    return list(devices.values())


def _from_sysfs(machine: Machine, name: str) -> _NetDevice | None:
    path = folder(machine, "net", name)
    try:
        entries = os.listdir(path) if path else []  # noqa: PTH208 -- names
    except OSError:
        return None
    if not path or not entries:
        return None
    below = [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]
    below = below or files.readable(path / "bonding/slaves").split()
    kind = files.readable(path / "type").strip()
    if not kind:
        return None
    other_end = files.readable(path / "iflink") != files.readable(path / "ifindex")
    part = bool(machine.recording and not machine.recording.complete)
    address = files.readable(path / "address").strip()
    # only hardware has a device; nothing is below it
    elsewhere = not below and (other_end or (part and not (path / "device").is_symlink()))
    return _NetDevice(name, _KINDS.get(kind, kind), address, tuple(below), elsewhere)


def mtu_of(machine: Machine, device: str) -> int:
    """The MTU of a network device in bytes, from sysfs or ``ip link``; 0 if it is unknown."""
    path = folder(machine, "net", device)
    text = files.readable(path / "mtu").strip() if path else ""
    if not text:
        rows = (row for row in _link_rows(machine) if _word(row, "ifname") == device)
        text = str(next(rows, {}).get("mtu", ""))
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _link_rows(machine: Machine) -> list[dict[str, Any]]:
    """The devices of ``ip -d link`` of another host, for a recording without sysfs."""
    if machine.live:
        return []
    try:
        text = machine.run(*_LINKS).stdout
    except UserError:
        return []
    return _objects(text) or [_link_row(match) for match in re.finditer(_LINK_TEXT, text)]


def _link_row(match: re.Match[str]) -> dict[str, Any]:
    # "eth0@if7" has its other end in another network namespace
    other = match["other"] or ""
    row = {"ifname": match["name"], "link_type": match["type"], "address": match["address"]}
    row |= {"link_index": other} if re.fullmatch(r"if\d+", other) else {"link": other}
    words = re.findall(r" (master|mtu) (\S+)", match["words"])
    return row | dict(words)


def _from_link_row(name: str, rows: list[dict[str, Any]]) -> _NetDevice | None:
    row = next((row for row in rows if _word(row, "ifname") == name), None)
    if row is None:
        return None
    info = row.get("linkinfo")
    # the peer of a veth is not below it
    below = [_word(row, "link")] if not _is_veth(info) and _word(row, "link") else []
    below += [_word(other, "ifname") for other in rows if _word(other, "master") == name]
    kind, address = _word(row, "link_type"), _word(row, "address")
    return _NetDevice(name, kind, address, tuple(below), elsewhere="link_index" in row)


def _is_veth(info: object) -> bool:
    return isinstance(info, dict) and info.get("info_kind") == "veth"
