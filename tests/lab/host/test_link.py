# SPDX-License-Identifier: Apache-2.0
"""RDMA netlink against iproute2's rdma, and soft links made and removed for real."""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab

AGREES = """
import json, subprocess
from nfsrdma_tools.host.rdma import nldev

def rdma(what):
    said = subprocess.run(("rdma", "-j", what), check=True, capture_output=True).stdout
    return json.loads(said)

def ours():
    links = nldev.links()
    return {
        "dev": [(d.index, d.name, d.node_type, d.protocol, d.node_guid) for d in nldev.devices()],
        "link": [(l.device.name, l.port, l.state, l.physical_state, l.netdev) for l in links],
        "res": nldev.resources(),
        "statistic": {l.name: nldev.statistics(l) for l in links},
        "driver": [d.driver for d in nldev.devices()],
    }

def theirs():
    keys = ("ifindex", "ifname", "node_type", "protocol", "node_guid")
    ports = ("ifname", "port", "state", "physical_state", "netdev")
    return {
        "dev": [tuple(row[key] for key in keys) for row in rdma("dev")],
        "link": [tuple(row[key] for key in ports) for row in rdma("link")],
        "res": {row.pop("ifname"): row for row in rdma("res") if row.pop("ifindex") >= 0},
        "statistic": {f"{r.pop('ifname')}/{r.pop('port')}": r for r in rdma("statistic")},
        "driver": ["rxe", "rxe"],
    }

def compare():
    # counters move on; nothing runs that would move them for long
    for _ in range(20):
        first, there, last = ours(), theirs(), ours()
        if first == last:
            break
    assert first == there, (first, there)
    return first

idle = compare()
subprocess.run(
    ("mount", "-t", "nfs", "-o", "proto=rdma,port=20049,vers=3", "server:/export", "/mnt"),
    check=True,
)
try:
    busy = compare()
finally:
    subprocess.run(("umount", "/mnt"), check=True)
print(json.dumps([idle["res"], busy["res"], busy["statistic"]]))
"""


def test_links_devices_resources_and_statistics_are_what_rdma_says(solo: Lab) -> None:
    said = solo.run("client", "python3", "-", stdin=AGREES.encode()).stdout
    idle, busy, statistics = json.loads(said)
    assert busy["rxe0"]["qp"] == idle["rxe0"]["qp"] + 1
    assert busy["rxe0"]["mr"] > 0
    assert statistics["rxe0/1"]["sent_pkts"] > 0


MADE = """
import json, subprocess
from pathlib import Path
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.undo import journal, recover

def names():
    return [link.device.name for link in nldev.links()]

def refused(*args):
    try:
        with journal() as book:
            nldev.add_link(*args, book)
    except UserError as error:
        return str(error)

before = names()
subprocess.run(("ip", "link", "add", "lab7", "mtu", "9000", "type", "dummy"), check=True)
subprocess.run(("ip", "link", "set", "lab7", "up"), check=True)
try:
    with journal() as book:
        link = nldev.add_link("rxe", "rxe.7", "lab7", book)
        made = [link.name, link.netdev, link.device.driver, link.state, *names()]
        there_already = refused("rxe", "rxe.7", "lab7")
        has_one = refused("rxe", "rxe8", "lab7")
    undone = names()
    with journal() as book:
        nldev.add_link("rxe", "rxe.7", "lab7", book)
        book.keep()
    with journal() as book:
        nldev.remove_link("rxe.7", book)
        removed = names()
    made_again = names()
    with journal() as book:
        nldev.remove_link("rxe.7", book)
        book.keep()
finally:
    subprocess.run(("ip", "link", "del", "lab7"), check=True)
no_device = refused("rxe", "rxe8", "lab7")
# a machine whose kernel was built without it
conf = Path("/run/modprobe.d/no-siw.conf")
conf.parent.mkdir(exist_ok=True)
conf.write_text("install siw /bin/false\\n")
no_driver = refused("siw", "siw8", "v0")
conf.unlink()
assert before == undone == removed == names()
print(json.dumps([before, made, made_again, there_already, has_one, no_device, no_driver]))
"""


@pytest.mark.main
def test_a_soft_link_is_made_removed_and_each_undoes_the_other(solo: Lab) -> None:
    said = solo.run("client", "python3", "-", stdin=MADE.encode()).stdout
    before, made, made_again, *refusals = json.loads(said)
    assert made == ["rxe.7/1", "lab7", "rxe", "ACTIVE", *sorted([*before, "rxe.7"])]
    assert made_again == sorted([*before, "rxe.7"])
    expected = ("rxe.7 already", "already has an RDMA link", "no such network device", "no driver")
    for text, words in zip(refusals, expected, strict=True):
        assert words in text


def test_the_commands_say_what_is_wrong_in_one_line(solo: Lab) -> None:
    script = (
        "nfsrdma link delete none; nfsrdma link add 'a;reboot' --netdev v0;"
        "setpriv --reuid=65534 --clear-groups nfsrdma link show"
    )
    said = solo.run("client", "sh", "-c", script)
    assert len(said.stderr.splitlines()) == 2
    assert "no RDMA device 'none'" in said.stderr
    assert "link name 'a;reboot'" in said.stderr
    assert said.stdout.splitlines()[1].split()[:4] == ["rxe0/1", "ACTIVE", "LINK_UP", "rxe"]
