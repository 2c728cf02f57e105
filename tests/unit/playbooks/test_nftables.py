# SPDX-License-Identifier: Apache-2.0
"""Ports opened in nftables, with a stand-in for nft that keeps the rules."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

from unit.playbooks.ansible_modules import program, run_module

NAME = "nfsrdma_nftables"
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


def chain(name: str = "input", policy: str = "drop", **more: str) -> dict[str, Any]:
    known = {"family": "inet", "table": "filter", "hook": "input", "type": "filter"}
    return {"chain": {**known, "name": name, "policy": policy, **more}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bin", "etc", "units", "nf_tables"):
        (tmp_path / name).mkdir()
    # to start the unit is to have nft read the file
    start = f"test $1 != restart || nft -f {tmp_path}/etc/firewall.nft"
    program(tmp_path, "systemctl", f"#!/bin/sh\n{start}\n")
    return tmp_path


def nftables(root: Path, *parts: dict[str, Any]) -> None:
    program(root, "nft", NFT.format(root=str(root)))
    (root / "ruleset.json").write_text(json.dumps(parts))


def rules(root: Path) -> list[str]:
    parts = json.loads((root / "ruleset.json").read_text())
    return [part["rule"]["comment"] for part in parts if "rule" in part]


def test_nothing_changes_if_no_chain_drops(root: Path) -> None:
    nftables(root, chain(policy="accept"), chain(hook="output"), chain(table="firewalld"))
    assert not run_module(root, NAME)["changed"]
    (root / "nf_tables").rmdir()
    (root / "ruleset.json").write_text("nft would load the module")
    assert not run_module(root, NAME)["changed"]


def test_ports_are_opened_now_and_at_boot(root: Path) -> None:
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


def test_other_ports_replace_the_rules_of_the_module_only(root: Path) -> None:
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


def test_a_flushed_rule_is_inserted_again(root: Path) -> None:
    nftables(root, chain())
    run_module(root, NAME)
    nftables(root, chain())
    assert run_module(root, NAME, check=True)["pending"]
    run_module(root, NAME)
    assert len(rules(root)) == 2


def test_a_chain_of_iptables_is_reported_and_left_alone(root: Path) -> None:
    nftables(root, chain("INPUT", family="ip"))
    done = run_module(root, NAME)
    assert (done["changed"], done["left_alone"]) == (False, ["ip filter INPUT belongs to iptables"])


@pytest.mark.parametrize("expr", [{"drop": None}, {"reject": None}, {"jump": {"target": "x"}}])
def test_a_chain_with_policy_accept_may_drop(root: Path, expr: dict[str, Any]) -> None:
    rule = {"family": "inet", "table": "filter", "chain": "input", "handle": 7, "expr": [expr]}
    nftables(root, chain(policy="accept"), {"rule": rule})
    assert run_module(root, NAME)["changed"]


@pytest.mark.parametrize("port", ["0/tcp", "65536/tcp", "2049", "2049/sctp", "1/tcp\n", "$(x)/tcp"])
def test_an_invalid_port_is_refused(root: Path, port: str) -> None:
    assert "is not a port" in run_module(root, NAME, ports=[port])["msg"]
