# SPDX-License-Identifier: Apache-2.0
"""From an address to the RDMA ports: routes of ip(8), GID tables and devices of sysfs."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools import files
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor.checks.nfs_routes import judge_route, routes
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, NotRecordedError, Recording
from nfsrdma_tools.host.rdma.ports import Device, Link
from nfsrdma_tools.host.rdma_routes import (
    NoRouteError,
    Route,
    RoutePorts,
    parse_routes,
    ports_of,
    route_to,
)

TABLES = """\
default via 192.0.2.1 dev eno1 proto dhcp metric 100
default via 192.0.2.2 dev slow proto dhcp metric 200
192.0.2.0/24 dev eno1 proto kernel scope link src 192.0.2.9
192.0.2.128/25 dev ens1 proto kernel scope link src 192.0.2.130
unreachable 198.51.100.0/24
203.0.113.0/24 proto static
\tnexthop via 192.0.2.3 dev eno1 weight 1
\tnexthop via 192.0.2.4 dev ens1 weight 1
203.0.113.128/25 dev wg0 table 51820 scope link
local 192.0.2.9 dev eno1 table local proto kernel scope host src 192.0.2.9
broadcast 192.0.2.255 dev ens1 table local proto kernel scope link src 192.0.2.130
2001:db8::/64 dev ens1 proto kernel metric 256 pref medium
default via fe80::1 dev eno1 proto ra metric 1024 pref medium
"""


def machine(
    root: Path, *links: Link, programs: dict[str, str] | None = None, complete: bool = True
) -> Machine:
    results: dict[tuple[str, ...], Result | None] = {
        tuple(words.split()): Result(tuple(words.split()), text, "", 0)
        for words, text in (programs or {}).items()
    }
    return Machine(root, "", Recording(programs=results, links=[*links], complete=complete))


def link(name: str = "mlx5_0", netdev: str = "", protocol: str = "roce", **changes: Any) -> Link:
    node = "rnic" if protocol == "iw" else "ca"
    values = {"port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", **changes}
    return Link(Device(0, name, 1, node, protocol, "", "", ""), netdev=netdev, **values)


def write(root: Path, name: str, text: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def netdev(
    root: Path, name: str, kind: int = 1, address: str = "", lower: str = "", iflink: int = 1
) -> None:
    folder = f"sys/class/net/{name}"
    files = {"type": kind, "address": address, "ifindex": 1, "iflink": iflink, "mtu": 9000}
    for file, value in files.items():
        write(root, f"{folder}/{file}", value)
    for below in lower.split():
        write(root, f"{folder}/lower_{below}/ifindex", 1)


def gid(root: Path, index: int, address: str, device: str, kind: str = "RoCE v2",
        port: str = "mlx5_0/ports/1") -> None:  # fmt: skip
    folder = f"sys/class/infiniband/{port}"
    write(root, f"{folder}/gids/{index}", ipaddress.IPv6Address(address).exploded)
    write(root, f"{folder}/gid_attrs/ndevs/{index}", device)
    write(root, f"{folder}/gid_attrs/types/{index}", kind)


def names(used: RoutePorts) -> list[str]:
    return [port.name for port in used.ports]


# ---- routes


@pytest.mark.parametrize(
    ("address", "device", "source", "gateway"),
    [
        ("192.0.2.20", "eno1", "192.0.2.9", ""),
        ("192.0.2.200", "ens1", "192.0.2.130", ""),
        ("10.1.2.3", "eno1", "", "192.0.2.1"),
        ("2001:db8::5", "ens1", "", ""),
        ("2001:db9::5", "eno1", "", "fe80::1"),
        ("192.0.2.9", "eno1", "192.0.2.9", ""),
    ],
)
def test_the_longest_prefix_of_recorded_tables_decides(
    tmp_path: Path, address: str, device: str, source: str, gateway: str
) -> None:
    host = machine(tmp_path, programs={"ip -j route show table all": TABLES})
    assert route_to(host, address) == Route(address, device, source, gateway)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("198.51.100.7", NoRouteError),
        # several next hops, and a table that a rule may choose
        ("203.0.113.7", NotRecordedError),
        ("203.0.113.200", NotRecordedError),
    ],
)
def test_tables_that_do_not_decide(tmp_path: Path, address: str, kind: type[UserError]) -> None:
    host = machine(tmp_path, programs={"ip -j route show table all": TABLES})
    with pytest.raises(kind):
        route_to(host, address)


def test_tables_of_one_family_say_nothing_of_the_other(tmp_path: Path) -> None:
    host = machine(tmp_path, programs={"ip -j route show table all": "default via 192.0.2.1 dev a"})
    with pytest.raises(NotRecordedError):
        route_to(host, "2001:db8::1")
    with pytest.raises(NotRecordedError):
        route_to(machine(tmp_path), "192.0.2.1")


def test_the_kernels_answer_comes_before_tables(tmp_path: Path) -> None:
    row = {"dst": "192.0.2.20", "via": {"family": "inet6", "host": "fe80::9"}, "dev": "ens1",
           "prefsrc": "192.0.2.130", "flags": []}  # fmt: skip
    programs = {
        "ip -j route get 192.0.2.20": json.dumps([row]),
        "ip -j route show table all": TABLES,
    }
    host = machine(tmp_path, programs=programs)
    assert route_to(host, "192.0.2.20") == Route("192.0.2.20", "ens1", "192.0.2.130", "fe80::9")


def test_an_unreachable_network_is_no_route(tmp_path: Path) -> None:
    host = machine(tmp_path)
    argv = ("ip", "-j", "route", "get", "192.0.2.1")
    assert host.recording
    stderr = "RTNETLINK answers: Network is unreachable\n"
    host.recording.programs[argv] = Result(argv, "", stderr, 2)
    with pytest.raises(NoRouteError, match="unreachable"):
        route_to(host, "192.0.2.1")
    host.recording.programs[argv] = Result(argv, "", 'Object "-j" is unknown\n', 255)
    with pytest.raises(UserError, match="-j"):
        route_to(host, "192.0.2.1")


def test_an_address_of_this_host_is_on_its_device(tmp_path: Path) -> None:
    addresses = [{"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
                 {"ifname": "ens1", "addr_info": [{"local": "192.0.2.130"}]}]  # fmt: skip
    row = {"type": "local", "dst": "192.0.2.130", "dev": "lo", "prefsrc": "192.0.2.130"}
    programs = {
        "ip -j route get 192.0.2.130": json.dumps([row]),
        "ip -j address show": json.dumps(addresses),
    }
    route = route_to(machine(tmp_path, programs=programs), "192.0.2.130")
    assert route == Route("192.0.2.130", "ens1", "192.0.2.130")


def test_a_zone_is_the_device(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/net/ib0/ifindex", 7)
    host = machine(tmp_path)
    assert route_to(host, "fe80::1", "ib0").device == "ib0"
    assert route_to(host, "fe80::1", "7").device == "ib0"
    with pytest.raises(UserError, match="number 8"):
        route_to(host, "fe80::1", "8")


@pytest.mark.parametrize(
    "text",
    ["", "[", "[[[]]]", "[3, {}]", '{"dst": 3}', "a b", "\0 dev \xff x", "local dev", "[" * 9999,
     "192.0.2.1", '[{"dst": "::/0", "dev": {}, "metric": "x"}]'],
    ids=range(11),
)  # fmt: skip
def test_hostile_routes_are_a_user_error(tmp_path: Path, text: str) -> None:
    for words in ("ip -j route get 192.0.2.1", "ip -j route show table all"):
        with pytest.raises(UserError):
            route_to(machine(tmp_path, programs={words: text}), "192.0.2.1")


def test_a_metric_may_have_any_length() -> None:
    (row,) = parse_routes("default via 192.0.2.1 dev y metric " + "9" * 5000)
    assert "metric" not in row


# ---- ports


def test_ipoib_by_the_gid_in_its_hardware_address(tmp_path: Path) -> None:
    start = "80:00:02:08:fe:80:00:00:00:00:00:00"
    netdev(tmp_path, "mlx5_1", 32, f"{start}:0c:42:a1:03:00:11:22:01")
    for number in range(3):
        text = f"fe80:0000:0000:0000:0c42:a103:0011:220{number}"
        write(tmp_path, f"sys/class/infiniband/mlx5_{number}/ports/1/gids/0", text)
    ports = [link(f"mlx5_{number}", protocol="ib") for number in range(3)]
    host = machine(tmp_path, *ports, link("mlx5_9", "eth0"))
    used = ports_of(host, Route("192.0.2.1", "mlx5_1"))
    assert (names(used), used.medium, used.unseen) == (["mlx5_1/1"], "IPoIB", "")
    # one with a GID of no port
    netdev(tmp_path, "ib7", 32, f"{start}:0c:42:a1:03:00:11:22:07")
    assert ports_of(host, Route("192.0.2.1", "ib7")) == RoutePorts()


@pytest.mark.parametrize(("file", "number", "port"), [("dev_port", "1", 2), ("dev_id", "0x0", 1)])
def test_ipoib_by_the_pci_function(tmp_path: Path, file: str, number: str, port: int) -> None:
    netdev(tmp_path, "ib0", 32)
    write(tmp_path, f"sys/class/net/ib0/{file}", number)
    (tmp_path / "sys/class/net/ib0/device").symlink_to("../../../devices/pci0/0000:17:00.0")
    for name, function in (("mlx4_0", "0000:17:00.0"), ("mlx4_1", "0000:18:00.0")):
        write(tmp_path, f"sys/class/infiniband/{name}/node_type", "1: CA")
        device = tmp_path / f"sys/class/infiniband/{name}/device"
        device.symlink_to(f"../../../devices/pci0/{function}")
    ports = [link(name, protocol="ib", port=n) for name in ("mlx4_0", "mlx4_1") for n in (1, 2)]
    used = ports_of(machine(tmp_path, *ports), Route("192.0.2.1", "ib0"))
    assert (names(used), used.unseen) == ([f"mlx4_0/{port}"], "")


def test_ipoib_without_files_of_the_rdma_devices(tmp_path: Path) -> None:
    netdev(tmp_path, "ib0", 32)
    route = Route("192.0.2.1", "ib0")
    # the only InfiniBand port
    used = ports_of(machine(tmp_path, link(protocol="ib"), link("b", "eth0")), route)
    assert (names(used), used.unseen) == (["mlx5_0/1"], "")
    used = ports_of(machine(tmp_path, link(protocol="ib"), link("b", protocol="ib")), route)
    assert "which InfiniBand port" in used.unseen


@pytest.mark.parametrize(
    ("device", "lower"),
    [("eth0", ""), ("eth0.5", "eth0"), ("bond0", "eth9 eth0"), ("br0", "tap0 eth0"),
     ("team0", "eth0"), ("macvlan0", "eth0"), ("ipvl0", "eth0")],
)  # fmt: skip
def test_a_gid_of_the_device_decides(tmp_path: Path, device: str, lower: str) -> None:
    for name in ("eth0", "eth9", "tap0", "eth1"):
        netdev(tmp_path, name)
    netdev(tmp_path, device, lower=lower)
    gid(tmp_path, 0, "fe80::1", "eth0")
    gid(tmp_path, 2, "::ffff:192.0.2.8", device, "IB/RoCE v1")
    gid(tmp_path, 3, "::ffff:192.0.2.8", device)
    gid(tmp_path, 0, "::ffff:192.0.2.8", "eth1", port="mlx5_1/ports/1")
    host = machine(tmp_path, link(netdev="eth0"), link("mlx5_1", "eth1"))
    used = ports_of(host, Route("192.0.2.1", device, "192.0.2.8"))
    assert used == RoutePorts((link(netdev="eth0"),), "RoCE v2")
    # IPv6 has no GID here, but the device has: a doubt
    used = ports_of(host, Route("2001:db8::1", device, "2001:db8::8"))
    assert not used.ports
    assert "no GID of mlx5_0/1 has the source address 2001:db8::8" in used.doubt
    # another device has none
    netdev(tmp_path, "other")
    assert ports_of(host, Route("192.0.2.1", "other", "192.0.2.8")) == RoutePorts()


def test_a_device_of_another_namespace_may_have_the_same_name(tmp_path: Path) -> None:
    netdev(tmp_path, "net1", iflink=5)
    gid(tmp_path, 0, "::ffff:192.0.2.7", "net1")
    gid(tmp_path, 1, "::ffff:192.0.2.8", "net1", port="mlx5_1/ports/1")
    host = machine(tmp_path, link("mlx5_0"), link("mlx5_1"))
    used = ports_of(host, Route("192.0.2.1", "net1", "192.0.2.8"))
    assert (names(used), used.doubt) == (["mlx5_1/1"], "")


def test_without_a_source_the_family_decides(tmp_path: Path) -> None:
    netdev(tmp_path, "eth0")
    gid(tmp_path, 0, "fe80::1", "eth0")
    host = machine(tmp_path, link(netdev="eth0"))
    assert names(ports_of(host, Route("2001:db8::1", "eth0"))) == ["mlx5_0/1"]
    assert names(ports_of(host, Route("192.0.2.1", "eth0"))) == []


def test_v1_is_not_routed(tmp_path: Path) -> None:
    netdev(tmp_path, "eth0")
    gid(tmp_path, 0, "::ffff:192.0.2.8", "eth0", "IB/RoCE v1")
    host = machine(tmp_path, link(netdev="eth0"))
    route = Route("198.51.100.1", "eth0", "192.0.2.8", "192.0.2.1")
    assert "RoCE v1 is not routed" in ports_of(host, route).doubt
    assert ports_of(host, Route("192.0.2.1", "eth0", "192.0.2.8")).doubt == ""
    gid(tmp_path, 1, "::ffff:192.0.2.8", "eth0")
    assert ports_of(host, route) == RoutePorts((link(netdev="eth0"),), "RoCE v2")


def test_what_is_not_recorded_is_not_certain(tmp_path: Path) -> None:
    route = Route("192.0.2.1", "eth0.5", "192.0.2.8")
    host = machine(tmp_path, link(netdev="eth0"))
    # nothing is known about the device
    assert "which RDMA port eth0.5" in ports_of(host, route).unseen
    # the VLAN is above the port, and its GIDs are not recorded
    netdev(tmp_path, "eth0.5", lower="eth0")
    used = ports_of(host, route)
    assert (names(used), used.medium, used.unseen) == (["mlx5_0/1"], "RoCE", "")
    # the same for a device whose protocol is unknown, as in a pasted `rdma link`
    used = ports_of(machine(tmp_path, link(netdev="eth0", protocol="")), route)
    assert used.unseen
    # netlink itself names the device
    used = ports_of(machine(tmp_path, link(netdev="eth0.5", protocol="")), route)
    assert (names(used), used.medium, used.unseen) == (["mlx5_0/1"], "RDMA", "")


IP_LINK = """\
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP mode DEFAULT
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
3: bond0: <BROADCAST,MULTICAST,MASTER,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP mode DEFAULT
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
4: bond0.5@bond0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP mode DEFAULT
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
5: veth0@if2: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP mode DEFAULT
    link/ether 02:00:00:00:00:05 brd ff:ff:ff:ff:ff:ff link-netnsid 0
