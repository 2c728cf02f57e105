# SPDX-License-Identifier: Apache-2.0
"""Bytes a real 6.12 kernel sent, beside what iproute2's rdma made of them at the same moment."""

from __future__ import annotations

import errno
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.nldev import (
    Attributes,
    Command,
    NetlinkError,
    decoded,
    encoded,
    message_type,
    replies,
    to_counters,
    to_device,
    to_driver,
    to_link,
    to_resources,
)
from nfsrdma_tools.undo import Journal

GOLDEN = json.loads((Path(__file__).parent / "data/nldev-6.12.json").read_text())


# struct nlmsghdr
HEADER = struct.Struct("=IHHII")


def answers(command: str) -> list[Attributes]:
    return [decoded(bytes.fromhex(text)[HEADER.size :]) for text in GOLDEN[command]]


def test_devices_are_read_as_rdma_reads_them() -> None:
    found = [to_device(answer, "rxe") for answer in answers("GET")]
    assert [
        {
            "ifindex": device.index,
            "ifname": device.name,
            "node_type": device.node_type,
            "protocol": device.protocol,
            "node_guid": device.node_guid,
            "sys_image_guid": device.node_guid,
        }
        for device in found
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
        assert answer["DEV_NAME"] == theirs.pop("ifname")
        assert answer["DEV_INDEX"] == theirs.pop("ifindex")
        assert to_resources(answer) == theirs
        assert to_resources(answer)["cm_id"] == 3


def test_statistics_are_read_as_rdma_reads_them() -> None:
    (answer,) = answers("STAT_GET")
    theirs = dict(GOLDEN["rdma statistic"][1])
    assert (theirs.pop("ifname"), theirs.pop("port")) == ("rxe1", 1)
    assert to_counters(answer) == theirs
    assert theirs["rcvd_pkts"] > 0


def test_the_driver_is_named() -> None:
    (answer,) = answers("GET_CHARDEV")
    assert to_driver(answer) == "rxe"
    assert to_driver({"UVERBS_DRIVER_ID": 99}) == "driver 99"


def test_requests_are_the_bytes_that_iproute2_sends() -> None:
    # rdma link add rxe9 type rxe netdev eth0: name, type, device, each with its NUL, padded to 4
    request = encoded({"DEV_NAME": "rxe9", "LINK_TYPE": "rxe", "NDEV_NAME": "eth0"})
    assert request == (
        b"\x09\x00\x02\x00rxe9\x00\0\0\0\x08\x00\x41\x00rxe\x00\x09\x00\x33\x00eth0\x00\0\0\0"
    )
    assert encoded({"DEV_INDEX": 7, "PORT_INDEX": 1}) == (
        b"\x08\x00\x01\x00\x07\0\0\0\x08\x00\x03\x00\x01\0\0\0"
    )
    assert message_type(Command.NEWLINK) == 5 << 10 | 3


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x00\x00\x02\x00", b"\x05\x00\xff\x3f\x00", b"\xff\xff\xff\xff"]
)
def test_attributes_that_nobody_knows_are_skipped(data: bytes) -> None:
    assert decoded(data) == {}
    nested = encoded({"DEV_NAME": "x"}).replace(b"\x02\x00x", b"\x02\x80x")
    assert decoded(nested + data) == {"DEV_NAME": "x"}


def message(kind: int, payload: bytes) -> bytes:
    data = HEADER.pack(HEADER.size + len(payload), kind, 2, 1, 0) + payload
    return data.ljust(len(data) + 3 & ~3, b"\0")


ROW, END = message(5121, b"row"), message(3, b"\0\0\0\0")
REFUSED = message(2, struct.pack("=i", -errno.EPERM) + b"\0" * 16)
DONE = message(2, struct.pack("=i", 0) + b"\0" * 16)


class Kernel:
    """A socket that has these datagrams, each with the port of its sender."""

    def __init__(self, *datagrams: bytes | tuple[int, bytes]) -> None:
        self.waiting = [one if isinstance(one, tuple) else (0, one) for one in datagrams]
        self.sent = b""

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        assert address == (0, 0)
        self.sent = data

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        port, data = self.waiting.pop(0)
        return data[:size], [], socket.MSG_TRUNC if len(data) > size else 0, (port, 0)


