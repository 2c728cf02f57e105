# SPDX-License-Identifier: Apache-2.0
"""The module's header code reads what is on the wire of a lab as tshark's dissector reads it."""

import os
import shutil
import time
from pathlib import Path

import pytest
from lab.trace.exchanges import LENGTHS, exchange
from wire import rpcrdma
from wire.capture import Send
from wire.native import COMPILER, Wire
from wire.rpcrdma import Header

from nfsrdma_tools.lab.lab import Lab
from testbed import sniffer
from testbed.node import channel
from testbed.node.mounts import mounted
from testbed.remote import Running, on

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

FIELDS = (
    *("frame.number", "rpcordma.xid", "rpcordma.version", "rpcordma.flow_control"),
    *("rpcordma.msg_type", "rpcordma.reads_count", "rpcordma.position", "rpcordma.writes_count"),
    *("rpcordma.reply_count", "rpcordma.segment_count", "rpcordma.rdma_handle"),
    *("rpcordma.rdma_length", "rpcordma.rdma_offset"),
)
SIDES = {"10.9.1.1": "server", "10.9.1.11": "client"}
KINDS = {
    *(("client", "call", ""), ("server", "reply", "")),
    *(("client", "call", "read"), ("client", "nomsg", "read")),
    *(("client", "call", "write"), ("server", "reply", "write")),
    *(("client", "call", "reply"), ("server", "nomsg", "reply")),
    # a delegation is recalled
    *(("server", "call", ""), ("client", "reply", "")),
}


@on("client")
def work() -> None:
    """Exchange messages of each kind; the mount stays until the server has recalled a delegation.

    None is delegated while lockd waits for reclaims.
    """
    for version in ("3", "4.2"):
        with mounted(f"vers={version},{LENGTHS}", source="10.9.1.1:/export") as mount:
            folder = mount / "wire"
            exchange(folder)
            (folder / "link").readlink()
            if version == "4.2":
                # longer than a message inline: the Call goes as position-zero chunk, the Reply as
                # chunk
                os.setxattr(folder / "data", "user.long", b"x" * 9000)
                assert os.getxattr(folder / "data", "user.long") == b"x" * 9000
            shutil.rmtree(folder)
            while version == "4.2" and channel.receive():
                channel.send((mount / "recalled").read_text())


def recall(lab: Lab, running: Running[None]) -> None:
    """Have the server recall a delegation."""
    lab.run("server", "sh", "-c", "echo before > /export/recalled")
    for _ in range(200):
        running.send("read")
        assert running.receive(timeout=600) == "before\n"
        delegated = "grep 'type: deleg.*recalled' /proc/fs/nfsd/clients/*/states"
        if lab.run("server", "sh", "-c", delegated, check=False).stdout:
            break
        time.sleep(1)
    lab.run("server", "sh", "-c", "echo after > /export/recalled", timeout=300)
    running.send("")


def captured(lab: Lab) -> list[Send]:
    """Every kind of header, both ways."""

    def exchange_and_recall() -> None:
        with work.started(lab) as running:
            recall(lab, running)

    try:
        return sniffer.listening(lab, exchange_and_recall)
    finally:
        lab.run("server", "rm", "-f", "/export/recalled")


def tshark(lab: Lab) -> dict[int, tuple[list[int], ...]]:
    """Frame number to the values of each field, as tshark found them one after the other."""
    wanted = [word for field in FIELDS for word in ("-e", field)]
    separated = ("-T", "fields", "-E", "separator=;", "-E", "aggregator=,")
    table = lab.run(
        *("client", "tshark", "-r", sniffer.FILE, "-Y", "rpcordma", *separated, *wanted),
        timeout=600,
    ).stdout
    rows = [line.split(";") for line in table.splitlines()]
    return {
        int(number): tuple([int(v, 0) for v in field.split(",") if v] for field in fields)
        for number, *fields in rows
    }


def as_tshark_says(header: Header) -> tuple[list[int], ...]:
    arrays = [*header.writes, *([] if header.reply is None else [header.reply])]
    reads = [(read.position, segment) for read in header.reads for segment in read.segments]
    segments = [segment for _, segment in reads] + [s for array in arrays for s in array]
    return (
        *([header.xid], [1], [header.credits], [header.proc]),
        *([len(reads)], [position for position, _ in reads]),
        *([len(header.writes)], [int(header.reply is not None)], [len(a) for a in arrays]),
        *([s.handle for s in segments], [s.length for s in segments], [s.offset for s in segments]),
    )


def kind(wire: Wire, send: Send) -> tuple[str, str, str]:
    """Who sent it, what kind of message it is, and which lists it has."""
    header, length = wire.decode(send.payload)
    lists = {"read": header.reads, "write": header.writes, "reply": header.reply}
    call = wire.is_call(send.payload[length:]) or bool(header.reads)
    name = "nomsg" if header.proc == rpcrdma.RDMA_NOMSG else "call" if call else "reply"
    return SIDES[send.source], name, " ".join(name for name, there in lists.items() if there)


@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize("client", ("pair", "module_pair"), ids=("rpcrdma", "nfsrdma"))
def test_tshark_reads_the_headers_as_we_do(
    client: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lab: Lab = request.getfixturevalue(client)
    wire, sends = Wire(tmp_path), captured(lab)
    ours = {send.frame: as_tshark_says(wire.decode(send.payload)[0]) for send in sends}
    assert ours == tshark(lab)
    assert {kind(wire, send) for send in sends} >= KINDS
