# SPDX-License-Identifier: Apache-2.0
"""Which ports role server opens in firewalld, records and closes; the lab runs the tasks."""

from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

import yaml
from unit.playbooks.ansible_modules import PLAYBOOKS, templated

ROLE = PLAYBOOKS / "roles/server"
POSIX = "ansible.posix.firewalld"


def tasks(file: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load((ROLE / "tasks" / file).read_text())
    return listed


def host(ports: list[str], opened: set[str], recorded: tuple[str, ...] = ()) -> dict[str, Any]:
    """The variables of a host after firewalld_look.yml: ``opened`` holds "PORT KIND"."""
    known: dict[str, Any] = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    records: dict[str, Any] = {"firewalld": {key: {} for key in recorded}}
    known |= {
        "server_firewall_ports": ports,
        "server_firewalld": {"rc": 0, "stdout": "public"},
        "ansible_facts": {"nfsrdma": {"records": records}},
    }
    _, query, note = tasks("firewalld_look.yml")
    results = [
        {"item": item, "rc": 0 if " ".join(item[1:]) in opened else 1}
        for item in templated(query["loop"], known)
    ]
    known["server_firewalld_ports"] = {"results": results}
    return {**known, **templated(note["ansible.builtin.set_fact"], known)}


def changes(file: str, known: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The state and the arguments of each call of ansible.posix.firewalld."""
    calls = []
    for task in tasks(file):
        if POSIX in task:
            for item in templated(task["loop"], known):
                args = templated(task[POSIX], {**known, "item": item})
                calls.append((args.pop("state"), args))
    return calls


def recorded(known: dict[str, Any], task: int) -> list[str]:
    name = "nfsrdma.tools.nfsrdma_record"
    records = [each[name] for each in tasks("firewalld.yml") if name in each]
    return sorted(templated(records[task]["content"], known))


def port(number: str, kind: str, zone: str = "public") -> dict[str, Any]:
    permanent = kind == "permanent"
    return {"zone": zone, "port": number, "permanent": permanent, "immediate": not permanent}


def test_only_closed_ports_are_recorded_and_opened() -> None:
    known = host(["2049/tcp", "4791/udp"], {"2049/tcp runtime", "2049/tcp permanent"})
    assert changes("firewalld.yml", known) == [
        ("enabled", port("4791/udp", "runtime")),
        ("enabled", port("4791/udp", "permanent")),
    ]
    assert recorded(known, 0) == ["public 4791/udp permanent", "public 4791/udp runtime"]


def test_a_port_that_is_open_until_the_next_boot_is_opened_for_good() -> None:
    known = host(["2049/tcp"], {"2049/tcp runtime"})
    assert changes("firewalld.yml", known) == [("enabled", port("2049/tcp", "permanent"))]
    assert recorded(known, 0) == ["public 2049/tcp permanent"]


def test_a_port_that_is_no_longer_listed_is_closed_if_the_role_opened_it() -> None:
    before = ("public 2049/tcp permanent", "public 4791/udp runtime", "home 4791/udp permanent")
    opened = {"4791/udp runtime", "4791/udp permanent"}
    known = host(["4791/udp", "20049/tcp"], opened, before)
    closed = [args for state, args in changes("firewalld.yml", known) if state == "disabled"]
    assert sorted(closed, key=str) == sorted(
        [port("2049/tcp", "permanent"), port("4791/udp", "permanent", "home")], key=str
    )
    assert recorded(known, 1) == [
        "public 20049/tcp permanent", "public 20049/tcp runtime", "public 4791/udp runtime",
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "closed"), [(0, 2), (252, 1), (2, 0)])
def test_reverting_closes_the_recorded_ports(status: int, closed: int) -> None:
    """firewalld runs, is stopped, is not installed."""
    known = host([], set(), ("public 2049/tcp runtime", "public 2049/tcp permanent"))
    known["server_firewalld"] = {"rc": status, "stdout": ""}
    (task,) = [task for task in tasks("firewalld_revert.yml") if POSIX in task]
    items = templated(task["loop"], known)
    condition = "{{ " + task["when"] + " }}"
    done = [item for item in items if templated(condition, {**known, "item": item})]
    assert len(done) == closed
    kinds = [templated(task[POSIX], {**known, "item": item})["permanent"] for item in done]
    assert kinds == [False, True][-closed:] if closed else kinds == []
