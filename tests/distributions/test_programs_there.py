# SPDX-License-Identifier: Apache-2.0
"""The programs of other projects, in the versions of Debian 11 to unstable, under our parsers.

This checkout runs in each root by this machine's Python; the programs are the release's.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from distribution_tables import distributions, programs
from distributions.conftest import MakeRoot
from distributions.roots import Root

from nfsrdma_tools.command import run
from nfsrdma_tools.host.nfs import mounting

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.parametrize("root", ["11", "12", "13", "sid"], indirect=True),
]

STABLE = [row for row in distributions() if row.name.startswith("Debian ")]
# mount.nfs of Debian's package 1.3.4 prints this
PRINTED = {"1.3.4": "1.3.3"}


def answers(root: Root, code: str, setup: str = "true") -> Any:
    """What a script of Python prints as JSON, in a network namespace of its own.

    ``setup`` is a script of sh(1) before it, by the release's own programs.
    """
    python = f"import json\n{code}"
    (root.folder / "root/code.py").write_text(python)
    script = f"{setup}\nexec /usr/local/bin/python-of-the-host -B /root/code.py"
    done = root.run("unshare", "--net", "sh", "-e", "-c", script)
    return json.loads(done.stdout)


def test_versions_are_those_of_the_page(root: Root) -> None:
    number = root.release.name.rpartition(" ")[2]
    expected = {p.package: p.versions.get(number) for p in programs()}
    versions = {package: root.version(package) for package in expected}
    assert all(versions.values())
    if number in ("11", "12", "13"):
        assert versions == expected
        (row,) = [row for row in STABLE if row.name == root.release.name]
        assert root.run("python3", "--version").stdout.startswith(f"Python {row.python}.")


def test_the_version_of_nfs_utils_is_read(root: Root) -> None:
    outcome = answers(root, VERSION)
    version = root.version("nfs-common")
    assert outcome == ["ok", f"nfs-utils {PRINTED.get(version, version)}"]


VERSION = """
from nfsrdma_tools.doctor.checks import nfs_mounts
from nfsrdma_tools.host.machine import LIVE

(finding,) = nfs_mounts.utils(LIVE)
print(json.dumps([finding.status, finding.found]))
"""


def test_doctor_says_the_same_as_among_other_versions(root: Root, made: MakeRoot) -> None:
    def rows(there: Root) -> list[dict[str, str]]:
        done = there.ours("-m", "nfsrdma_tools", "doctor", "--json", check=False)
        findings = json.loads(done.stdout)["findings"]
        return [row for row in findings if row["name"] != "mount.nfs"]

    assert rows(root) == rows(made("13"))


NETWORK = """
ip link set lo up
ip link add v0 type veth peer name v1
ip link add b0 type bridge
ip link set v0 master b0
ip link set v1 mtu 4200 up
ip link set v0 up
ip link set b0 up
ip address add 10.9.1.1/24 dev b0
ip address add fd00:9::1/64 dev b0 nodad
ip route add 10.9.2.0/24 via 10.9.1.7
ip route add blackhole 10.9.3.0/24
ip route add unreachable 10.9.4.0/24
ip -6 route add fd00:8::/64 via fd00:9::7
"""
ROUTES = """
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE
from nfsrdma_tools.host.rdma_routes import _ADDRESSES, _LINKS, _ROUTES, _link_row, _objects
from nfsrdma_tools.host.rdma_routes import parse_routes, route_to

found = {}
for address in ("10.9.1.1", "10.9.1.2", "10.9.2.2", "10.9.3.2", "10.9.4.2", "11.0.0.1", "fd00:8::2",
                "fd00:9::1", "127.0.0.1"):
    try:
        found[address] = list(route_to(LIVE, address))
    except UserError as error:
        found[address] = [type(error).__name__]
