# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from unit.doctor.bundles_made import read_back
from unit.files_made import write

from nfsrdma_tools.cli import doctor
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.doctor.checks import (
    AFTER_REBOOT,
    CHECKS,
    examine,
    firewall,
    kernel,
    mount_definitions,
    nfs_mounts,
    nfs_routes,
    nfs_server,
    probe_requirements,
    rdma_links,
)
from nfsrdma_tools.doctor.finding import LISTED, Finding, carry_out
from nfsrdma_tools.doctor.vocabulary import WORDS
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host import packages, packet_filter
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfsd.serving import serving
from nfsrdma_tools.host.rdma.ports import Device, Link
from nfsrdma_tools.module_source import BUILDS_FOR

RELEASE = "6.12.107-amd64"
MOUNTS = (
    "44 29 0:45 / {} rw,relatime - nfs4 server:/export"
    " rw,vers=4.2,rsize={},wsize=524288,proto={},addr=10.9.1.1\n"
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    write(tmp_path, "proc/sys/kernel/osrelease", f"{RELEASE}\n")
    return Machine(root=tmp_path)


def one(findings: Iterator[Finding]) -> Finding:
    (only,) = findings
    return only


def link(**changes: Any) -> Link:
    device = Device(0, "rxe0", 1, "ca", "roce", "rxe", "", "0000:0000:0000:0000")
    facts: dict[str, Any] = {
        "device": device,
        "port": 1,
        "state": "ACTIVE",
        "physical_state": "LINK_UP",
    }
    return Link(**{**facts, "netdev": "eth1", **changes})


# ---- kernel


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("CONFIG_SUNRPC_XPRT_RDMA=m\n", "ok"),
        ("CONFIG_SUNRPC_XPRT_RDMA=y\n", "ok"),
        ("# CONFIG_SUNRPC_XPRT_RDMA is not set\n", "error"),
        ("CONFIG_SUNRPC_XPRT_RDMA_OTHER=m\n", "error"),
    ],
)
def test_the_kernel_configuration_decides(machine: Machine, line: str, status: str) -> None:
    write(machine.root, f"boot/config-{RELEASE}", line)
    assert one(kernel.feature(machine)).status == status


def test_a_packed_configuration_is_read(machine: Machine) -> None:
    write(machine.root, "proc/config.gz", gzip.compress(b"CONFIG_SUNRPC_XPRT_RDMA=y\n"))
    assert one(kernel.feature(machine)).status == "ok"


def test_a_vendors_module_makes_up_for_the_kernels_option(machine: Machine) -> None:
    write(machine.root, f"boot/config-{RELEASE}", "CONFIG_SUNRPC=m\n")
    lines = "sunrpc 1 1 rpcrdma, Live 0x0\nrdma_cm 1 1 rpcrdma, Live 0x0\n"
    write(machine.root, "proc/modules", lines)
    finding = one(kernel.feature(machine))
    assert (finding.status, "rpcrdma is loaded" in finding.found) == ("ok", True)


def test_a_kernel_without_any_configuration_is_unknown(machine: Machine) -> None:
    assert one(kernel.feature(machine)).status == "unknown"


@pytest.mark.parametrize(
    ("users", "status", "words"),
    [
        ("rpcrdma,", "ok", "rpcrdma"),
        ("-", "unknown", "no output of modinfo"),
        ("rpcrdma,nfsrdma,", "warning", "nfsrdma, rpcrdma"),
    ],
)
def test_the_owner_of_the_netid_is_named(
    machine: Machine, users: str, status: str, words: str
) -> None:
    lines = f"sunrpc 1 1 {users} Live 0x0\nrdma_cm 1 1 {users} Live 0x0\n"
    write(machine.root, "proc/modules", lines)
    finding = one(kernel.netid(machine))
    assert (finding.status, words in finding.found) == (status, True), finding


def test_a_module_that_the_first_mount_loads_need_not_be_loaded(machine: Machine) -> None:
    write(machine.root, "proc/modules", "sunrpc 1 1 - Live 0x0\n")
    text = "filename:       /x/rpcrdma.ko\0alias=xprtrdma\0alias=svcrdma\0intree=Y\0"
    programs: dict[tuple[str, ...], Result | None] = {
        ("modinfo", "-0", "--", "rpcrdma"): Result(("modinfo",), text, "", 0),
        ("dmesg",): Result(("dmesg",), "", "", 0),
    }
    recording = Machine(machine.root, recording=Recording(programs=programs))
    assert one(kernel.module(recording)).status == "ok"
    finding = one(kernel.netid(recording))
    assert (finding.status, finding.remedy) == ("ok", "")
    assert "a mount with proto=rdma loads rpcrdma" in finding.found


def test_headers_and_btf(machine: Machine) -> None:
    lacking = one(kernel.headers(machine))
    # optional, with the way to get them
    assert (lacking.status, lacking.remedy) == (
        "ok",
        packages.install("headers", RELEASE, Machine(machine.root)),
    )
    assert "probes need none, a build of nfsrdma does" in lacking.found
    assert one(kernel.btf(machine)).status == "warning"
    # collect looks for both; who writes a manifest by hand does not
    for by_hand in (Recording(collected=False), Recording(complete=False, collected=False)):
        host = replace(machine, recording=by_hand)
        for name, check in (("headers", kernel.headers), ("btf", kernel.btf)):
            (finding,) = carry_out(name, check, host)
            assert finding.status == "unknown", finding
            assert "was not recorded" in finding.found
            # the kernel's configuration tells, too
            for config, status in (("CONFIG_X=y", "unknown"), ("CONFIG_DEBUG_INFO_BTF=y", "ok"),
                                   ("# CONFIG_DEBUG_INFO_BTF is not set", "warning")):  # fmt: skip
                write(machine.root, f"boot/config-{RELEASE}", f"{config}\n")
                (btf,) = carry_out("btf", kernel.btf, host)
                assert btf.status == status
            (machine.root / f"boot/config-{RELEASE}").unlink()
    host = replace(machine, recording=Recording())
    assert one(kernel.headers(host)).status == "ok"
    assert one(kernel.btf(host)).status == "warning"
    write(machine.root, f"lib/modules/{RELEASE}/build/Makefile", "")
    write(machine.root, "sys/kernel/btf/vmlinux", b"")
    finding = one(kernel.headers(machine))
    assert finding == Finding("headers", "ok", f"/lib/modules/{RELEASE}/build")
    assert one(kernel.btf(machine)).status == "ok"


_MODULE_BTF = "CONFIG_DEBUG_INFO_BTF_MODULES"


@pytest.mark.parametrize(
    ("release", "version", "config", "status"),
    [
        ("5.10.0-46-amd64", "#1 SMP Debian 5.10.259-1 (2026-07-31)", "", "warning"),
        ("5.10.0-46-amd64", "#1 SMP Debian 5.10.259-1 (2026-07-31)", f"{_MODULE_BTF}=y", "ok"),
        # Red Hat backports the option, and an older bundle has the line of it or not
        ("4.18.0-553.el8.x86_64", "", f"{_MODULE_BTF}=y", "ok"),
        ("4.18.0-553.el8.x86_64", "", "", "ok"),
        ("6.1.0-56-amd64", "", f"# {_MODULE_BTF} is not set", "warning"),
        # not the whole configuration
        ("6.1.0-56-amd64", "", "", "ok"),
    ],
)
@pytest.mark.parametrize("folder", ["boot", "lib", "usr/lib"])
@pytest.mark.parametrize("transport", ["m", "y"])
def test_modules_without_types_are_judged_alike_on_the_host_and_from_its_bundles(
    tmp_path: Path,
    release: str,
    version: str,
    config: str,
    status: str,
    folder: str,
    transport: str,
) -> None:
    """rpcrdma needs its own types, if it is a module; usr/lib: /lib is a link to it."""
    root = tmp_path / "host"
    name = f"boot/config-{release}" if folder == "boot" else f"{folder}/modules/{release}/config"
    options = f"CONFIG_DEBUG_INFO_BTF=y\n{config}\nCONFIG_SUNRPC_XPRT_RDMA={transport}\n"
    write(root, name, options)
    if folder == "usr/lib":
        (root / "lib").symlink_to("usr/lib")
    write(root, "proc/sys/kernel/osrelease", f"{release}\n")
    write(root, "proc/version", f"Linux version {release} (a@b) (gcc) {version}\n")
    write(root, "sys/kernel/btf/vmlinux", b"")
    here = Machine(root=root)
    expected = status if transport == "m" else "ok"
    finding = one(kernel.btf(here))
    assert (finding.status, "none of modules" in finding.found) == (expected, expected == "warning")
    collected = bundles.collect(machine=Machine(root))
    for bundle in (collected, anonymized(collected)):
        with read_back(bundle, tmp_path) as there:
            assert one(kernel.btf(there)) == finding
            assert one(kernel.feature(there)) == one(kernel.feature(here))


# ---- links


def test_links_that_are_up_are_well() -> None:
    assert [finding.status for finding in rdma_links.judge_links([link()])] == ["ok"]


def test_no_link_is_an_error_that_says_how_to_make_one() -> None:
    finding = one(rdma_links.judge_links([]))
    assert (finding.status, "nfsrdma link add" in finding.remedy) == ("error", True), finding


def test_links_that_are_down_are_one_error_when_none_is_up() -> None:
    down = link(state="DOWN", physical_state="DISABLED")
    finding = one(rdma_links.judge_links([down] * 6))
    assert (finding.name, finding.status) == ("links", "error")
    assert "and 2 more" in finding.found and "eth1 up" in finding.remedy


@pytest.mark.parametrize(
    ("state", "physical", "status", "words"),
    [
        ("DOWN", "DISABLED", "ok", "idle: DOWN DISABLED"),
        ("DOWN", "POLLING", "ok", "idle: DOWN POLLING"),
        ("INIT", "LINK_UP", "warning", "INIT LINK_UP"),
        ("ARMED", "LINK_UP", "warning", "ARMED LINK_UP"),
    ],
)
def test_a_link_beside_an_active_one_may_be_idle(
    state: str, physical: str, status: str, words: str
) -> None:
    other = link(state=state, physical_state=physical)
    first, second = rdma_links.judge_links([other, link()])
    assert (first.status, second.status) == (status, "ok")
    assert words in first.found


