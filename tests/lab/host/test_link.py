# SPDX-License-Identifier: Apache-2.0
"""RDMA netlink against iproute2's rdma, and soft links made and removed for real."""

import json
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import journal
from testbed.node.mounts import mounted
from testbed.node.programs import call
from testbed.remote import on


def rdma(kind: str) -> list[dict[str, Any]]:
    return list(json.loads(call("rdma", "-j", kind)))


def ours() -> dict[str, Any]:
    links = nldev.links()
    return {
        "dev": [(d.index, d.name, d.node_type, d.protocol, d.node_guid) for d in nldev.devices()],
        "link": [(x.device.name, x.port, x.state, x.physical_state, x.netdev) for x in links],
        "res": nldev.resources(),
        "statistic": {link.name: nldev.statistics(link) for link in links},
        "driver": [d.driver for d in nldev.devices()],
    }


def theirs() -> dict[str, Any]:
    keys = ("ifindex", "ifname", "node_type", "protocol", "node_guid")
    ports = ("ifname", "port", "state", "physical_state", "netdev")
    return {
        "dev": [tuple(row[key] for key in keys) for row in rdma("dev")],
        "link": [tuple(row[key] for key in ports) for row in rdma("link")],
        "res": {row.pop("ifname"): row for row in rdma("res") if row.pop("ifindex") >= 0},
        "statistic": {f"{r.pop('ifname')}/{r.pop('port')}": r for r in rdma("statistic")},
        "driver": ["rxe", "rxe"],
    }


def compare() -> dict[str, Any]:
    # counters move on; nothing runs that would move them for long
    for _ in range(20):
        first, other, last = ours(), theirs(), ours()
        if first == last:
            break
    for name, value in first.items():
        assert value == other[name], name
    return first


@on("client")
def compare_links() -> None:
    idle = compare()["res"]["rxe0"]
    with mounted("vers=3"):
        busy = compare()
    assert busy["res"]["rxe0"]["qp"] == idle["qp"] + 1
    assert busy["res"]["rxe0"]["mr"] > 0
    assert busy["statistic"]["rxe0/1"]["sent_pkts"] > 0


def test_links_devices_resources_and_statistics_are_what_rdma_says(solo: Lab) -> None:
    compare_links(solo)


def names() -> list[str]:
    return [link.device.name for link in nldev.links()]


def is_refused(expected: str, driver: str, name: str, netdev: str) -> None:
    error = ""
    try:
        with journal() as book:
            nldev.add_link(driver, name, netdev, book)
    except UserError as refusal:
        error = str(refusal)
    assert expected in error


@on("client")
def make_and_remove() -> None:
    before = names()
    both = sorted([*before, "rxe.7"])
    call("ip", "link", "add", "lab7", "mtu", "9000", "type", "dummy")
    call("ip", "link", "set", "lab7", "up")
    try:
        with journal() as book:
            link = nldev.add_link("rxe", "rxe.7", "lab7", book)
            made = (link.name, link.netdev, link.device.driver, link.state)
            assert made == ("rxe.7/1", "lab7", "rxe", "ACTIVE")
            assert names() == both
            is_refused("rxe.7 already", "rxe", "rxe.7", "lab7")
            is_refused("already has an RDMA link", "rxe", "rxe8", "lab7")
        assert names() == before
        with journal() as book:
            nldev.add_link("rxe", "rxe.7", "lab7", book)
            book.keep()
        with journal() as book:
            nldev.remove_link("rxe.7", book)
            assert names() == before
        assert names() == both
        with journal() as book:
            nldev.remove_link("rxe.7", book)
            book.keep()
    finally:
        call("ip", "link", "del", "lab7")
    is_refused("no such network device", "rxe", "rxe8", "lab7")
    # a machine whose kernel was built without it
    conf = Path("/run/modprobe.d/no-siw.conf")
    conf.parent.mkdir(exist_ok=True)
    conf.write_text("install siw /bin/false\n")
    is_refused("no driver", "siw", "siw8", "v0")
    conf.unlink()
    assert names() == before


@pytest.mark.main
def test_a_soft_link_is_made_removed_and_each_undoes_the_other(solo: Lab) -> None:
    make_and_remove(solo)


def test_the_commands_say_what_is_wrong_in_one_line(solo: Lab) -> None:
    script = (
        "nfsrdma link delete none; nfsrdma link add 'a;reboot' --netdev v0;"
        "setpriv --reuid=65534 --clear-groups nfsrdma link show"
    )
    ended = solo.run("client", "sh", "-c", script)
    assert len(ended.stderr.splitlines()) == 2
    assert "no RDMA device 'none'" in ended.stderr
    assert "link name 'a;reboot'" in ended.stderr
    assert ended.stdout.splitlines()[1].split()[:4] == ["rxe0/1", "ACTIVE", "LINK_UP", "rxe"]
