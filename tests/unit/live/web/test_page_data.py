# SPDX-License-Identifier: Apache-2.0
"""The data for browsers: the fields that the page reads, without empty ones."""

import json

from unit.live.snapshots_made import (
    HOSTILE,
    a_thousand_clients,
    hostile,
    mount,
    op,
    served,
    snapshot,
    xprt,
)

from nfsrdma_tools.live.web.broadcast import compact_json, page_data

IDLE = mount("/mnt/idle", device="0:46", ops=(), read=0)


def test_the_page_is_told_of_each_mount_and_its_connections() -> None:
    page = page_data(snapshot(1, (mount(ops=(op(count=7),)), IDLE)))
    busy, idle = page["mounts"]
    assert (busy["device"], busy["ops"][0]["count"]) == ("0:45", 7)
    assert (idle["directory"], "ops" in idle, "read" in idle) == ("/mnt/idle", False, False)
    assert idle["xprts"][0]["number"] == xprt().number
    assert "counters" not in idle["xprts"][0]
    assert "server" not in page


def test_a_connection_that_is_down_is_told() -> None:
    down = xprt(connected=False, states=())
    (entry,) = page_data(snapshot(1, (mount(xprts=(down,)),)))["mounts"]
    assert entry["xprts"][0]["connected"] is False


def test_the_server_is_told_with_its_clients() -> None:
    server = page_data(snapshot(1, (), server=served()))["server"]
    assert server["threads"] == served().threads
    assert [each["peer"] for each in server["clients"]] == [each.peer for each in served().clients]


def test_of_a_thousand_clients_the_busiest_are_told() -> None:
    server = page_data(a_thousand_clients())["server"]
    peers = {row["peer"] for row in server["clients"]}
    assert len(server["clients"]) == 100
    assert peers == {f"10.9.3.{number}" for number in range(225, 250)}
    assert server["clients_left"] == 3900


def test_compact_json_keeps_hostile_names() -> None:
    page = json.loads(compact_json(page_data(hostile())))
    assert page["mounts"][1]["directory"] == HOSTILE