@pytest.mark.parametrize(
    ("size", "payload", "status"),
    [(9000, 4096, "ok"), (4200, 4096, "ok"), (4199, 2048, "warning"), (1500, 1024, "warning")],
)
def test_a_small_mtu_is_reported_with_its_payload(size: int, payload: int, status: str) -> None:
    finding = rdma_links.judge_mtu("rxe0/1", "eth1", size)
    assert (finding.status, f"carry {payload} bytes" in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    ("size", "active", "status", "words"),
    [
        (9000, 4096, "ok", "carry 4096"),
        (9000, 0, "ok", "carry 4096"),
        (9000, 1024, "warning", "MTU 9000, but RoCE packets carry 1024"),
        # the network device is the limit
        (1500, 4096, "warning", "carry 1024"),
        # both agree: nothing is wrong
        (1500, 1024, "ok", "MTU 1500: RoCE packets carry 1024 bytes, which is the active_mtu"),
        (1500, 256, "warning", "carry 256 bytes (active_mtu)"),
    ],
)
def test_the_mtu_in_use_may_be_smaller(size: int, active: int, status: str, words: str) -> None:
    finding = rdma_links.judge_mtu("rxe0/1", "eth1", size, active)
    assert (finding.status, words in finding.found) == (status, True), finding


VERBS = """hca_id:	{device}
	transport:			{transport}
	fw_ver:				20.42.1000
	node_guid:			b83f:d203:0077:3120
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		{most} (5)
			active_mtu:		{active} (3)
			link_layer:		{layer}
"""
ETHERNET = (
    "4: eth1: <BROADCAST,UP,LOWER_UP> mtu {} qdisc mq state UP\n    link/ether 02:00:00:00:00:01\n"
)
IB, IWARP = "InfiniBand (0)", "iWARP (1)"


@pytest.mark.parametrize(
    ("protocol", "files", "size", "verbs", "expected"),
    [
        # as people paste it: `rdma link` has no protocol, and there is no sysfs
        ("", {}, 1500, (IB, 4096, 1024, "Ethernet"), ("ok", "carry 1024 bytes, which is the act")),
        ("", {}, 9000, (IB, 4096, 1024, "Ethernet"), ("warning", "but RoCE packets carry 1024")),
        ("", {}, 9000, (IB, 2048, 2048, "Ethernet"), ("ok", "RoCE packets carry 2048 bytes")),
        ("", {}, None, (IB, 4096, 4096, "Ethernet"), ("ok", "4096 bytes (active_mtu); the MTU of")),
        ("", {}, None, (IB, 4096, 1024, "Ethernet"), ("unknown", "1024 bytes (active_mtu)")),
        ("roce", {}, 1500, None, ("warning", "eth1 has MTU 1500")),
        ("roce", {}, None, None, ("unknown", "the MTU of eth1 is not visible")),
        # of a kernel before 5.2
        ("", {"node_type": "1: CA"}, 1500, None, ("warning", "eth1 has MTU 1500")),
        # iWARP, InfiniBand, and what may be either
        ("", {}, 1500, (IWARP, 4096, 1024, "Ethernet"), None),
        ("", {"node_type": "4: RNIC"}, 1500, None, None),
        ("", {}, 2044, (IB, 4096, 2048, "InfiniBand"), None),
        ("", {"node_type": "1: CA", "ports/1/link_layer": "InfiniBand"}, 2044, None, None),
        ("", {}, 1500, None, ("unknown", "neither sysfs nor ibv_devinfo tells whether roce1/1 is")),
        ("ib", {}, 2044, (IB, 4096, 2048, "InfiniBand"), None),
        ("iw", {}, 1500, (IWARP, 4096, 1024, "Ethernet"), None),
    ],
)
def test_the_mtu_is_that_of_all_sources(
    machine: Machine, protocol: str, files: dict[str, str], size: int | None,
    verbs: tuple[str, int, int, str] | None, expected: tuple[str, str] | None,
) -> None:  # fmt: skip
    device = replace(link().device, name="roce1", protocol=protocol, node_type="", driver="")
    for name, text in files.items():
        write(machine.root, f"sys/class/infiniband/roce1/{name}", f"{text}\n")
    recording = Recording(links=[link(device=device)])
    if size:
        argv = ("ip", "-d", "-j", "link", "show")
        recording.programs[argv] = Result(argv, ETHERNET.format(size), "", 0)
    if verbs:
        keys = dict(zip(("transport", "most", "active", "layer"), verbs, strict=True))
        stdout = VERBS.format(device="roce1", **keys)
        recording.programs["ibv_devinfo",] = Result(("ibv_devinfo",), stdout, "", 0)
    host = Machine(machine.root, recording=recording)
    judged = list(rdma_links.mtus(host, {}, everywhere=True))
    assert [finding.name for finding in judged] == (["mtu roce1/1"] if expected else []), judged
    for finding, (status, words) in zip(judged, [expected] if expected else [], strict=True):
        assert (finding.status, words in finding.found) == (status, True), finding


def test_a_small_mtu_matters_on_the_routes_of_nfs(machine: Machine) -> None:
    recorded = Recording(links=[link(), link(port=2, netdev="eth2")])
    machine = replace(machine, recording=recorded)
    for name in ("eth1", "eth2", "eth1.5"):
        write(machine.root, f"sys/class/net/{name}/mtu", "1500\n")
    findings = rdma_links.mtus(machine, {"rxe0/1": {"eth1.5"}}, everywhere=False)
    assert [(finding.name, finding.status) for finding in findings] == [
        ("mtu rxe0/1", "warning"),
        ("mtu eth1.5", "warning"),
        ("mtu rxe0/2", "ok"),
    ]
    findings = rdma_links.mtus(machine, {}, everywhere=True)
    assert [finding.status for finding in findings] == ["warning", "warning"]


@pytest.mark.parametrize(
    ("packets", "losses", "status", "words"),
    [
        (
            10**6,
            {"symbol_error": 0},
            "ok",
            "no loss and no retry in 1000000 packets; link_downed 2",
        ),
        (10**6, {"packet_seq_err": 100}, "ok", "packet_seq_err 100 in 1000000 packets"),
        (10**6, {"packet_seq_err": 60, "out_of_sequence": 41}, "warning", "packet_seq_err 60, out"),
        (0, {"packet_seq_err": 1}, "unknown", "packets are not counted"),
        (0, {"packet_seq_err": 0}, "ok", "no loss and no retry; link_downed 2"),
    ],
)
def test_the_wire_is_judged_by_the_share_of_packets(
    packets: int, losses: dict[str, int], status: str, words: str
) -> None:
    sums = {"port_rcv_packets": packets}
    finding = rdma_links.judge_wire("mlx5_0/1", sums, losses, {"link_downed": 2})
    assert (finding.name, finding.status) == ("wire mlx5_0/1", status)
    assert words in finding.found


def test_packets_out_of_sequence_may_be_the_work_of_adaptive_routing() -> None:
    for losses, doubt in (({"out_of_sequence": 9}, True), ({"packet_seq_err": 9}, False)):
        finding = rdma_links.judge_wire("mlx5_0/1", {"port_rcv_packets": 9}, losses, {})
        assert ("adaptive routing" in finding.expected) == doubt


# ---- server


TCP, RDMA = "tcp 2049\ntcp 2049\n", "rdma 20049\nrdma 20049\n"
FSTAB_OF_ITSELF = "localhost:/a /a nfs proto=rdma,port=20049\nother:/b /b nfs rdma\n"


@pytest.mark.parametrize(
    ("ports", "conf", "fstab", "status", "words"),
    [
        ("", "rdma=y", "", "ok", "no NFS server runs here"),
        (RDMA + TCP, "rdma=y", "", "ok", "listens on rdma 20049, tcp 2049"),
        (RDMA + TCP, "rdma=n", "", "warning", "does not request RDMA"),
        (RDMA + TCP, "rdma=y\nrdma-port=20050", "", "warning", "requests RDMA port 20050"),
        (TCP, "threads=8", "", "ok", "its configuration requests no RDMA"),
        (TCP, "rdma=y", "", "error", "/etc/nfs.conf requests RDMA port 20049: no message says"),
        (TCP, "rdma=x", "", "error", "cannot interpret port 'x'"),
        ("rdma 4791\n" + TCP, "rdma=4791", "", "ok", "clients need port=4791"),
        ("rdma 4791\n" + TCP, "rdma=4791", FSTAB_OF_ITSELF, "warning", "fstab mounts /a of this"),
        ("nfr 20049\n" + TCP, "rdma=y", "", "ok", "nfr 20049"),
    ],
)
def test_listeners_are_held_against_the_configuration(
    machine: Machine, ports: str, conf: str, fstab: str, status: str, words: str
) -> None:
    write(machine.root, "proc/fs/nfsd/portlist", ports)
    write(machine.root, "etc/nfs.conf", f"[nfsd]\n{conf}\n")
    write(machine.root, "etc/fstab", fstab)
    argv = ("ip", "-j", "address", "show")
    rows = '[{"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1"}]}]'
    host = replace(machine, recording=Recording(programs={argv: Result(argv, rows, "", 0)}))
    finding = one(nfs_server.listeners(host))
    assert (finding.status, words in finding.found) == (status, True), finding
    assert finding.remedy or status == "ok"