links = _objects(LIVE.run(*_LINKS).stdout)
addresses = _objects(LIVE.run(*_ADDRESSES).stdout)
print(json.dumps({
    "routes": found,
    "links": {row["ifname"]: [row["mtu"], row.get("master", ""),
                              row.get("linkinfo", {}).get("info_kind", "")] for row in links},
    "addresses": sorted(one["local"] for row in addresses for one in row["addr_info"]
                        if one["scope"] == "global"),
    "table": sorted([row.get("type") or "unicast", row["dst"], row.get("dev", "")]
                    for row in parse_routes(LIVE.run(*_ROUTES).stdout)
                    if row["dst"].startswith("10.9.") and row.get("type") != "broadcast"),
}))
"""


def test_routes_addresses_and_links_are_those_that_were_made(root: Root) -> None:
    facts = answers(root, ROUTES, NETWORK)
    routes = {address: route[:2] if len(route) > 1 else route[0]
              for address, route in facts["routes"].items()}  # fmt: skip
    assert facts["routes"]["10.9.2.2"] == ["10.9.2.2", "b0", "10.9.1.1", "10.9.1.7"]
    assert facts["routes"]["fd00:8::2"][1:] == ["b0", "fd00:9::1", "fd00:9::7"]
    assert {address: facts["routes"][address][1] for address in ("10.9.1.1", "10.9.1.2")} == {
        "10.9.1.1": "b0", "10.9.1.2": "b0",
    }  # fmt: skip
    assert [routes[a] for a in ("10.9.4.2", "11.0.0.1")] == ["NoRouteError"] * 2
    assert routes["127.0.0.1"] == ["127.0.0.1", "lo"]
    assert facts["links"] == {
        "lo": [65536, "", ""], "v0": [1500, "b0", "veth"], "v1": [4200, "", "veth"],
        "b0": [1500, "", "bridge"],
    }  # fmt: skip
    assert facts["addresses"] == ["10.9.1.1", "fd00:9::1"]
    assert facts["table"] == [
        ["blackhole", "10.9.3.0/24", ""], ["local", "10.9.1.1", "b0"],
        ["unicast", "10.9.1.0/24", "b0"], ["unicast", "10.9.2.0/24", "b0"],
        ["unreachable", "10.9.4.0/24", ""],
    ]  # fmt: skip


CONF = """[nfsd]
threads = 32
 rdma=y
rdma-port = 20050
vers4.2=n
[mountd]
port=20048
"""
READ_CONF = """
from nfsrdma_tools.host.machine import LIVE
from nfsrdma_tools.host.nfsd.configuration import NfsConf, requested

conf = NfsConf(LIVE)
found = {key: conf.get(key) for key in ("threads", "rdma", "rdma-port", "vers4.2", "tls")}
print(json.dumps([{key: each and each.value for key, each in found.items()},
                  requested(LIVE).rdma_port, LIVE.has_program("nfsconf")]))
"""


def test_nfs_conf_is_read_by_nfsconf_and_without_it(root: Root) -> None:
    (root.folder / "etc/nfs.conf").write_text(CONF)
    drop_in = root.folder / "etc/nfs.conf.d/90-ours.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text("[nfsd]\nthreads=64\n")
    values, port, by_nfsconf = answers(root, READ_CONF)
    # nfs-utils 1.3.4 of Debian 11 has neither nfsconf nor folders with parts of nfs.conf
    assert by_nfsconf == (root.release.suite != "bullseye")
    assert values == {
        "threads": "64", "rdma": "y", "rdma-port": "20050", "vers4.2": "n", "tls": None,
    }  # fmt: skip
    assert port == 20050


EXPORTS = """
from nfsrdma_tools import etab

wanted = [etab.Exported("/srv/a b", "10.9.1.0/24", ("rw", "no_root_squash")),
          etab.Exported("/srv/c", "fd00:9::/64", ("ro",)), etab.Exported("/srv/c", "*", ("ro",))]
etab.add(wanted)
there = etab.effective()
etab.remove(there)
print(json.dumps([[[each.path, each.client, each.options[0]] for each in there],
                  len(etab.effective())]))