@pytest.mark.parametrize(
    ("datagrams", "single", "rows"),
    [
        ([ROW], True, 1),
        ([ROW + ROW, ROW + END], False, 3),
        ([END], False, 0),
        ([DONE], False, 0),
        # another process pretends to be the kernel
        ([(4711, END), ROW, END], False, 1),
        ([b"\0" * 16, ROW], True, 1),
    ],
)
def test_replies_end_with_the_last_message(
    datagrams: list[bytes | tuple[int, bytes]], single: bool, rows: int
) -> None:
    kernel: Any = Kernel(*datagrams)
    assert list(replies(kernel, single=single)) == [b"row"] * rows
    assert kernel.waiting == []


@pytest.mark.parametrize("datagrams", [[REFUSED], [ROW, REFUSED], [ROW + REFUSED]])
def test_a_refusal_has_the_error_of_the_kernel(datagrams: list[bytes]) -> None:
    kernel: Any = Kernel(*datagrams)
    with pytest.raises(NetlinkError) as raised:
        list(replies(kernel, single=False))
    assert (raised.value.errno, raised.value.strerror) == (1, "Operation not permitted")


def test_a_message_that_was_cut_is_no_answer() -> None:
    kernel: Any = Kernel(b"\0" * (65 << 10))
    with pytest.raises(OSError, match="longer than the buffer"):
        list(replies(kernel, single=True))


class Socket(Kernel):
    """A socket that answers by the command."""

    def __init__(self, rows: dict[str, list[str]]) -> None:
        super().__init__()
        self.rows = {message_type(Command[name]): texts for name, texts in rows.items()}
        self.requests: list[tuple[Command, int, Attributes]] = []

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.waiting == []

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        super().sendto(data, address)
        size, kind, flags, _, _ = HEADER.unpack_from(data)
        assert size == len(data)
        self.requests.append((Command(kind & 0x3FF), flags, decoded(data[HEADER.size :])))
        rows = [bytes.fromhex(text) for text in self.rows.get(kind, ())]
        # a dump is requested with 0x300
        self.waiting = [(0, one) for one in rows or [REFUSED]] + [(0, END)] * (flags == 0x301)


def test_links_are_those_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: GOLDEN[name] for name in ("GET", "PORT_GET", "RES_GET", "STAT_GET")}
    answering = Socket(known)
    monkeypatch.setattr(nldev, "_socket", lambda: answering)
    found = nldev.links()
    assert [link.name for link in found] == ["rxe0/1", "rxe1/1"]
    # ib_uverbs is not loaded
    assert {link.device.driver for link in found} == {""}
    assert [(command.name, flags) for command, flags, _ in answering.requests] == [
        ("GET", 0x301), ("GET_CHARDEV", 1), ("GET_CHARDEV", 1),
        ("PORT_GET", 0x301), ("PORT_GET", 0x301),
    ]  # fmt: skip
    assert answering.requests[1][2].keys() == {"DEV_INDEX", "CHARDEV_TYPE"}
    assert nldev.resources()["rxe1"]["cm_id"] == 3
    assert nldev.statistics(found[1])["rcvd_pkts"] > 0


def test_an_unknown_state_is_shown_not_hidden() -> None:
    device = to_device({"DEV_INDEX": 1, "DEV_NAME": "x", "DEV_NODE_TYPE": 77}, "")
    assert device.node_type == "UNKNOWN_77"
    link = to_link({"PORT_INDEX": 1, "PORT_STATE": 9, "PORT_PHYS_STATE": 2}, device)
    assert (link.state, link.physical_state, link.active) == ("UNKNOWN_9", "POLLING", False)


def test_the_firmware_version_identifies_the_modelled_card() -> None:
    text = {"DEV_INDEX": 1, "DEV_NAME": "x", "FW_VERSION": "nfsrdma_card 0.1.0"}
    assert to_device(dict(text), "").driver == "card"
    # the number that a character device has where the kernel has none
    assert to_device(dict(text), "unknown").driver == "card"
    assert to_device(dict(text), "rxe").driver == "rxe"
    assert to_device({"DEV_INDEX": 1, "DEV_NAME": "x", "FW_VERSION": "1.2"}, "").driver == ""


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


def test_a_kernel_without_rdma_is_one_line() -> None:
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, nldev.NETLINK_RDMA).close()
    except OSError:
        with pytest.raises(nldev.NoRdmaError, match="no RDMA"):
            nldev.links()
    else:
        pytest.skip("this kernel has RDMA netlink")