@pytest.mark.parametrize(
    ("log", "words", "remedy"),
    [
        (
            "rpc.nfsd: Unable to request RDMA services: Protocol not supported",
            "no transport",
            "rpcrdma",
        ),
        (
            "rpc.nfsd: Unable to request RDMA services: Address already in use",
            "has the port",
            "cm_id",
        ),
        ("nfsdctl: Error: No such device", "address of host=", "link show"),
        ("rpc.nfsd: Unable to request RDMA services: Operation not permitted", "not permitted", ""),
    ],
)
def test_the_refusal_of_a_listener_has_its_cause(
    machine: Machine, log: str, words: str, remedy: str
) -> None:
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    write(machine.root, "etc/nfs.conf", "[nfsd]\nrdma=y\n")
    dmesg = Result(("dmesg",), f"{log}\n", "", 0)
    host = replace(machine, recording=Recording(programs={("dmesg",): dmesg}))
    finding = one(nfs_server.listeners(host))
    assert (finding.status, words in finding.found) == ("error", True), finding
    assert remedy in finding.remedy and "systemctl restart nfs-server" in finding.remedy


def test_a_missing_module_is_the_cause_before_any_message(machine: Machine) -> None:
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    write(machine.root, "etc/nfs.conf", "[nfsd]\nrdma=y\n")
    argv = ("modinfo", "-0", "--", "rpcrdma")
    modinfo = Result(argv, "", "modinfo: ERROR: Module rpcrdma not found.\n", 1)
    finding = one(
        nfs_server.listeners(replace(machine, recording=Recording(programs={argv: modinfo})))
    )
    assert finding.status == "unknown"
    assert f"not judged, because rpcrdma: no module for kernel {RELEASE}" in finding.found


def test_without_any_configuration_the_request_is_unknown(machine: Machine) -> None:
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    host = replace(machine, recording=Recording(complete=False))
    assert one(nfs_server.listeners(host)).status == "unknown"
    write(machine.root, "proc/fs/nfsd/portlist", RDMA + TCP)
    assert one(nfs_server.listeners(host)).status == "ok"


def test_a_request_that_nothing_reads_is_a_doubt(machine: Machine) -> None:
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    write(machine.root, "usr/lib/systemd/system/nfs-server.service",
          "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n")  # fmt: skip
    write(machine.root, "etc/default/nfs-kernel-server", 'RPCNFSDOPTS="--rdma"\n')
    finding = one(nfs_server.listeners(machine))
    assert finding.status == "warning"
    assert "RPCNFSDOPTS of /etc/default/nfs-kernel-server is --rdma, which" in finding.found


def test_a_machine_that_serves_nothing_is_well(machine: Machine) -> None:
    assert one(nfs_server.listeners(machine)).status == "ok"


def test_without_a_server_its_checks_say_nothing(machine: Machine) -> None:
    assert [*nfs_server.reach(machine), *nfs_routes.routes(machine)] == []


NFT = """
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established accept
		tcp dport { 22, %s } accept
	}
}
"""


def chain_of_input(*rules: str, policy: str = "accept", hook: str = "input") -> str:
    """A table of nft with one chain."""
    lines = "".join(f"\t\t{rule}\n" for rule in rules)
    head = f"\t\ttype filter hook {hook} priority filter; policy {policy};\n"
    return f"table inet filter {{\n\tchain {hook} {{\n{head}{lines}\t}}\n}}\n"


ALL = "tcp dport { 2049, 20049 } accept", "udp dport 4791 accept"
DOCKER = ":FORWARD DROP [0:0]\n-A DOCKER-USER -j DROP\n-A FORWARD -j DOCKER-USER\n"
SAVED = ":INPUT DROP [0:0]\n-A INPUT -p tcp -m multiport --dports 2049,20049 -j ACCEPT\n"
SETS = """table inet f {
	set ports {
		type inet_service
		flags interval
		elements = { 2000-2100, 4791,
				20049 }
	}
	set bad {
		type ipv4_addr
		elements = { 192.0.2.1 }
	}
	map verdicts {
		type inet_service : verdict
		elements = { 22 : drop, 2049 : jump nfs }
	}
	chain input {
		type filter hook input priority 0; policy drop;
		ct state vmap { invalid : drop, established : accept, related : accept }
		iif "lo" accept
		tcp dport vmap @verdicts
		meta l4proto { tcp, udp } th dport @ports accept
	}
	chain nfs {
		ip saddr @bad RULE
	}
}
"""
FIREWALLD = """table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES {
		iifname "eth0" goto filter_IN_public
		goto filter_IN_public
	}
	chain filter_IN_public {
		jump filter_IN_public_allow
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_IN_public_allow {
		tcp dport 22 accept
RULES
	}
	chain mangle_PREROUTING {
		type filter hook prerouting priority mangle + 10; policy accept;
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop
	}
}
"""


# without the chains that set marks, as people shorten it
FIREWALLD_CUT = """table inet firewalld {
chain mangle_PREROUTING {
type filter hook prerouting priority mangle + 10; policy accept;
jump mangle_PREROUTING_ZONES
}
}
"""


@pytest.mark.parametrize(
    ("rules", "status", "words"),
    [
        ("", "ok", "no rule drops tcp 2049"),
        (NFT % "80", "warning", "tcp 2049, tcp 20049, udp 4791 dropped by: policy drop of chain"),
        (NFT % "2049, 20049", "warning", "udp 4791 dropped"),
        # a TCP port of that number is no UDP port
        (NFT % "2049, 4791, 20049", "warning", "udp 4791 dropped"),
        (chain_of_input(*ALL, policy="drop"), "ok", "no rule drops"),
        (":INPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\n", "ok", "no rule"),
        (":INPUT DROP [0:0]\n-A INPUT -p tcp --dport 2049 -j ACCEPT\n", "warning",
         "tcp 20049, udp 4791 dropped by: policy drop"),
        (":INPUT ACCEPT [0:0]\n-A INPUT -j REJECT --reject-with x\n", "warning", "tcp 2049"),
        # of Docker, of fail2ban, and what most filters begin with
        (DOCKER, "ok", "no rule"),
        ("-A INPUT -p tcp --dport 22 -j f2b\n-A f2b -s 192.0.2.1/32 -j REJECT\n", "ok", "no rule"),
        ("-A INPUT -j f2b\n-A f2b -s 192.0.2.1/32 -j REJECT\n", "ok", "except by: ip saddr 192"),
        ("-A INPUT -p tcp -m multiport --dports 22 -j DROP\n", "ok", "no rule"),
        (SAVED + "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n", "ok", "no rule"),
        (SAVED + "-A INPUT -p udp -m udp --dport 4000:5000 -j ACCEPT\n", "ok", "no rule"),
        (SAVED + "-A INPUT -p tcp -m udp --dport 4791 -j ACCEPT\n", "warning", "udp 4791"),
        (SAVED + "-A INPUT -i lo -j ACCEPT\n", "warning", "udp 4791"),
        (NFT.replace("policy drop", "policy accept") % "22", "ok", "no rule"),
        (
            "table inet f {\nchain i {\ntype filter hook input priority 0;\n"
            "ct state invalid drop\njump rest\n}\nchain rest {\nreject\n}\n}\n",
            "warning",
            "dropped by: reject",
        ),
        (
            "table inet f {\nchain i {\ntype filter hook input priority 0;\nct state invalid drop\n"
            "}\nchain fw {\ntype filter hook forward priority 0; policy drop;\n}\n}\n",
            "ok",
            "no rule",
        ),
        # rules that name the ports, to drop them
        (chain_of_input("tcp dport { 2049, 20049 } drop", "udp dport 4791 drop"), "warning",
         "tcp 2049, tcp 20049 dropped by: tcp dport { 2049, 20049 } drop; udp 4791 dropped by"),
        ("-A INPUT -p tcp --dport 2049 -j REJECT --reject-with tcp-reset\n", "warning", "tcp 2049"),
        # of another hook
        (chain_of_input(*ALL, policy="drop").replace("hook input", "hook output"), "ok", "no rule"),
        (chain_of_input(policy="drop") + chain_of_input(*ALL, hook="output"), "warning", "2049"),
        (chain_of_input("tcp dport 2049 drop", hook="prerouting"), "warning", "tcp 2049 dropped"),
        # of one host, of others
        (chain_of_input(*(f"ip saddr 192.0.2.7 {rule}" for rule in ALL), policy="drop"), "unknown",
         "accepted from some peers only, by: ip saddr 192.0.2.7 tcp dport { 2049, 20049 } accept"),
        (chain_of_input("ip saddr != 10.0.0.0/8 drop"), "unknown", "some peers only"),
        (chain_of_input("ip saddr 192.0.2.7 drop"), "ok", "except by: ip saddr 192.0.2.7 drop"),
        # a port within another number, a range, a name
        (chain_of_input("tcp dport 12049 drop"), "ok", "no rule"),
        (chain_of_input("tcp dport 2000-2100 drop"), "warning", "tcp 2049 dropped"),
        (chain_of_input("tcp dport nfs drop", "tcp dport ssh drop"), "warning", "tcp 2049 dropped"),
        (chain_of_input("tcp dport >= 1024 drop"), "warning", "tcp 2049, tcp 20049 dropped"),
        (chain_of_input("tcp dport != { 22, 2049, 20049 } drop"), "ok", "no rule"),
        (chain_of_input("meta l4proto udp drop"), "warning", "udp 4791 dropped"),
        # sets, maps, jumps, comments, and a counter with the number of a port
        (SETS.replace("RULE", "drop"), "ok", "tcp 2049 accepted, except by: ip saddr @bad drop"),
        (SETS.replace("ip saddr @bad RULE", "counter packets 2049 bytes 1 drop"), "warning",
         "tcp 2049 dropped by: drop"),
        (SETS.replace("RULE", 'drop comment "2049 accept"'), "ok", "except by: ip saddr @bad drop"),
        (FIREWALLD.replace("RULES", "\n".join(ALL)), "ok", "no rule"),
        (FIREWALLD.replace("RULES", ALL[0]), "warning", "udp 4791 dropped by: reject"),
        # what is not known
        (chain_of_input("meta cgroup 7 drop"), "unknown", "cannot interpret: meta cgroup 7 drop"),
        (chain_of_input("meta cgroup 7 tcp dport 22 drop"), "ok", "no rule"),
        ("-A INPUT -m set --match-set blocked src -j DROP\n", "unknown", "--match-set blocked"),
        (chain_of_input("ip saddr . tcp dport { 192.0.2.1 . 22 } drop"), "unknown", "ip saddr ."),
        (chain_of_input("tcp dport 2049 queue to 1"), "unknown", "tcp dport 2049 queue"),
        (chain_of_input("jump gone"), "unknown", "chain gone"),
        (FIREWALLD_CUT, "ok", "no rule"),
        (FIREWALLD_CUT.replace("mangle_PREROUTING_ZONES", "filter_PREROUTING"), "unknown", "chain"),
        (FIREWALLD_CUT.replace("firewalld", "other"), "unknown", "chain mangle_PREROUTING_ZONES"),
        # of IPv6 alone
        (chain_of_input(policy="drop").replace("inet", "ip6"), "unknown", "IPv4, not IPv6 (policy"),
    ],
)  # fmt: skip
def test_the_packet_filter_is_judged(rules: str, status: str, words: str) -> None:
    finding = firewall.judge_filter(rules)
    assert (finding.status, words in finding.found) == (status, True), finding
    # what a bundle keeps of the rules is judged the same
    kept = packet_filter.rules_of_input(rules)
    assert firewall.judge_filter(kept) == finding, kept
    assert packet_filter.rules_of_input(kept) == kept
    made = Bundle()
    made.notes.programs[NFT_LIST] = Result(NFT_LIST, kept, "", 0)
    result = anonymized(made).notes.programs[NFT_LIST]
    assert result
    assert "192.0.2." not in result.stdout
    anonymous = firewall.judge_filter(result.stdout)
    assert anonymous.status == finding.status, result.stdout