"""
IP_LINK_JSON = json.dumps(
    [
        {"ifname": "eth0", "link_type": "ether", "master": "bond0"},
        {"ifname": "bond0", "link_type": "ether", "linkinfo": {"info_kind": "bond"}},
        {"ifname": "bond0.5", "link": "bond0", "link_type": "ether"},
        {"ifname": "veth0", "link_index": 2, "link_type": "ether",
         "linkinfo": {"info_kind": "veth"}},
    ]
)  # fmt: skip


@pytest.mark.parametrize("text", [IP_LINK, IP_LINK_JSON])
def test_pasted_devices_of_ip_link(tmp_path: Path, text: str) -> None:
    host = machine(tmp_path, link(netdev="eth0"), programs={"ip -d -j link show": text})
    used = ports_of(host, Route("192.0.2.1", "bond0.5"))
    assert (names(used), used.unseen) == (["mlx5_0/1"], "")
    assert ports_of(host, Route("192.0.2.1", "veth0")).unseen


def test_iwarp_serves_its_own_device(tmp_path: Path) -> None:
    netdev(tmp_path, "eth0")
    netdev(tmp_path, "eth0.5", lower="eth0")
    gid(tmp_path, 0, "2:0:0:1::", "eth0", "IB/RoCE v1")
    host = machine(tmp_path, link(netdev="eth0", protocol="iw"))
    assert ports_of(host, Route("192.0.2.1", "eth0")).medium == "iWARP"
    used = ports_of(host, Route("192.0.2.1", "eth0.5"))
    assert (names(used), "iWARP of mlx5_0/1" in used.doubt) == ([], True)


def test_loopback_takes_any_active_port(tmp_path: Path) -> None:
    host = machine(tmp_path, link("a", state="DOWN"), link("b"))
    assert names(ports_of(host, Route("127.0.0.1", "lo"))) == ["b/1"]


@pytest.mark.parametrize("name", ["../../../../etc", "..", "", "a/b", "a\0b", "x" * 5000])
def test_names_are_no_paths(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "etc/ports/1/gids"
    outside.mkdir(parents=True)
    host = machine(tmp_path / "root", link(name, name), link("b", name, protocol="ib"))
    for device in (name, "eth0"):
        used = ports_of(host, Route("192.0.2.1", device))
        assert used.unseen or used.ports


def test_few_gids_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [link(f"mlx5_{number}", f"eth{number}") for number in range(16)]
    for number, port in enumerate(ports):
        netdev(tmp_path, port.netdev)
        for index in range(256):
            address = "::ffff:192.0.2.8" if index == 3 else f"fe80::{number}:{index:x}"
            gid(tmp_path, index, address, port.netdev, port=f"mlx5_{number}/ports/1")
    read: list[str] = []
    readable = files.readable

    def counted(path: Path | str) -> str:
        read.append(str(path))
        return readable(path)

    monkeypatch.setattr(files, "readable", counted)
    used = ports_of(machine(tmp_path, *ports), Route("192.0.2.1", "eth5", "192.0.2.8"))
    assert names(used) == ["mlx5_5/1"]
    # four devices, four GIDs, one type
    assert len([path for path in read if "infiniband" in path]) == 9
    assert len(read) < 20


# ---- judged


def judged(used: RoutePorts, *active: Link) -> tuple[str, str]:
    route = Route("192.0.2.1", "eth0", "192.0.2.8")
    finding = judge_route("route to x", route, used, active or [link(netdev="eth7")])
    assert finding.remedy or finding.status == "ok"
    return finding.status, finding.found


def test_a_route_is_judged() -> None:
    up, down = link("up"), link("down", state="DOWN", physical_state="POLLING")
    assert judged(RoutePorts((up,), "RoCE v2")) == ("ok", "uses eth0: RoCE v2 of up/1")
    assert judged(RoutePorts()) == ("error", "uses eth0")
    status, text = judged(RoutePorts((down,), "IPoIB"))
    assert (status, text) == ("error", "uses eth0: IPoIB of down/1, which is DOWN POLLING")
    status, text = judged(RoutePorts((up, down), "RoCE v2"))
    assert status == "warning"
    assert "down/1 is DOWN" in text
    assert judged(RoutePorts((up,), "RoCE v1", doubt="a doubt"))[0] == "warning"
    assert judged(RoutePorts(doubt="a doubt")) == ("warning", "uses eth0; a doubt")
    assert judged(RoutePorts((up, down), "IPoIB", "which"))[0] == "unknown"
    assert judged(RoutePorts((up,), "RDMA", "which"))[0] == "unknown"
    # whichever of them it is
    assert judged(RoutePorts((up, link("two")), "IPoIB", "which"))[0] == "ok"


def test_many_servers_of_fstab_are_not_all_judged(tmp_path: Path) -> None:
    lines = [f"host{number}:/a /a{number} nfs proto=rdma 0 0" for number in range(40)]
    write(tmp_path, "etc/fstab", "\n".join(lines))
    findings = list(routes(machine(tmp_path)))
    assert len(findings) == 33
    assert "8 more servers" in findings[-1].found
    assert {finding.status for finding in findings} == {"unknown"}


def test_the_family_of_the_server_is_that_of_the_mount(tmp_path: Path) -> None:
    write(tmp_path, "etc/hosts", "2001:db8::5 nas # first\n192.0.2.5 nas")
    write(tmp_path, "etc/fstab", "nas:/a /a nfs rdma 0 0\nnas:/b /b nfs proto=rdma 0 0")
    host = machine(tmp_path, link(netdev="eth0"))
    # the option rdma takes the first address, proto=rdma IPv4, as `nfsrdma mount` does
    findings = list(routes(host))
    assert [finding.name for finding in findings if finding.name.startswith("route")] == [
        "route to nas",
        "route to nas (192.0.2.5)",
    ]
    findings = list(routes(Machine(tmp_path, "nas", host.recording)))
    assert [finding.name for finding in findings if finding.name.startswith("route")] == [
        "route to nas",
        "route to nas (2001:db8::5)",
    ]


@pytest.mark.parametrize("addresses", [{}, {"nas": []}])
def test_a_mount_proves_the_route_to_a_name_without_an_address(
    addresses: dict[str, list[str]], tmp_path: Path
) -> None:
    entry = "61 1 0:52 / /a rw - nfs4 nas:/a rw,vers=4.2,proto=rdma,addr=192.0.2.5\n"
    write(tmp_path, "proc/self/mountinfo", entry)
    write(tmp_path, "etc/fstab", "nas:/a /a nfs proto=rdma 0 0\nother:/a /b nfs proto=rdma 0 0\n")
    host = machine(tmp_path, link(netdev="eth0"))
    assert host.recording
    host.recording.addresses.update(addresses)
    verdicts = [
        (finding.name, finding.status)
        for finding in routes(host)
        if finding.name.startswith("route")
    ]
    assert verdicts == [("route to nas", "ok"), ("route to other", "unknown")]