"""


def test_exports_are_added_found_and_removed(root: Root) -> None:
    for name in ("a b", "c"):
        (root.folder / "srv" / name).mkdir(parents=True, exist_ok=True)
    there, left = answers(root, EXPORTS)
    assert sorted(there) == [
        ["/srv/a b", "10.9.1.0/24", "rw"], ["/srv/c", "*", "ro"], ["/srv/c", "fd00:9::/64", "ro"],
    ]  # fmt: skip
    assert left == 0


RULES = """
nft add table inet own
nft 'add chain inet own input { type filter hook input priority 0; policy drop; }'
nft add rule inet own input iif lo accept
nft add rule inet own input ct state established,related accept
nft 'add rule inet own input tcp dport { 22, 2049 } counter accept'
nft 'add rule inet own input ip saddr 10.9.1.0/24 tcp dport 20049 accept'
"""
JUDGE = """
from nfsrdma_tools.doctor.checks import firewall
from nfsrdma_tools.host.machine import LIVE

text = firewall._rules(LIVE, "nft", "list", "ruleset")
print(json.dumps([firewall.judge_filter(text)._asdict(), text]))
"""


def test_rules_of_nftables_have_the_same_finding(root: Root, made: MakeRoot) -> None:
    finding, text = answers(root, JUDGE, RULES)
    assert "dport 20049 accept" in text
    assert finding == answers(made("13"), JUDGE, RULES)[0]
    assert "udp 4791" in finding["found"], finding
    assert "tcp 2049" not in finding["found"], finding


NOTHING = """
from nfsrdma_tools.doctor.checks import rdma_links
from nfsrdma_tools.host.machine import LIVE
from nfsrdma_tools.host.module import install

print(json.dumps([rdma_links._verbs_ports(LIVE), rdma_links._pfc(LIVE, "lo"),
                  install.registered()]))
"""


def test_a_host_without_devices_and_modules_has_none(root: Root) -> None:
    assert answers(root, NOTHING) == [{}, "", []]


MODULE = """
from pathlib import Path
from nfsrdma_tools.host import kernel_modules, transports

found = kernel_modules.in_file(Path("/root/own.ko"))
print(json.dumps([found.name, found.vermagic, found.version, found.srcversion, found.intree,
                  list(found.aliases), list(found.depends), list(found.parameters),
                  transports.alias_target()]))
"""
SECTION = """
__attribute__((section(".modinfo"), used)) static const char text[] =
	"name=own\\0vermagic=6.1.0 SMP\\0version=0.1.0\\0srcversion=0123456789ABCDEF\\0"
	"alias=one\\0alias=two\\0depends=sunrpc,rdma_cm\\0parm=size:of a b\\nc:d (uint)\\0intree=Y";
"""


def test_modinfo_and_modprobe_are_read(root: Root, tmp_path: Path) -> None:
    (tmp_path / "own.c").write_text(SECTION)
    (root.folder / "etc/modprobe.d/own.conf").write_text("alias rpcrdma own\n")
    run("gcc", "-c", "-o", root.folder / "root/own.ko", tmp_path / "own.c")
    kernel = run("uname", "-r").stdout.strip()
    (root.folder / "lib/modules" / kernel).mkdir(parents=True, exist_ok=True)
    root.run("depmod")
    assert answers(root, MODULE) == [
        "own", "6.1.0 SMP", "0.1.0", "0123456789ABCDEF", True, ["one", "two"],
        ["sunrpc", "rdma_cm"], ["size:of a b\nc:d (uint)"], "own",
    ]  # fmt: skip


def test_mount_nfs_has_the_messages_that_mount_explains(root: Root) -> None:
    program = (root.folder / "sbin/mount.nfs").read_bytes().decode("latin-1")
    patterns = [pattern for pattern, _, _ in mounting._MESSAGES]
    messages = ("access denied by server", "reason given by server: No such file")
    assert set(messages) <= set(patterns)
    # the end of the second is of strerror(3)
    for pattern in (*messages, mounting._REJECTED, "protocol is not supported"):
        assert re.search(pattern.removesuffix("No such file"), program), pattern


def test_a_refused_mount_is_one_line_with_the_same_reason(root: Root, made: MakeRoot) -> None:
    words = ("-m", "nfsrdma_tools", "mount", "127.0.0.1:/x", "/mnt", "--transport", "tcp")

    def said(there: Root) -> list[str]:
        done = there.ours(*words, check=False)
        assert done.returncode == 1, done
        return re.sub(r"\s+", " ", done.stderr).strip().split(" (")

    assert said(root) == said(made("13"))
    assert len(said(root)) >= 1