SIX = """# Generated by ip6tables-save v1.8.9 on Sun Nov 29 11:00:00 2026
*filter
:INPUT POLICY [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -s fe80::/10 -p udp -m udp --dport 546 -j ACCEPT
RULES-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
# Completed on Sun Nov 29 11:00:00 2026
"""
SIX_PORTS = """-A INPUT -p tcp -m multiport --dports 2049,20049 -j ACCEPT
-A INPUT -p udp -m udp --dport 4791 -j ACCEPT
"""
SIX_SAVE = ("ip6tables-legacy-save",)


@pytest.mark.parametrize(
    ("policy", "rules", "status", "words"),
    [
        ("ACCEPT", "", "ok", "no rule drops"),
        ("DROP", "", "unknown", "IPv4, not IPv6 (policy drop of chain INPUT)"),
        ("DROP", SIX_PORTS, "ok", "no rule drops"),
        ("DROP", "-A INPUT -s 2001:db8::/32 -j ACCEPT\n", "ok", "no rule drops"),
        ("ACCEPT", "-A INPUT -p tcp --dport 20049 -j REJECT --reject-with icmp6-port-unreachable\n",
         "unknown", "tcp 20049 accepted from some peers only"),
        ("ACCEPT", None, "unknown", "the rules of ip6tables were not recorded"),
    ],
)  # fmt: skip
def test_the_rules_of_ip6tables_are_judged(
    machine: Machine, policy: str, rules: str | None, status: str, words: str
) -> None:
    write(machine.root, "proc/modules", "ip6table_filter 1 0 - Live 0x0\n")
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    recording = Recording()
    if rules is not None:
        text = SIX.replace("POLICY", policy).replace("RULES", rules)
        recording.programs[SIX_SAVE] = Result(SIX_SAVE, text, "", 0)
    host = Machine(machine.root, recording=recording)
    (finding,) = carry_out("firewall", firewall.firewall, host)
    assert (finding.status, words in finding.found) == (status, True), finding
    # a bundle, and an anonymized one, have the same rules
    made = Bundle()
    made.notes.programs.update(map(bundles._shortened, recording.programs.items()))
    for bundle in (made, anonymized(made)):
        again = Machine(machine.root, recording=bundle.notes)
        (judged,) = carry_out("firewall", firewall.firewall, again)
        assert judged.status == finding.status


def test_an_anonymized_bundle_keeps_the_words_of_the_packet_filter() -> None:
    words = {word for key in packet_filter._SELECTORS for word in key}
    words |= {*packet_filter._ENDS, *packet_filter._PORT_NAMES, *packet_filter._HOOKS}
    words |= {*packet_filter._FAMILIES, *packet_filter._PROTOCOLS.values(), "vmap", "jump", "goto"}
    words |= {word for word in packet_filter._OPERATORS if word.isalpha()}
    assert words - WORDS == set()


@given(st.lists(st.sampled_from(
    ["table inet firewalld {", "chain input {", "type filter hook input priority 0;", "}",
     "policy drop;",
     "{", "\n", ";", ",", "tcp dport", "2049", "vmap", ":", "accept", "drop", "jump", "input", "@x",
     "set x {", "elements =", "type inet_service", "-A INPUT", "-j", "!", "--dport", '"', "."]
), max_size=40))  # fmt: skip
def test_rules_of_anything_are_judged(words: list[str]) -> None:
    rules = " ".join(words)
    assert firewall.judge_filter(rules).found
    assert len(packet_filter.rules_of_input(rules)) <= 20 * len(rules) + 200


SERVED = "rdma 20049\ntcp 2049\n"
CARD = "passes the packet filter by, as of any card"


@pytest.mark.parametrize(
    ("device", "loaded", "status", "words"),
    [
        # offloaded by a card, whatever its protocol
        ({"driver": "bnxt_re"}, "", "ok", CARD),
        ({"driver": "irdma"}, "", "ok", CARD),
        ({"driver": "irdma", "protocol": "iw"}, "", "ok", CARD),
        ({"driver": "cxgb4", "protocol": "iw"}, "", "ok", CARD),
        ({"driver": "hfi1", "protocol": "opa"}, "", "ok", CARD),
        ({"driver": "card"}, "", "ok", CARD),
        ({"driver": "rxe"}, "", "warning", "udp 4791 dropped by: policy"),
        ({"driver": "siw", "protocol": "iw"}, "", "warning", "tcp 20049 dropped by: policy"),
        # no driver: rdma(8) prints none, and kernels before 5.2 report none
        ({"driver": "", "protocol": ""}, "", "ok", CARD),
        ({"driver": "", "protocol": "ib"}, "rdma_rxe", "ok", CARD),
        ({"driver": "", "protocol": ""}, "rdma_rxe", "warning",
         "tcp 20049, udp 4791 dropped by: policy drop of chain input; rxe0 may be a card"),
        ({"driver": "", "protocol": "roce"}, "rdma_rxe", "warning", "udp 4791 dropped by: policy"),
        ({"driver": "unknown", "protocol": "iw"}, "siw", "warning", "tcp 20049 dropped by: policy"),
    ],
)  # fmt: skip
def test_a_card_passes_the_packet_filter_by(
    machine: Machine, device: dict[str, str], loaded: str, status: str, words: str
) -> None:
    modules = "".join(f"{name} 1 0 - Live 0x0\n" for name in ("nf_tables", *loaded.split()))
    finding = filter_finding(machine, SERVED, [device], modules, ports="2049")
    assert (finding.status, words in finding.found) == (status, True), finding
    # a server without TCP needs the filter for a soft link only
    alone = filter_finding(machine, "rdma 20049\n", [device], modules, ports="22")
    assert (alone.status, "tcp 2049" in alone.expected) == (status, False), alone


def test_a_soft_link_in_the_kernel_is_no_module(machine: Machine) -> None:
    write(machine.root, f"boot/config-{RELEASE}", "CONFIG_RDMA_RXE=y\n")
    modules = "nf_tables 1 0 - Live 0x0\n"
    device = {"driver": "", "protocol": ""}
    assert filter_finding(machine, SERVED, [device], modules, ports="2049").status == "warning"


def test_unknown_devices_are_a_doubt_of_the_packet_filter(machine: Machine) -> None:
    modules = "nf_tables 1 0 - Live 0x0\n"
    for known, words in ((None, "no RDMA device was recorded"), ([], "no RDMA device is visible")):
        finding = filter_finding(machine, SERVED, known, modules, ports="2049")
        assert (finding.status, words in finding.found) == ("warning", True), finding
        ports = "2049, 20049 } accept\nudp dport { 4791"
        fine = filter_finding(machine, SERVED, known, modules, ports)
        assert (fine.status, words in fine.found) == ("ok", False), fine


def filter_finding(
    machine: Machine, portlist: str, devices: list[dict[str, str]] | None, modules: str, ports: str
) -> Finding:
    """The judgement of a filter that drops all TCP connections but those to ``ports``."""
    write(machine.root, "proc/modules", modules)
    write(machine.root, "proc/fs/nfsd/portlist", portlist)
    recording = Recording(programs={NFT_LIST: Result(NFT_LIST, NFT % ports, "", 0)})
    if devices is not None:
        records = [asdict(link().device) | changes for changes in devices]
        recording.links = [link(device=Device(**values)) for values in records]
    return one(firewall.firewall(Machine(machine.root, recording=recording)))


@pytest.mark.parametrize(
    ("portlist", "links", "status"),
    [
        ("", [], "ok"),
        ("", ["mlx5"], "ok"),
        ("", ["mlx5", "rxe"], "warning"),
        # a client of iWARP connects to its server
        ("", ["siw"], "ok"),
        ("rdma 20049\n", ["siw"], "warning"),
        ("rdma 20049\n", ["mlx5"], "ok"),
        ("tcp 2049\n", ["mlx5"], "warning"),
        ("", None, "warning"),
        ("", UserError("no ib_core"), "ok"),
    ],
)
def test_a_filter_matters_to_servers_and_soft_links(
    machine: Machine, portlist: str, links: list[str] | UserError | None, status: str
) -> None:
    device = link().device
    known: Any = links
    if isinstance(links, list):
        known = [link(device=replace(device, driver=driver)) for driver in links]
    write(machine.root, "proc/modules", "nf_tables 1 0 - Live 0x0\n")
    write(machine.root, "proc/fs/nfsd/portlist", portlist)
    ruleset = Result(("nft",), NFT % "22", "", 0)
    recording = Recording(programs={("nft", "list", "ruleset"): ruleset}, links=known)
    finding = one(firewall.firewall(Machine(machine.root, recording=recording)))
    assert finding.status == status


