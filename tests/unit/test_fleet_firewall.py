# SPDX-License-Identifier: Apache-2.0
"""Ports let in through nftables and firewalld, by stand-ins that keep rules and ports."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

from ansible_modules import program, run_module

NAME = "nfsrdma_firewall"
NFT = """\
import json, pathlib, re, sys
file = pathlib.Path({root!r}, "ruleset.json")
parts = json.loads(file.read_text())
words = sys.argv[1:]
if words == ["-j", "list", "ruleset"]:
    print(json.dumps({{"nftables": parts}}))
elif words[:2] == ["delete", "rule"]:
    parts = [p for p in parts if str(p.get("rule", {{}}).get("handle")) != words[-1]]
else:
    shape = r'insert rule (\\S+) (\\S+) (\\S+) (tcp|udp) dport {{ ([0-9, ]+) }} accept '
    shape += r'comment "(.*)"'
    for line in pathlib.Path(words[-1]).read_text().splitlines():
        family, table, chain, *_, comment = re.fullmatch(shape, line).groups()
        parts.append({{"rule": {{"family": family, "table": table, "chain": chain, "expr": [],
                                "handle": 100 + len(parts), "comment": comment}}}})
file.write_text(json.dumps(parts))
"""
FIREWALLD = """\
import json, pathlib, sys
file = pathlib.Path({root!r}, "ports.json")
ports, words = json.loads(file.read_text()), sys.argv[1:]
mine = ports["kept" if "--permanent" in words else "live"]
if "--list-ports" in words:
    print(*mine)
for word in words:
    verb, _, port = word.partition("=")
    if verb == "--add-port" and port not in mine:
        mine.append(port)
    if verb == "--remove-port":
        mine.remove(port)
file.write_text(json.dumps(ports))
"""


def chain(name: str = "input", policy: str = "drop", **more: str) -> dict[str, Any]:
    known = {"family": "inet", "table": "filter", "hook": "input", "type": "filter"}
    return {"chain": {**known, "name": name, "policy": policy, **more}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bin", "etc", "units", "nf_tables"):
        (tmp_path / name).mkdir()
    # starting the unit is having nft read the file
    start = f"test $1 != restart || nft -f {tmp_path}/etc/firewall.nft"
    program(tmp_path, "systemctl", f"#!/bin/sh\n{start}\n")
    return tmp_path


def nftables(root: Path, *parts: dict[str, Any]) -> None:
    program(root, "nft", NFT.format(root=str(root)))
    (root / "ruleset.json").write_text(json.dumps(parts))


def rules(root: Path) -> list[str]:
    parts = json.loads((root / "ruleset.json").read_text())
    return [part["rule"]["comment"] for part in parts if "rule" in part]


def test_nothing_is_done_where_nothing_is_filtered(root: Path) -> None:
    nftables(root, chain(policy="accept"), chain(hook="output"), chain(table="firewalld"))
    assert not run_module(root, NAME)["changed"]
    (root / "nf_tables").rmdir()
    (root / "ruleset.json").write_text("asking would load it")
    assert not run_module(root, NAME)["changed"]


def test_a_chain_that_drops_lets_ports_in_now_and_at_boot(root: Path) -> None:
    nftables(root, chain())
    checked = run_module(root, NAME, check=True)
    assert checked["changed"]
    assert rules(root) == []
    done = run_module(root, NAME)
    assert done["diff"] == checked["diff"]
    assert rules(root) == ["nfsrdma-fleet tcp 2049, 20049", "nfsrdma-fleet udp 4791"]
    kept = (root / "etc/firewall.nft").read_text()
    assert "insert rule inet filter input tcp dport { 2049, 20049 } accept" in kept
    assert "nft -f" in (root / "units/nfsrdma-firewall.service").read_text()
    assert not run_module(root, NAME)["changed"]


def test_other_ports_take_the_place_of_ours_alone(root: Path) -> None:
    theirs = {"rule": {**chain()["chain"], "chain": "input", "comment": "theirs", "handle": 1,
                       "expr": [{"accept": None}]}}  # fmt: skip
    nftables(root, chain(), theirs)
    run_module(root, NAME)
    assert run_module(root, NAME, ports=["2049/tcp"])["changed"]
    assert rules(root) == ["theirs", "nfsrdma-fleet tcp 2049"]
    assert run_module(root, NAME, state="absent")["changed"]
    assert rules(root) == ["theirs"]
    assert not (root / "etc/firewall.nft").exists()
    assert list((root / "units").iterdir()) == []
    assert not run_module(root, NAME, state="absent")["changed"]


def test_a_rule_lost_in_a_flush_comes_back(root: Path) -> None:
    nftables(root, chain())
    run_module(root, NAME)
    nftables(root, chain())
    assert run_module(root, NAME, check=True)["pending"]
    run_module(root, NAME)
    assert len(rules(root)) == 2


def test_what_iptables_made_is_named_and_left_alone(root: Path) -> None:
    nftables(root, chain("INPUT", family="ip"))
    done = run_module(root, NAME)
    assert (done["changed"], done["left_alone"]) == (False, ["ip filter INPUT is iptables'"])


@pytest.mark.parametrize("expr", [{"drop": None}, {"reject": None}, {"jump": {"target": "x"}}])
def test_a_chain_that_accepts_by_policy_may_still_drop(root: Path, expr: dict[str, Any]) -> None:
    rule = {"family": "inet", "table": "filter", "chain": "input", "handle": 7, "expr": [expr]}
    nftables(root, chain(policy="accept"), {"rule": rule})
    assert run_module(root, NAME)["changed"]


def firewalld(root: Path, live: list[str], kept: list[str]) -> None:
    program(root, "firewall-cmd", FIREWALLD.format(root=str(root)))
    (root / "ports.json").write_text(json.dumps({"live": live, "kept": kept}))


def ports(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((root / "ports.json").read_text())
    return found


def test_firewalld_opens_ports_and_closes_only_those(root: Path) -> None:
    (root / "nf_tables").rmdir()
    firewalld(root, ["2049/tcp", "22/tcp"], ["2049/tcp", "22/tcp"])
    assert run_module(root, NAME, check=True)["changed"]
    assert ports(root)["live"] == ["2049/tcp", "22/tcp"]
    assert run_module(root, NAME)["changed"]
    wanted = ["2049/tcp", "22/tcp", "4791/udp", "20049/tcp"]
    assert ports(root) == {"live": wanted, "kept": wanted}
    assert not run_module(root, NAME)["changed"]
    run_module(root, NAME, ports=["4791/udp"])
    assert ports(root)["kept"] == ["2049/tcp", "22/tcp", "4791/udp"]
    assert run_module(root, NAME, state="absent")["changed"]
    assert ports(root) == {"live": ["2049/tcp", "22/tcp"], "kept": ["2049/tcp", "22/tcp"]}
    assert not (root / "records").exists()
    assert not run_module(root, NAME, state="absent")["changed"]


@pytest.mark.parametrize("port", ["0/tcp", "65536/tcp", "2049", "2049/sctp", "1/tcp\n", "$(x)/tcp"])
def test_what_is_no_port_is_refused(root: Path, port: str) -> None:
    assert "is not a port" in run_module(root, NAME, ports=[port])["msg"]
