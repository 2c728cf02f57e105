# SPDX-License-Identifier: Apache-2.0
"""Bytes a real 6.12 kernel sent, beside what iproute2's rdma made of them at the same moment."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.nldev import (
    Command,
    Message,
    message_type,
    to_counters,
    to_device,
    to_driver,
    to_link,
    to_listeners,
    to_owned,
    to_resources,
)
from nfsrdma_tools.host.rdma.ports import NETLINK_RDMA, NoRdmaError
from nfsrdma_tools.undo import Journal

GOLDEN = json.loads((Path(__file__).parents[2] / "data/nldev-6.12.json").read_text())


def answers(command: str) -> list[Message]:
    messages = [Message(bytes.fromhex(text)) for text in GOLDEN[command]]
    for message in messages:
        message.decode()
    return messages


def test_devices_are_read_as_rdma_reads_them() -> None:
    devices = [to_device(answer, "rxe") for answer in answers("GET")]
    assert [
        {
            "ifindex": device.index,
            "ifname": device.name,
            "node_type": device.node_type,
            "protocol": device.protocol,
            "node_guid": device.node_guid,
            "sys_image_guid": device.node_guid,
        }
        for device in devices
    ] == GOLDEN["rdma dev"]


def test_links_are_read_as_rdma_reads_them() -> None:
    device = to_device(answers("GET")[1], "rxe")
    (link,) = [to_link(answer, device) for answer in answers("PORT_GET")]
    theirs = GOLDEN["rdma link"][1]
    assert link.active
    assert link.name == "rxe1/1"
    assert (link.device.index, link.device.name) == (theirs["ifindex"], theirs["ifname"])
    assert (link.port, link.state) == (theirs["port"], theirs["state"])
    assert (link.physical_state, link.netdev) == (theirs["physical_state"], theirs["netdev"])


def test_resources_are_counted_as_rdma_counts_them() -> None:
    for answer, theirs in zip(answers("RES_GET"), GOLDEN["rdma resource"], strict=True):
        assert answer.get_attr("DEV_NAME") == theirs.pop("ifname")
        assert answer.get_attr("DEV_INDEX") == theirs.pop("ifindex")
        assert to_resources(answer) == theirs
        assert to_resources(answer)["cm_id"] == 3


def cm_id(state: int, port: int, *attributes: tuple[str, object]) -> tuple[str, object]:
    """A nested RES_CM_ID_ENTRY in the form of fill_res_cm_id_entry(): state, address, owner."""
    address = (2).to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes(124)
    attrs = [("RES_STATE", state), ("RES_SRC_ADDR", address), *attributes]
    return ("RES_CM_ID_ENTRY", {"attrs": attrs})


def test_processes_that_listen_by_rdma_cm() -> None:
    rows = (
        cm_id(8, 20049, ("RES_PID", 4242)),
        cm_id(8, 20049, ("RES_KERN_NAME", "rpcrdma")),
        cm_id(5, 20049, ("RES_PID", 4243)),
        # of another PID namespace
        cm_id(8, 2049),
    )
    request = Message.of(DEV_INDEX=1, RES_CM_ID={"attrs": list(rows)})
    request.encode()
    answer = Message(bytes(request.data))
    answer.decode()
    assert to_listeners(answer) == [(20049, 4242), (2049, 0)]
    assert (to_owned(answer, "rpcrdma"), to_owned(answer, "nfsrdma")) == (1, 0)
    assert message_type(Command.RES_CM_ID_GET) == (5 << 10 | 11)


def test_statistics_are_read_as_rdma_reads_them() -> None:
    (answer,) = answers("STAT_GET")
    theirs = dict(GOLDEN["rdma statistic"][1])
    assert (theirs.pop("ifname"), theirs.pop("port")) == ("rxe1", 1)
    assert to_counters(answer) == theirs
    assert theirs["rcvd_pkts"] > 0


def test_the_driver_is_named() -> None:
    (answer,) = answers("GET_CHARDEV")
    assert to_driver(answer) == "rxe"
    assert to_driver(Message.of(UVERBS_DRIVER_ID=99)) == "driver 99"


def test_requests_are_the_bytes_that_iproute2_sends() -> None:
    # rdma link add rxe9 type rxe netdev eth0: name, type, device, each with its NUL, padded to 4
    request = Message.of(DEV_NAME="rxe9", LINK_TYPE="rxe", NDEV_NAME="eth0")
    request["header"]["type"] = message_type(Command.NEWLINK)
    request.encode()
    attributes = (
        b"\x09\x00\x02\x00rxe9\x00\0\0\0\x08\x00\x41\x00rxe\x00\x09\x00\x33\x00eth0\x00\0\0\0"
    )
    assert bytes(request.data)[16:] == attributes
    assert bytes(request.data)[4:6] == (5 << 10 | 3).to_bytes(2, "little")


def test_an_unknown_state_is_shown_not_hidden() -> None:
    device = to_device(Message.of(DEV_INDEX=1, DEV_NAME="x", DEV_NODE_TYPE=77), "")
    assert device.node_type == "UNKNOWN_77"
    link = to_link(Message.of(PORT_INDEX=1, PORT_STATE=9, PORT_PHYS_STATE=2), device)
    assert (link.state, link.physical_state, link.active) == ("UNKNOWN_9", "POLLING", False)


def test_the_firmware_version_identifies_the_modelled_card() -> None:
    text = {"DEV_INDEX": 1, "DEV_NAME": "x", "FW_VERSION": "nfsrdma_card 0.1.0"}
    assert to_device(Message.of(**text), "").driver == "card"
    # the number that a character device has where the kernel has none
    assert to_device(Message.of(**text), "unknown").driver == "card"
    assert to_device(Message.of(**text), "rxe").driver == "rxe"
    assert to_device(Message.of(DEV_INDEX=1, DEV_NAME="x", FW_VERSION="1.2"), "").driver == ""


@pytest.mark.parametrize(
    ("kind", "name", "netdev", "message"),
    [
        ("mlx5", "a", "eth0", "link type"),
        ("rxe", "", "eth0", "link name"),
        ("rxe", "-h", "eth0", "link name"),
        ("rxe", "a%d", "eth0", "link name"),
        ("rxe", "a/b", "eth0", "link name"),
        ("rxe", "a\n", "eth0", "link name"),
        ("rxe", "a" * 64, "eth0", "link name"),
        ("rxe", "a", "", "network device"),
        ("rxe", "a", "a b", "network device"),
        ("rxe", "a", "a" * 16, "network device"),
    ],
)
def test_names_the_kernel_could_not_take_are_refused(
    tmp_path: Path, kind: str, name: str, netdev: str, message: str
) -> None:
    book = Journal(tmp_path / "book")
    with pytest.raises(UserError, match=message):
        nldev.add_link(kind, name, netdev, book)
    assert book.actions == []


def test_the_undo_of_a_link_that_was_not_made_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the note in the journal and the link."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nldev, "_find", lambda _: None)
    monkeypatch.setattr(nldev, "_change", interrupted)
    book = Journal(tmp_path / "book")
    with pytest.raises(KeyboardInterrupt):
        nldev.add_link("rxe", "not-made", "lo", book)
    (undo,) = book.actions
    monkeypatch.setattr("nfsrdma_tools.undo.run", pytest.fail)
    undo.undo()


def test_a_kernel_without_rdma_is_one_line() -> None:
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA).close()
    except OSError:
        with pytest.raises(NoRdmaError, match="no RDMA"):
            nldev.links()
    else:
        pytest.skip("this kernel has RDMA netlink")


WITHOUT_RDMA = """
import socket, sys
def refused(*_):
    raise OSError(93, "Protocol not supported")
socket.socket = refused
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE
try:
    LIVE.links()
except UserError as error:
    print(error.message, "pyroute2" in sys.modules)
"""


def test_a_host_without_rdma_does_not_import_the_library() -> None:
    printed = subprocess.check_output((sys.executable, "-c", WITHOUT_RDMA), text=True)
    assert printed == "no RDMA link: ib_core is not loaded (Protocol not supported) False\n"