NFT_LIST = ("nft", "list", "ruleset")


@pytest.mark.parametrize(
    ("config", "result", "status", "words"),
    [
        ("CONFIG_NF_TABLES=y\n", Result(NFT_LIST, NFT % "22", "", 0), "warning", "dropped by"),
        ("CONFIG_NF_TABLES=y\n", None, "unknown", "nft is not installed"),
        ("CONFIG_NF_TABLES=m\n", None, "ok", "no rule drops tcp 2049"),
        ("", None, "ok", "no rule drops tcp 2049"),
    ],
)
def test_a_filter_in_the_kernel_is_no_module(
    machine: Machine, config: str, result: Result | None, status: str, words: str
) -> None:
    write(machine.root, "proc/modules", "")
    write(machine.root, f"boot/config-{RELEASE}", config)
    write(machine.root, "proc/fs/nfsd/portlist", TCP)
    host = replace(machine, recording=Recording(programs={NFT_LIST: result}))
    (finding,) = carry_out("firewall", firewall.firewall, host)
    assert (finding.status, words in finding.found) == (status, True)


def test_a_container_names_the_paths_of_its_host(tmp_path: Path) -> None:
    """As with /proc, /sys and / of the host in folders of the container."""
    write(tmp_path, "host/proc/sys/kernel/osrelease", f"{RELEASE}\n")
    write(tmp_path, "host/proc/1/mountinfo", MOUNTS.format("/mnt/data", 1048576, "rdma"))
    write(tmp_path, "host/proc/self/mountinfo", MOUNTS.format("/host/root/mnt/data", 1, "rdma"))
    write(tmp_path, "host/sys/class/bdi/0:45/read_ahead_kb", "128\n")
    write(tmp_path, "host/root/etc/fstab", "server:/export /mnt/data nfs4 proto=tcp 0 0\n")
    host = tmp_path / "host"
    words = [f"--path.procfs={host}/proc", f"--path.sysfs={host}/sys", f"--path.rootfs={host}/root"]
    told = CliRunner().invoke(app, ["doctor", "--json", *words]).stdout
    findings = {row["name"]: row for row in json.loads(told)["findings"]}
    assert findings["read-ahead /mnt/data"]["found"].startswith("128 KiB")
    assert findings["fstab /mnt/data"]["found"] == "mounted with rdma"
    # a program of the container knows nothing of the host
    assert findings["rpcrdma"]["found"].startswith("modinfo was not run: it would describe this")
    assert "mounts" not in findings
    assert str(tmp_path) not in told and "recorded" not in told


def test_the_paths_of_a_host_are_of_this_one(tmp_path: Path) -> None:
    words = ["doctor", f"--path.procfs={tmp_path}", f"--from={tmp_path}"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UsageError)
    assert "omit --from and --capture" in str(result.exception)


@pytest.mark.parametrize(
    ("file", "names"),
    [(".dockerenv", {"mounts"}), ("run/.containerenv", {"mounts"}), ("run/systemd/container", ())],
)
def test_the_mounts_of_a_container_are_not_those_of_its_host(
    machine: Machine, file: str, names: Collection[str]
) -> None:
    """A whole system in a container of systemd may have mounts of its own."""
    assert not list(nfs_mounts.namespace(machine))
    write(machine.root, file, "")
    findings = list(nfs_mounts.namespace(machine))
    assert {finding.name for finding in findings} == set(names)
    assert all("--path.procfs" in finding.remedy for finding in findings)


def test_rules_that_root_of_a_container_cannot_list_are_unknown(machine: Machine) -> None:
    write(machine.root, "proc/modules", "nf_tables 1 0 - Live 0x0\n")
    write(machine.root, ".dockerenv", "")
    refused = Result(NFT_LIST, "", "Operation not permitted (you must be root)\n", 1)
    host = replace(machine, recording=Recording(programs={NFT_LIST: refused}, root_user=True))
    (finding,) = carry_out("firewall", firewall.firewall, host)
    assert finding.status == "unknown"
    assert finding.found == "cannot list the rules: Operation not permitted (you must be root)"
    assert finding.remedy == "run this on the host"


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ((), "ok"),
        ((".dockerenv",), "ok"),
        (("proc/net/rpc/nfsd",), "ok"),
        ((".dockerenv", "proc/net/rpc/nfsd"), "unknown"),
        ((".dockerenv", "proc/net/rpc/nfsd", "proc/fs/nfsd/portlist"), "ok"),
    ],
)
def test_a_container_may_not_see_the_nfsd_of_its_network(
    machine: Machine, files: tuple[str, ...], status: str
) -> None:
    for name in files:
        write(machine.root, name, "")
    finding = one(nfs_server.listeners(machine))
    assert finding.status == status
    assert (serving(machine).threads is None) == (status == "unknown")


def test_a_server_that_refuses_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    # TCPMUX: nothing listens on it
    monkeypatch.setattr(nfs_server, "NFS_PORT", 1)
    finding = one(nfs_server.reach(Machine(server="127.0.0.1")))
    assert (finding.status, finding.found) == (
        "error",
        "no connection to TCP 1: Connection refused",
    )


# ---- mounting


def mounted(machine: Machine, rsize: int, kb: int, proto: str = "rdma", at: str = "/mnt") -> None:
    write(machine.root, "proc/self/mountinfo", MOUNTS.format(at, rsize, proto))
    write(machine.root, "sys/class/bdi/0:45/read_ahead_kb", f"{kb}\n")


@pytest.mark.parametrize(
    ("rsize", "kb", "status", "words"),
    [
        (524288, 128, "warning", "128 KiB, 0.25 blocks of rsize 512K"),
        (131072, 128, "ok", "1 blocks"),
        (524288, 2048, "ok", "4 blocks"),
        (65536, 0, "warning", "0 KiB"),
    ],
)
def test_read_ahead_is_held_against_rsize(
    machine: Machine, rsize: int, kb: int, status: str, words: str
) -> None:
    mounted(machine, rsize, kb)
    finding = one(nfs_mounts.read_ahead(machine))
    assert (finding.status, words in finding.found) == (status, True), finding


FSTAB = "# a comment\n\nserver:/export {} nfs {} 0 0\n/dev/vda / ext4 rw 0 0\nbroken\n"


def defined(machine: Machine, options: str) -> list[tuple[str, str]]:
    """Statuses and texts of the findings about one line of fstab."""
    write(machine.root, "etc/fstab", FSTAB.format("/mnt\\040a", options))
    findings = list(mount_definitions.requested(machine))
    assert {finding.name for finding in findings} == {"fstab /mnt a"}
    return [(finding.status, finding.found) for finding in findings]


@pytest.mark.parametrize(
    ("options", "proto", "status"),
    [
        ("rw,proto=rdma,port=20049", "rdma", "ok"),
        ("rw,rdma,port=20049", "rdma6", "ok"),
        ("rw,proto=rdma,port=20049", "tcp", "error"),
        ("rw,proto=rdma6,port=20049", "rdma", "error"),
        ("rw,proto=rdma,port=20049", "rdma6", "warning"),
        ("defaults", "rdma", "warning"),
        ("defaults", "tcp6", "ok"),
        ("proto=tcp6", "tcp6", "ok"),
        ("tcp", "tcp6", "ok"),
        ("udp", "tcp", "error"),
    ],
)
def test_fstab_is_compared_with_what_is_mounted(
    machine: Machine, options: str, proto: str, status: str
) -> None:
    info = MOUNTS.format("/mnt\\040a", 524288, proto).replace(",addr", ",port=20049,addr")
    write(machine.root, "proc/self/mountinfo", info)
    ((judged, _),) = defined(machine, options)
    assert judged == status


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("vers=3", "vers: 4.2"),
        ("vers=4.1", "vers: 4.2"),
        ("rsize=1048576", "rsize: requested 1048576, got 524288"),
        ("rsize=262144", "rsize: 524288; the definition changed"),
        ("wsize=600000", ""),
        ("wsize=525000", ""),
        ("rsize=512", ""),
        ("rsize=1M,wsize=99999999999", ""),
        ("port=20049", "port: 2049"),
        ("port=0,port=2049", ""),
        ("nconnect=3", "nconnect: 2 connections"),
        ("nconnect=2,nconnect=1", ""),
        ("sec=krb5p:krb5i", "sec: null"),
        ("sec=krb5:none", ""),
        ("v4,nfsvers=4.2", ""),
        ("vers=4,minorversion=1", "vers: 4.2"),
        ("bg,soft,x-systemd.mount-timeout=9,timeo=9,_netdev,nofail", ""),
    ],
)
def test_each_option_is_compared(machine: Machine, options: str, words: str) -> None:
    info = MOUNTS.format("/mnt\\040a", 524288, "tcp").replace(",addr", ",sec=null,nconnect=2,addr")
    write(machine.root, "proc/self/mountinfo", info)
    ((status, text),) = defined(machine, options)
    assert (status != "ok") == bool(words)
    assert words in text


def test_a_configured_transport_needs_no_line(machine: Machine) -> None:
    mounted(machine, 524288, 128, at="/mnt\\040a")
    conf = "[ NFSMount_Global_Options ]\n Defaultproto = rdma\n"
    write(machine.root, "etc/nfsmount.conf.d/rdma.conf", conf)
    assert [status for status, _ in defined(machine, "defaults")] == ["ok"]


STATE = "\nId={}\nLoadState={}\nActiveState={}\nSubState=x\nResult=success\nUnitFileState=\n\n"


@pytest.mark.parametrize(
    ("options", "unit", "load", "active", "status", "words"),
    [
        ("rw", "", "", "", "error", "local disk"),
        ("nofail", "", "", "", "error", "local disk"),
        ("noauto", "", "", "", "ok", "noauto"),
        ("rw", "mount", "loaded", "failed", "error", "is failed (x)"),
        ("nofail,_netdev", "mount", "loaded", "failed", "error", "is failed (x)"),
        ("noauto", "mount", "loaded", "failed", "warning", "is failed (x)"),
        ("rw", "mount", "loaded", "inactive", "error", "unmounted since"),
        ("nofail", "mount", "loaded", "inactive", "warning", "unmounted since"),
        ("bg", "mount", "loaded", "activating", "warning", "not mounted yet"),
        ("rw", "mount", "loaded", "active", "unknown", "does not see"),
        ("rw", "mount", "not-found", "inactive", "error", "is not-found"),
        ("noauto,x-systemd.automount", "automount", "loaded", "inactive", "error", "is inactive"),
        ("nofail,x-systemd.automount", "automount", "loaded", "failed", "error", "is failed"),
        ("comment=systemd.automount", "", "", "", "error", "no autofs mount"),
        ("x-systemd.automount", "automount", "loaded", "active", "unknown", "does not see"),
        ("x-systemd.automount", "automount", "not-found", "inactive", "error", "is not-found"),
    ],
)
def test_a_mount_that_is_not_there(
    machine: Machine, options: str, unit: str, load: str, active: str, status: str, words: str
) -> None:
    write(machine.root, "proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    properties = STATE.format(f"mnt-a\\x20b.{unit}", load, active)
    programs: dict[tuple[str, ...], Result | None] = {}
    if unit:
        programs["systemctl", "show", "mnt.mount"] = Result(("systemctl",), properties, "", 0)
    recording = Machine(machine.root, recording=Recording(programs=programs))
    write(machine.root, "etc/fstab", f"server:/x /mnt//a\\040b/ nfs {options} 0 0\n")
    write(machine.root, "sbin/mount.nfs", "")
    finding = one(mount_definitions.requested(recording))
    assert (finding.status, words in finding.found) == (status, True), finding


VERSION = Result(("mount.nfs", "-V"), "mount.nfs: (linux nfs-utils 2.6.4)\n", "", 0)


@pytest.mark.parametrize(
    ("version", "file", "complete", "status", "words"),
    [
        # wherever the program is: /nix/store, /usr/local/bin
        (VERSION, "", True, "ok", "nfs-utils 2.6.4"),
        (VERSION, "", False, "ok", "nfs-utils 2.6.4"),
        (None, "", True, "error", "not installed"),
        (None, "", False, "error", "not installed"),
        ("", "", True, "error", "not installed"),
        ("", "", False, "unknown", "/sbin/mount.nfs was not recorded"),
        ("", "usr/sbin/mount.nfs", False, "unknown", "no output of mount.nfs -V was recorded"),
    ],
)
def test_a_program_that_printed_its_version_is_installed(
    machine: Machine, version: Result | str | None, file: str, complete: bool, status: str,
    words: str,
) -> None:  # fmt: skip
    write(machine.root, "etc/fstab", "server:/x /srv nfs rw 0 0\n")
    if file:
        write(machine.root, file, "")
    recording = Recording(complete=complete, collected=complete)
    if not isinstance(version, str):
        recording.programs["mount.nfs", "-V"] = version
    host = Machine(machine.root, recording=recording)
    (finding,) = carry_out("mount.nfs", nfs_mounts.utils, host)
    assert (finding.status, words in finding.found) == (status, True), finding


def test_a_program_of_this_host_is_looked_up_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "nfsrdma-no-such-program"
    assert not Machine().has_program(name)
    write(tmp_path, name, "#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Machine().has_program(name)
    # of another host, PATH tells nothing
    assert not Machine(tmp_path / "root").has_program(name)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        # the same, in other words
        ("SERVER://export/", "rw", [("ok", "as requested")]),
        ("server:/export/../export/.", "rw", [("ok", "as requested")]),
        # another name of the server: mountinfo has that of the first mount
        ("alias:/export", "rw", [("ok", "as requested")]),
        ("unknown:/export", "rw", [("unknown", "whether unknown is the same server")]),
        ("unknown:/export", "vers=3", [("unknown", "whether"), ("warning", "vers: ")]),
        ("unknown:/old", "rw", [("warning", "source: server:/export; the definition changed")]),
        ("alias:/old", "rw", [("warning", "source: server:/export; the definition changed")]),
        ("server:/old", "rw", [("warning", "source: server:/export; the definition changed")]),
        ("other:/export", "rw", [("warning", "source: server:/export; the definition changed")]),
        ("other:/export", "noauto", [("ok", "not mounted: server:/export is mounted there")]),
    ],
)
def test_a_mount_of_another_source_is_none_of_the_definition(
    machine: Machine, source: str, options: str, expected: list[tuple[str, str]]
) -> None:
    mounted(machine, 524288, 128)
    write(machine.root, "etc/fstab", f"{source} /mnt nfs {options},rdma 0 0\n")
    write(machine.root, "etc/hosts", "10.9.1.1 server Alias\n10.9.1.2 other\n")
    recording = Machine(machine.root, recording=Recording())
    findings = list(mount_definitions.requested(recording))
    assert [
        (finding.status, words in finding.found)
        for finding, (_, words) in zip(findings, expected, strict=True)
    ] == [(status, True) for status, _ in expected], findings


TCP_BELOW = {("rdma", "tcp"), ("rdma6", "tcp6")}


@pytest.mark.parametrize(
    ("above", "proto", "fstab", "names"),
    [
        ("rdma", "tcp", "", ["referral /mnt/ref"]),
        ("rdma6", "tcp6", "", ["referral /mnt/ref"]),
        ("rdma", "rdma", "", []),
        ("tcp", "tcp", "", []),
        ("rdma", "tcp", "server:/x /mnt/ref nfs proto=tcp 0 0\n", []),
    ],
)
def test_a_referral_may_have_another_transport(
    machine: Machine, above: str, proto: str, fstab: str, names: list[str]
) -> None:
    mounted(machine, 524288, 128, above)
    with (machine.root / "proc/self/mountinfo").open("a") as file:
        file.write(
            f"45 44 0:70 / /mnt/ref rw - nfs4 other:/ref rw,vers=4.2,proto={proto},addr=10.9.1.9\n"
        )
    write(machine.root, "etc/fstab", fstab)
    findings = list(mount_definitions.referrals(machine))
    assert [finding.name for finding in findings] == names
    assert all(
        finding.status == "warning" and "let 10.9.1.9 listen" in finding.remedy
        for finding in findings
    )
    (machine.root / "etc/fstab").unlink()
    pasted = Machine(machine.root, recording=Recording(complete=False))
    unknown = carry_out("referrals", mount_definitions.referrals, pasted)
    assert [finding.status for finding in unknown] == ["unknown"] * ((above, proto) in TCP_BELOW)


def test_a_covered_mount_is_mounted(machine: Machine) -> None:
    mounted(machine, 524288, 128)
    with (machine.root / "proc/self/mountinfo").open("a") as file:
        file.write("45 44 0:70 / /mnt rw - overlay overlay rw,lowerdir=/mnt\n")
    write(machine.root, "etc/fstab", "server:/export /mnt nfs rdma 0 0\n")
    findings = list(mount_definitions.requested(machine))
    assert [finding.status for finding in findings] == ["ok", "warning"]
    assert findings[1].found.startswith("covered by overlay of overlay")


@pytest.mark.parametrize(
    ("options", "program", "cause"),
    [
        ("rw", "", "mount.nfs is not installed"),
        ("proto=rdma", "sbin/mount.nfs", "no RDMA port is active"),
        ("proto=rdma", "usr/sbin/mount.nfs", "no RDMA port is active"),
        ("rw", "sbin/mount.nfs", ""),
    ],
)
def test_a_mount_that_cannot_be_there_follows_from_its_cause(
    machine: Machine, options: str, program: str, cause: str
) -> None:
    write(machine.root, "proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    write(machine.root, "etc/fstab", f"server:/x /mnt nfs {options} 0 0\n")
    if program:
        write(machine.root, program, "")
    recording = Machine(machine.root, recording=Recording(links=[]))
    finding = one(mount_definitions.requested(recording))
    assert finding.status == ("unknown" if cause else "error")
    assert cause in finding.found


def test_hostile_definitions_hide_no_other(machine: Machine) -> None:
    write(machine.root, "proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    write(machine.root, "etc/fstab", "server:/x none nfs rw 0 0\nserver:/x ../y nfs rw 0 0\n")
    unit = "[Mount]\nWhat=server:/{0}\nWhere={0}\nType=nfs\n"
    for name, where in (("**", "/a"), ("[", "b"), ("c", "/c")):
        write(machine.root, f"etc/systemd/system/{name}.mount", unit.format(where))
    write(machine.root, "sbin/mount.nfs", "")
    (machine.root / "etc/systemd/system/x.target.wants").mkdir()
    (machine.root / "etc/systemd/system/x.target.wants/c.mount").symlink_to("../c.mount")
    write(machine.root, "etc/systemd/system/d.mount/file", "a folder")
    statuses = {finding.name: finding.status for finding in mount_definitions.requested(machine)}
    assert statuses == {"unit **.mount": "ok", "unit c.mount": "error"}


def test_a_mount_without_a_definition_is_not_compared(machine: Machine) -> None:
    mounted(machine, 524288, 128)
    assert list(mount_definitions.requested(machine)) == []


def test_a_mount_that_only_another_namespace_has_is_named(machine: Machine) -> None:
    mounted(machine, 524288, 128, at="/mnt\\040a")
    write(
        machine.root,
        "proc/fs/nfsfs/volumes",
        "NV SERVER   PORT DEV          FSID                              FSC\n"
        "v4 0a090101 4e51 0:45         0:0                               no\n"
        "v4 0a090101 4e51 0:77         0:0                               no\n"
        "v4 0a090102 4e51 0:78         0:0                               no\nbroken\n",
    )
    ((status, text),) = defined(machine, "proto=rdma,nconnect=4")
    assert status == "warning"
    assert "another mount namespace has mounts of that server: 0:77" in text


BY_NFSRAHEAD = 'PROGRAM="/usr/libexec/nfsrahead %k", ATTR{read_ahead_kb}="%c"'
VOLUMES = 'PROGRAM="/usr/bin/awk \'$$4 == \\"%k\\" {ok=1} END{exit !ok}\' /proc/fs/nfsfs/volumes"'
FIXED = 'ATTR{read_ahead_kb}="4096"'
ADD = 'SUBSYSTEM=="bdi", ACTION=="add"'
STOCK, OWN, LATER = (
    "usr/lib/udev/rules.d/99-nfs.rules",
    "etc/udev/rules.d/99-nfs.rules",
    "etc/udev/rules.d/99-z.rules",
)


def udev(machine: Machine) -> tuple[str, list[str]]:
    """What is in effect for NFS, and the rules for more than NFS."""
    effect, *others = nfs_mounts.udev_rule(machine)
    assert effect.status == "ok"
    assert {finding.status for finding in others} <= {"warning"}
    return effect.found, [finding.found for finding in others]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "none: each mount gets the kernel's 128 KiB"),
        ({STOCK: f"{ADD}, {BY_NFSRAHEAD}\n"}, f"/{STOCK}:1 sets"),
        ({STOCK: f"{ADD}, {BY_NFSRAHEAD}\n"}, "has no value, the default is 128 KiB"),
        ({OWN: f"{ADD}, {VOLUMES}, {FIXED}", STOCK: f"{ADD}, {BY_NFSRAHEAD}"}, f"masks /{STOCK}"),
        ({OWN: f"{ADD}, {VOLUMES}, {FIXED}", STOCK: f"{ADD}, {BY_NFSRAHEAD}"}, "mounts: 4096 KiB"),
        ({OWN: "", STOCK: f"{ADD}, {BY_NFSRAHEAD}\n"}, f"none: .*; /{OWN} disables /{STOCK}"),
        ({LATER: f"{ADD}, {VOLUMES}, {FIXED}", STOCK: f"{ADD}, {BY_NFSRAHEAD}"}, f"^/{LATER}:1 "),
        ({LATER: f"{ADD}, {VOLUMES}, {FIXED}", STOCK: f"{ADD}, {BY_NFSRAHEAD}"},
         f"overwrites /{STOCK}:1$"),
        # programs of RUN come behind all rules
        ({STOCK: f"{ADD}, {VOLUMES}, RUN+=\"/bin/sh -c 'echo 64 > /sys$devpath/read_ahead_kb'\"",
          LATER: f"{ADD}, {VOLUMES}, {FIXED}"}, f"^/{STOCK}:1 sets .* 64 KiB"),
        ({OWN: f"# {ADD}\\\n{ADD}, \\\n# no end\n  {VOLUMES}, \\\n  {FIXED}\n"}, f"/{OWN}:5 sets"),
        ({OWN: f"{ADD}, {VOLUMES}, {FIXED} junk\n"}, "^none"),
        ({OWN: f'{ADD}, {VOLUMES}, {FIXED}, UNKNOWN="x"'}, "^none"),
        ({OWN: f'SUBSYSTEM=="block", {VOLUMES}, {FIXED}'}, "^none"),
        ({OWN: f'SUBSYSTEM=="bdi", ACTION=="remove", {VOLUMES}, {FIXED}'}, "^none"),
        ({OWN: f'SUBSYSTEM=="bdi", KERNEL=="8:*|lustre-*", {FIXED}'}, "^none"),
        ({OWN: f'SUBSYSTEM=="bdi", KERNEL!="0:*", {FIXED}'}, "^none"),
        ({OWN: f'SUBSYSTEM=="bdi", ATTR{{size}}!="1", {FIXED}'}, "^none"),
        ({OWN: f'SUBSYSTEM!="bdi", GOTO="end"\n{VOLUMES}, {FIXED}\nLABEL="end"\n'}, ":2 sets"),
        ({OWN: f'SUBSYSTEM=="bdi", GOTO="end"\n{VOLUMES}, {FIXED}\nLABEL="end"\n'}, "^none"),
        ({OWN: f'SUBSYSTEM=="bdi", GOTO="no"\n{VOLUMES}, {FIXED}\nLABEL="end"\n'}, ":2 sets"),
        ({OWN: f'{ADD}, PROGRAM="/opt/window %k", ATTR{{read_ahead_kb}}="%c"'},
         "may set .* what its program prints"),
        ({OWN: f'{ADD}, ENV{{X}}="1"\n{ADD}, ENV{{X}}=="1", {VOLUMES}, {FIXED}'}, ":2 sets"),
        ({OWN: f'{ADD}, ENV{{X}}=="1", {VOLUMES}, {FIXED}'}, ":1 may set"),
    ],
)  # fmt: skip
def test_the_rule_in_effect_is_the_one_that_udev_uses(
    machine: Machine, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        write(machine.root, name, text)
    effect, wide = udev(machine)
    assert re.search(words, effect), effect
    assert wide == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (f"{ADD}, {FIXED}", "4096 KiB for every bdi: NFS, disks"),
        (FIXED, "4096 KiB for every bdi"),
        (f'SUBSYSTEM=="bdi", KERNEL=="0:*", {FIXED}', "other devices than NFS: NFS, other file"),
        (f'SUBSYSTEM=="bdi", ENV{{X}}!="1", TEST=="/x", {FIXED}', ""),
        (f"{ADD},\n{VOLUMES},\n{FIXED}", "no backslash at its end"),
        (f'SUBSYSTEM=="bdi", TEST=="/x", GOTO="e"\n{FIXED}\nLABEL="e"', ""),
        (f'SUBSYSTEM=="bdi", TEST=="/x", GOTO="e"\nLABEL="e"\n{FIXED}', "every bdi"),
    ],
)
def test_a_rule_for_more_than_nfs_is_named(machine: Machine, rule: str, words: str) -> None:
    write(machine.root, OWN, rule)
    mounted(machine, 524288, 4096)
    write(machine.root, "sys/class/bdi/8:16/read_ahead_kb", "4096\n")
    write(machine.root, "sys/class/bdi/8:32/read_ahead_kb", "128\n")
    _, wide = udev(machine)
    assert len(wide) == bool(words)
    assert all(words in text and "; here 8:16" in text for text in wide)


def test_a_line_that_is_too_long_is_no_rule(machine: Machine) -> None:
    long = f"{ADD}, \\\n" + '    ENV{X}="1", \\\n' * 2000 + f"  {VOLUMES}, {FIXED}\n"
    write(machine.root, OWN, long)
    assert udev(machine)[0].startswith("none")


def test_rules_of_a_folder_that_nobody_recorded_are_unknown(machine: Machine) -> None:
    pasted = Machine(machine.root, recording=Recording(complete=False))
    (finding,) = carry_out("udev rule", nfs_mounts.udev_rule, pasted)
    assert (finding.status, finding.found) == ("unknown", "/usr/lib/udev/rules.d was not recorded")
    write(machine.root, OWN, f"{ADD}, {VOLUMES}, {FIXED}")
    first, second = nfs_mounts.udev_rule(pasted)
    assert (first.status, second.status) == ("ok", "unknown")
    assert "/usr/lib/udev/rules.d was not recorded" in second.found


@pytest.mark.parametrize(
    ("kb", "status", "words"),
    [
        (64, "ok", f"set by /{OWN}:1"),
        (128, "warning", f"/{OWN}:1 has 67 KiB: the mount is older"),
        (512, "ok", "1 blocks"),
    ],
)
def test_a_window_that_a_rule_sets_is_no_doubt(
    machine: Machine, kb: int, status: str, words: str
) -> None:
    rule = f"{ADD}, {VOLUMES}, {FIXED}".replace("4096", "67")
    write(machine.root, OWN, rule)
    mounted(machine, 524288, kb)
    finding = one(nfs_mounts.read_ahead(machine))
    assert (finding.status, words in finding.found) == (status, True), finding


def test_mounts_with_equal_windows_have_one_finding(machine: Machine) -> None:
    rows = [MOUNTS.format(f"/mnt/{n}", 524288, "tcp").replace("0:45", f"0:{n}") for n in range(3)]
    write(machine.root, "proc/self/mountinfo", "".join(rows) + rows[0].replace("/mnt/0", "/bind"))
    for n, kb in enumerate((1024, 1024, 128)):
        write(machine.root, f"sys/class/bdi/0:{n}/read_ahead_kb", f"{kb}\n")
    texts = {x.name: x.found for x in nfs_mounts.read_ahead(machine)}
    assert list(texts) == ["read-ahead /mnt/0", "read-ahead /mnt/2"]
    assert texts["read-ahead /mnt/0"].endswith("; the same for 2 other mounts")


RECORD = (
    "device server:/export mounted on {} with fstype nfs4 statvers=1.1\n\tage:\t{}\n"
    "\txprt:\t{}\n\tper-op statistics\n\tREAD: {} 0 0 0 0 0 0\n"
)


@pytest.mark.parametrize(
    ("age", "connects", "took", "words"),
    [
        (300, 1, 0, ""),
        (300, 4, 0, ""),
        (299, 4, 0, "connected 4 times"),
        (299, 4, 0, "mounted 4 min 59 s ago"),
        (90000, 303, 0, ""),
        (90000, 304, 0, "mounted 1 d 1 h ago: connected 304 times"),
        (300, 1, 60, "took 60 s"),
        (300, 1, 59, ""),
        # not seconds: jiffies that have wrapped
        (300, 1, 4294667, ""),
        (90000, 1, 899, ""),
        (90000, 1, 900, "took 900 s"),
    ],
)
def test_reconnects_are_compared_with_the_idle_timer(
    machine: Machine, age: int, connects: int, took: int, words: str
) -> None:
    mounted(machine, 524288, 128)
    xprt = f"rdma 0 0 {connects} {took} 0 50 50 0 50 0"
    write(machine.root, "proc/self/mountstats", RECORD.format("/mnt", age, xprt, "40 40 0"))
    texts = [finding.found for finding in nfs_mounts.history(machine)]
    assert len(texts) == bool(words)
    assert all(words in text for text in texts), texts


@pytest.mark.parametrize(
    ("sends", "bad", "waiting", "operations", "words"),
    [
        (10000, 0, 0, "10000 10000 0", []),
        (10000, 9, 9999, "10000 10009 9", []),
        (10000, 10, 0, "10000 10000 0", ["10 of 10000 replies"]),
        (10000, 0, 10000, "10000 10000 0", ["1.0 requests waited"]),
        (999, 0, 9999, "999 999 0", []),
        (10000, 0, 0, "10000 10010 0", ["10 retransmissions in 10000 operations (0.1 %)"]),
        (10000, 0, 0, "10000 10000 10", ["0 retransmissions", "10 timeouts"]),
        # one burst, and one per hour
        (900000, 0, 0, "900000 900138 0", []),
        (900000, 0, 0, "900000 900139 0", ["139 retransmissions"]),
    ],
)
def test_counters_are_reported_when_they_are_noticeable(
    machine: Machine, sends: int, bad: int, waiting: int, operations: str, words: list[str]
) -> None:
    mounted(machine, 524288, 128)
    xprt = f"tcp 0 1 1 0 0 {sends} {sends} {bad} 0 {waiting} 2 0 0"
    write(machine.root, "proc/self/mountstats", RECORD.format("/mnt", 36000, xprt, operations))
    findings = list(nfs_mounts.history(machine))
    assert {(finding.name, finding.status) for finding in findings} <= {("history /mnt", "warning")}
    assert len(findings) == bool(words)
    assert all(word in findings[0].found for word in words), findings


def test_a_host_without_mounts_has_no_history(machine: Machine) -> None:
    write(machine.root, "proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert list(nfs_mounts.history(machine)) == []


# ---- tools


@pytest.mark.parametrize(
    ("status", "stderr", "verdict", "words"),
    [
        (0, "", "ok", "0.31.0"),
        (1, "AttributeError: module 'bcc' has no attribute 'BPF'", "warning", "bcc has no BPF"),
        (1, "ModuleNotFoundError: No module named 'bcc'", "warning", "has no module bcc"),
        (1, "ModuleNotFoundError: No module named 'x'", "warning", "No module named 'x'"),
    ],
)
def test_bcc_is_judged(status: int, stderr: str, verdict: str, words: str) -> None:
    finding = probe_requirements.judge_bcc(status, "0.31.0\n", stderr)
    assert (finding.status, words in finding.found) == (verdict, True), finding


@pytest.mark.parametrize(
    ("capabilities", "root", "container", "status", "words"),
    [
        ("000001ffffffffff", True, False, "ok", "exempt"),
        # what Docker leaves to root
        ("00000000a80425fb", True, True, "warning", "the container's settings"),
        ("0000000000000000", False, False, "warning", "/etc/security/limits.d"),
        ("0000000000004000", False, False, "ok", "exempt"),
        (None, True, False, "ok", "exempt"),
        (None, False, False, "warning", "/etc/security/limits.d"),
    ],
)
def test_a_capability_exempts_from_the_limit_of_locked_memory(
    machine: Machine, capabilities: str | None, root: bool, container: bool, status: str, words: str
) -> None:
    write(machine.root, "proc/self/limits", "Max locked memory  8388608  8388608  bytes\n")
    if capabilities:
        write(machine.root, "proc/self/status", f"Name:\tx\nCapEff:\t{capabilities}\nx\n")
    if container:
        write(machine.root, ".dockerenv", "")
    host = replace(machine, recording=Recording(root_user=root))
    finding = one(probe_requirements.memlock(host))
    assert (finding.status, words in finding.found + finding.remedy) == (status, True)


# ---- all of them


def test_a_long_name_leaves_the_other_texts_in_sight(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._show([Finding("fstab /" + "x" * 4096, "ok", "long"), Finding("links", "ok", "short")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("xx  long")
    assert lines[1].startswith("+ ok       links ") and lines[1].endswith(" short")
    assert len(lines[1]) < 80


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "needs root"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (UserError("two\nlines", "a hint"), "lines"),
        (ValueError("no number"), "ValueError: no number"),
    ],
)
def test_a_check_that_fails_is_unknown(machine: Machine, error: Exception, words: str) -> None:
    def failing(_: Machine) -> Iterator[Finding]:
        yield Finding("first", "ok", "seen before the failure")
        raise error

    first, second = carry_out("name", failing, machine)
    assert first.status == "ok"
    assert (second.name, second.status) == ("name", "unknown")
    assert words in second.found


def test_a_file_that_cannot_be_read_has_its_name_on_that_host(machine: Machine) -> None:
    (machine.root / "etc").mkdir(exist_ok=True)
    (machine.root / "etc/fstab").symlink_to("fstab")
    (finding,) = carry_out("fstab", mount_definitions.requested, machine)
    expected = "cannot read /etc/fstab: Too many levels of symbolic links"
    assert (finding.status, finding.found) == ("unknown", expected)


@pytest.mark.parametrize("release", ["9" * 3000, "x y z\n" * 3000], ids=["digits", "lines"])
def test_a_long_release_is_none_of_a_kernel(machine: Machine, release: str) -> None:
    write(machine.root, "proc/sys/kernel/osrelease", release)
    findings = {finding.name: finding for finding in examine(machine)}
    for name in ("kernel", "headers"):
        assert findings[name].status == "unknown"
        assert "is no release of a kernel" in findings[name].found
        assert len(findings[name].found) < 200


def test_each_check_has_a_name_and_a_place_of_its_own() -> None:
    assert len({each.name for each in LISTED}) == len(LISTED) == len(CHECKS) + len(AFTER_REBOOT)
    assert len({(each.after_reboot, each.place) for each in LISTED}) == len(LISTED)


def test_an_empty_tree_crashes_no_check(tmp_path: Path) -> None:
    findings = examine(Machine(root=tmp_path))
    assert len(findings) >= len(CHECKS) - 7
    assert all(each.remedy for each in findings if each.status in ("warning", "error"))


def test_garbage_in_every_file_crashes_no_check(machine: Machine) -> None:
    for name in ("proc/modules", "proc/fs/nfsd/portlist", "proc/self/mountinfo", "etc/fstab"):
        write(machine.root, name, b"\xff\x00 %s $(reboot)\n\x1b[2J 1 2\n")
    write(machine.root, "proc/config.gz", gzip.compress(b"cut off")[:-4])
    findings = {each.name: each for each in examine(machine)}
    for name in ("kernel", "netid rdma", "portlist", "read-ahead"):
        assert findings[name].status == "unknown", findings[name]


def test_the_report_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._show(
        [
            Finding("kernel", "ok", "has it"),
            Finding("mtu \x1b[2J", "warning", "1500", "4200", "make it larger"),
        ]
    )
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "+ ok       kernel    has it"
    assert "remedy: make it larger" in output and "\x1b" not in output
    assert output.splitlines()[-1] == "1 ok, 1 warning, 0 error, 0 unknown"


def test_findings_are_plain_data() -> None:
    assert json.loads(json.dumps(Finding("a", "ok", "b")._asdict()))["status"] == "ok"


BUILT = ModuleFile("nfsrdma", "/x.ko", srcversion="NEW",
                   parameters=("credits:Calls, 2 to 1024 (default 128) (uint)",))  # fmt: skip


@pytest.mark.parametrize(
    ("built", "running", "values", "status", "words"),
    [
        (None, None, {}, "ok", "not loaded, not built for this kernel"),
        (BUILT, None, {}, "ok", "not loaded, built for this kernel"),
        (None, "OLD", {}, "ok", "loaded, srcversion OLD; not built here"),
        (BUILT, "OLD", {}, "warning", "loaded with srcversion OLD, this source has NEW"),
        (BUILT, "NEW", {"credits": "128"}, "ok", "changed parameters: none"),
        (BUILT, "NEW", {"credits": "64"}, "ok", "changed parameters: credits=64"),
    ],
)
def test_our_module_is_judged_against_its_source(
    built: ModuleFile | None, running: str | None, values: dict[str, str], status: str, words: str
) -> None:
    finding = kernel.judge_our_module(built, running, values)
    assert (finding.status, words in finding.found) == (status, True), finding
    assert finding.remedy or status == "ok"


@pytest.mark.parametrize("built", [False, True])
def test_an_installed_module_without_a_build_for_the_kernel_is_reported(
    machine: Machine, built: bool
) -> None:
    write(machine.root, "proc/modules", "")
    write(machine.root, "etc/modprobe.d/nfsrdma.conf", "alias rpcrdma nfsrdma\n")
    argv = ("modinfo", "-0", "--", "nfsrdma")
    modinfo = Result(
        argv, "filename:   /lib/nfsrdma.ko\0name=nfsrdma\0" * built, "", int(not built)
    )
    host = replace(machine, recording=Recording(programs={argv: modinfo}))
    finding = one(kernel.our_module(host))
    if built:
        assert finding.status == "ok"
    else:
        assert finding.status == "warning"
        assert "mounts and nfsd use rpcrdma" in finding.found
        assert f"dkms autoinstall -k {RELEASE}" in finding.remedy
        # no headers help there
        write(machine.root, "proc/sys/kernel/osrelease", "5.10.0-46-amd64\n")
        finding = one(kernel.our_module(host))
        assert (finding.status, "dkms" in finding.remedy) == ("warning", False)
        assert BUILDS_FOR in finding.remedy


def test_an_unsigned_build_is_a_doubt_where_the_kernel_wants_signatures() -> None:
    finding = kernel.judge_our_module(BUILT, None, {}, "lockdown is integrity")
    assert (finding.status, "lockdown is integrity" in finding.found) == ("warning", True)
    signed = BUILT._replace(signer="MOK")
    assert kernel.judge_our_module(signed, None, {}, "lockdown is integrity").status == "ok"


def test_the_netid_may_be_ours(machine: Machine) -> None:
    text = "sunrpc 1 1 nfsrdma, Live 0x0\nrdma_cm 1 1 nfsrdma, Live 0x0\nnfsrdma 1 0 - Live 0x0\n"
    write(machine.root, "proc/modules", text)
    (finding,) = kernel.netid(machine)
    assert (finding.status, finding.found) == ("ok", "owned by nfsrdma")
