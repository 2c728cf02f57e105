# SPDX-License-Identifier: Apache-2.0
"""Captures: what tshark makes of the frames, and what our reader makes of anything."""

import contextlib
import io
import json
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from unit.forked import nfsrdma
from wire import conversations, rdma2003, rdma5666, rpcrdma
from wire.headers import CHUNKS, READS, WORDS, mutations
from wire.rpcrdma import RefusedError

from nfsrdma_tools.capture import conversation, follow, management, probes, roce, rpc
from nfsrdma_tools.capture.conversation import Message
from nfsrdma_tools.capture.files import (
    ETHERNET,
    INFINIBAND,
    STATISTICS,
    CapturedFrame,
    Writer,
    frames,
)
from nfsrdma_tools.capture.header import header, private_data
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.doctor import capture as examine
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.probes import rpc_clients

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="no tshark: no other reader of the frames")
SAID = conversations.messages()
CAPTURE = conversations.written(SAID)
HEADERS = st.builds(
    rpcrdma.Header,
    WORDS,
    WORDS,
    st.sampled_from((rpcrdma.RDMA_MSG, rpcrdma.RDMA_NOMSG)),
    READS,
    st.lists(CHUNKS, max_size=3).map(tuple),
    st.none() | CHUNKS,
)


def read(capture: bytes) -> list[CapturedFrame]:
    return [frame for frame in frames(io.BytesIO(capture)) if frame.link != STATISTICS]


def examined(capture: bytes) -> list[Finding]:
    return examine.examine(frames(io.BytesIO(capture)))


def followed(capture: bytes) -> tuple[list[follow.Exchange], follow.Follower]:
    follower = follow.Follower()
    return list(follow.exchanges(frames(io.BytesIO(capture)), follower)), follower


def tshark(path: Path, shown: str, *fields: str) -> list[list[list[str]]]:
    """The values of each field, for each frame that the filter shows."""
    wanted = [word for field in fields for word in ("-e", field)]
    # two passes, as the window of Wireshark: data behind a Call are known to the second only
    options = ("-2", "--disable-heuristic", "eth_over_ib", "-T", "fields", "-E", "separator=;")
    argv = ("tshark", *options, "-r", str(path), "-Y", shown)
    output = subprocess.run((*argv, *wanted), capture_output=True, text=True, check=True).stdout
    return [
        [part.split(",") if part else [] for part in row.split(";")]
        for row in output.split("\n")
        if row
    ]


def finds_no_fault(capture: list[Message], folder: Path) -> Path:
    """tshark finds none in any frame of these messages; returns their file."""
    file = folder / "file"
    file.write_bytes(conversations.written(capture))
    assert tshark(file, "_ws.malformed || _ws.expert.severity >= error", "frame.number") == []
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "capture.pcapng"
    path.write_bytes(CAPTURE)
    return path


@needs_tshark
def test_tshark_finds_no_fault_in_a_frame(file: Path) -> None:
    assert tshark(file, "_ws.malformed || _ws.expert.severity >= error", "frame.number") == []
    assert len(tshark(file, "frame", "frame.number")) == len(read(CAPTURE))


@needs_tshark
def test_tshark_pairs_each_call_with_its_reply(file: Path) -> None:
    calls = tshark(file, "rpc.msgtyp == 0", "rpc.xid", "rpc.reqframe")
    replies = tshark(file, "rpc.msgtyp == 1", "rpc.xid", "rpc.time")
    xids = [[f"0x{n:08x}"] for n in range(1, conversations.CALLS + 1)]
    assert [xid for xid, _ in calls] == [xid for xid, _ in replies] == xids
    assert all(frame for _, frame in calls)
    # of a Call that the server has to read, Wireshark counts from the last frame
    assert {round(float(time[0]), 6) for _, time in replies} == {conversations.STEP / 1e9}


@needs_tshark
def test_tshark_has_all_data(file: Path) -> None:
    reads = tshark(file, "rpc.procedure == 6 && rpc.msgtyp == 1", "rpc.opaque_length")
    assert reads == [[["9999"]], [["9999"]]]
    rows = tshark(file, "nfs.opcode == 25 && rpc.msgtyp == 1", "rpc.opaque_length")
    # in front are lengths of other opaques: the tag of the COMPOUND, and of a verifier
    assert [row[0][-1] for row in rows] == ["5000", "9998"]
    assert rows[1][0][-3:] == ["4096", "4001", "9998"]
    names = tshark(file, "rpc.procedure == 17 && rpc.msgtyp == 1", "nfs.readdirplus.entry.name")
    assert len(names[0][0]) == 200
    write = tshark(file, "rpc.procedure == 7 && rpc.msgtyp == 0", "rpc.opaque_length")
    assert write[0][0][-1] == "9999"


@needs_tshark
def test_tshark_reads_the_headers_as_we_do(file: Path) -> None:
    fields = ("rpcordma.xid", "rpcordma.flow_control", "rpcordma.rdma_handle")
    rows = tshark(file, "rpcordma", *fields)
    theirs = [[int(v, 0) for field in row for v in field] for row in rows]
    ours = []
    for frame in read(CAPTURE):
        packet = roce.packet(frame.link, frame.data, frame.length)
        if packet and packet.opcode == roce.SENDS[3]:
            head = header(packet.payload)
            chunks = (*head.writes, head.reply or ())
            keys = [s.handle for s in head.reads] + [s.handle for c in chunks for s in c]
            ours.append([head.xid, head.credits, *keys])
    # the Reply with three chunks is in several Sends
    assert theirs[:-1] == ours
    assert theirs[-1] == [conversations.CALLS, 64]


@needs_tshark
def test_tshark_finds_no_fault_with_ipv6(tmp_path: Path) -> None:
    name = replace(conversations.NAME, client="fd00::11", server="fd00::1")
    messages = [replace(message, connection=name) for message in SAID]
    file = finds_no_fault(messages, tmp_path)
    # tshark's own check is off by default
    argv = ("tshark", "-r", str(file), "-o", "udp.check_checksum:TRUE", "-Y")
    bad = subprocess.run((*argv, "udp.checksum.status == 0"), capture_output=True, check=True)
    assert bad.stdout == b""


def read_read(server_position: int = 0) -> list[Message]:
    """A READ of 2003: the client reads the data from the server, then sends RDMA_DONE."""
    call = conversations.call(1, 6, conversations.HANDLE + struct.pack(">QI", 0, 9999))
    reply = conversations.reply(1, struct.pack(">5I", 0, 0, 9999, 1, 9999))
    position = server_position or len(reply)
    reads = (rpcrdma.Read(position, (rpcrdma.Segment(0x77, 9999, 0x1000),)),)
    heads = (
        rdma2003.encode(rpcrdma.Header(1, 32, 0)) + call,
        rdma2003.encode(rpcrdma.Header(1, 32, 0, reads)) + reply,
        rdma2003.encode(rpcrdma.Header(1, 32, rdma2003.RDMA_DONE)),
    )
    return [
        replace(SAID[n], payload=payload, from_client=n != 1) for n, payload in enumerate(heads)
    ]


@needs_tshark
def test_tshark_reads_messages_of_2003(tmp_path: Path) -> None:
    file = finds_no_fault(read_read(), tmp_path)
    reads = tshark(file, "rpc.procedure == 6", "rpc.msgtyp", "rpc.opaque_length")
    assert [row[0] for row in reads] == [["0"], ["1"]]
    assert reads[1][1][-1] == "9999"
    assert tshark(file, "rpcordma.msg_type == 3", "rpcordma.xid") == [[["0x00000001"]]]


def padded() -> list[Message]:
    """A WRITE and a READ whose data are behind padding, of NFSv3, and a READ of NFSv4."""
    head = conversations.HANDLE + struct.pack(">QIII", 0, 9, 2, 9)
    call = conversations.call(1, 7, head)
    data, result = b"123456789", struct.pack(">5I", 0, 0, 9, 1, 9)
    read_call = conversations.call(2, 6, conversations.HANDLE + struct.pack(">QI", 0, 9))
    pairs = (
        (rdma5666.call(1, call, len(call), data), conversations.reply(1, bytes(28))),
        (read_call, rdma5666.reply(2, conversations.reply(2, result), data)),
    )
    messages: list[Message] = []
    for xid, pair in enumerate(pairs, 1):
        for payload in pair:
            is_padded = payload[12:16] == struct.pack(">I", rdma5666.RDMA_MSGP)
            head = b"" if is_padded else rpcrdma.encode(rpcrdma.Header(xid, 32, 0))
            n = len(messages)
            messages.append(replace(SAID[n], payload=head + payload, from_client=n % 2 == 0))
    return messages


@needs_tshark
def test_tshark_reads_messages_with_padding(tmp_path: Path) -> None:
    file = finds_no_fault(padded(), tmp_path)
    rows = tshark(file, "nfs.data", "rpc.procedure", "nfs.data")
    assert rows == [[["7"], [b"123456789".hex()]], [["6"], [b"123456789".hex()]]]


def test_messages_of_2003_are_followed() -> None:
    (exchange,), _ = followed(conversations.written(read_read()))
    assert exchange.procedure == "NFSv3 READ"
    assert exchange.reply and exchange.reply.read == 9999
    assert any("that of 2003" in note for note in exchange.notes)


def test_each_call_is_followed_to_its_reply() -> None:
    exchanges, follower = followed(CAPTURE)
    assert [e.head.xid if e.head else e.call.xid for e in exchanges] == list(range(1, 9))
    assert {e.duration for e in exchanges} == {conversations.STEP}
    assert [e.procedure for e in exchanges][1:4] == ["NFSv3 READ", "NFSv3 READ", "NFSv3 WRITE"]
    assert exchanges[-1].procedure == "NFSv4 READ x 3"
    (connection,) = follower.connections.values()
    assert (connection.calls, connection.replies, connection.retransmitted) == (8, 8, 0)
    assert (connection.asked, connection.granted, connection.port) == (128, (64, 64), 20049)
    assert connection.outstanding == 0


def test_a_key_that_was_used_is_replaced_and_named() -> None:
    exchanges, _ = followed(CAPTURE)
    first, again = (pair for pair in exchanges if pair.procedure == "NFSv3 READ")
    assert first.call.writes != again.call.writes
    for exchange in (first, again):
        assert exchange.reply
        assert exchange.call.writes[0][0].handle == exchange.reply.writes[0][0].handle
    was = first.call.writes[0][0].handle
    assert any(f"0x{was:08x}" in note for note in again.notes)
    assert not first.notes


def test_of_several_write_chunks_the_reply_is_whole() -> None:
    exchanges, _ = followed(CAPTURE)
    reply = exchanges[-1].reply
    assert reply and reply.writes == ()
    # three lengths with their padding
    assert exchanges[-1].reply_size > 4096 + 4004 + 10000
    assert "data in 3 Write chunks on the wire, written inline here" in exchanges[-1].notes


def test_what_is_unknown_in_front_of_data_leaves_the_reply_as_it_is() -> None:
    messages = list(SAID)
    # operation 22 (PUTFH) becomes one whose result has no known length
    payload = messages[-1].payload.replace(
        struct.pack(">III", 22, 0, 25), struct.pack(">III", 62, 0, 25)
    )
    assert payload != messages[-1].payload
    messages[-1] = replace(messages[-1], payload=payload)
    exchanges, _ = followed(conversations.written(messages))
    reply = exchanges[-1].reply
    assert reply and len(reply.writes) == 3


def test_losses_and_counts_are_in_the_file() -> None:
    capture = conversations.written(SAID, lost=3)
    assert sum(frame.dropped for frame in read(capture)) == 3
    assert f"{len(SAID)} messages, 3 lost".encode() in capture
    findings = examined(capture)
    assert [finding.found.split()[0] for finding in findings if finding.name == "losses"] == ["3"]


def test_a_long_message_that_was_not_captured_is_named() -> None:
    messages = [replace(message, long=b"") for message in SAID]
    exchanges, _ = followed(conversations.written(messages))
    texts = [note for exchange in exchanges for note in exchange.notes]
    assert "the Reply in the Reply chunk was not captured: made up, zeros" in texts


@needs_tshark
def test_tshark_pairs_long_replies_that_were_not_captured(tmp_path: Path) -> None:
    messages = [replace(m, long=m.long if m.from_client else b"") for m in SAID]
    assert messages != SAID
    file = finds_no_fault(messages, tmp_path)
    xids = [tshark(file, f"rpc.msgtyp == {kind}", "rpc.xid") for kind in (0, 1)]
    assert xids[0] == xids[1]


def test_frames_have_both_checksums() -> None:
    for frame in read(CAPTURE):
        ip = frame.data[14:34]
        total = sum(struct.unpack(">10H", ip))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
        masked = bytearray(b"\xff" * 8 + frame.data[14:-4])
        for at in (9, 16, 18, 19, 34, 35, 40):
            masked[at] = 0xFF
        assert _crc(masked) == int.from_bytes(frame.data[-4:], "little")


def _crc(data: bytes | bytearray) -> int:
    """CRC-32 of Ethernet, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_addresses_of_ipv6_are_kept() -> None:
    name = replace(conversations.NAME, client="fd00::11", server="fd00::1")
    exchanges, _ = followed(conversations.written([replace(m, connection=name) for m in SAID]))
    assert {(e.client, e.server) for e in exchanges} == {("fd00::11", "fd00::1")}


def test_numbers_of_packets_never_repeat() -> None:
    numbers: dict[int, list[int]] = {}
    for frame in read(CAPTURE):
        packet = roce.packet(frame.link, frame.data, frame.length)
        assert packet
        if packet.opcode in (*roce.SENDS, *roce.WRITES, roce.READ_REQUEST):
            numbers.setdefault(packet.queue_pair, []).append(packet.number)
    assert len(numbers) == 2
    assert all(a < b for many in numbers.values() for a, b in pairwise(many))


def test_private_data_of_both_ends_are_found() -> None:
    head = struct.pack(">IB", 0xF6AB0E18, 1)
    private = head + bytes((1, 3, 3)), head + bytes((0, 7, 3))
    name = replace(conversations.NAME, private=private)
    _, follower = followed(conversations.written([replace(m, connection=name) for m in SAID]))
    (connection,) = follower.connections.values()
    assert connection.privates["client"] == private_data(private[0])
    assert connection.privates["server"].send_size == 8192
    assert connection.privates["client"].remote_invalidation


def _changed(change: Sequence[tuple[int, bytes]]) -> bytes:
    capture = bytearray(CAPTURE)
    for place, piece in change:
        at = place % len(capture)
        capture[at : at + len(piece)] = piece
    return bytes(capture)


CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), max_size=6
)


@given(CHANGES, st.integers(0, len(CAPTURE)))
def test_a_damaged_capture_is_read_or_refused(
    change: Sequence[tuple[int, bytes]], end: int
) -> None:
    try:
        examined(_changed(change)[:end])
    except UserError as error:
        assert "capture" in str(error)


@given(st.binary(max_size=200))
def test_a_file_of_anything_is_refused(data: bytes) -> None:
    for magic in (b"", b"\xd4\xc3\xb2\xa1", b"\n\r\r\n", CAPTURE[:28]):
        try:
            list(frames(io.BytesIO(magic + data)))
        except UserError as error:
            assert "capture" in str(error)


@given(st.sampled_from((ETHERNET, INFINIBAND, 113)), st.binary(max_size=120), st.integers(0, 200))
def test_a_frame_of_anything_is_a_packet_or_none(link: int, data: bytes, length: int) -> None:
    start = read(CAPTURE)[5].data[:42]
    for whole in (data, start + data):
        packet = roce.packet(link, whole, length)
        assert packet is None or len(packet.payload) <= len(whole)


@given(mutations(rpcrdma, HEADERS))
def test_both_decoders_read_a_header_or_refuse_it(message: bytes) -> None:
    try:
        theirs, size = rpcrdma.decode(message)
    except RefusedError:
        # this one also reads headers that a kernel refuses: a capture shows them
        with contextlib.suppress(ValueError):
            header(message)
        return
    ours = header(message)
    assert ours.size == size
    assert (ours.xid, ours.credits, ours.procedure) == (theirs.xid, theirs.credits, theirs.proc)
    assert [tuple(s) for c in ours.writes for s in c] == [
        (s.handle, s.length, s.offset) for c in theirs.writes for s in c
    ]


@given(st.binary(max_size=300), st.lists(st.integers(0, 1 << 30), max_size=4))
def test_rpc_and_cm_message_of_anything_are_refused(data: bytes, lengths: list[int]) -> None:
    start = conversations.call(1, 1, b"", version=4)
    for message in (data, start + data):
        try:
            assert rpc.name(rpc.rpc(message), message)
        except ValueError:
            assert message is data
    rpc.result_positions(conversations.reply(1, data), lengths)
    management.cm_message(data)


@given(st.lists(st.tuples(st.booleans(), mutations(rpcrdma, HEADERS)), max_size=8))
def test_messages_of_anything_are_written(payloads: list[tuple[bool, bytes]]) -> None:
    """A peer's message is a stranger's, too: small lists only, because data are written out."""
    talk = [
        replace(SAID[0], from_client=client, payload=payload)
        for client, payload in payloads
        if _moved(payload) < 1 << 20
    ]
    if talk:
        capture = conversations.written(talk)
        assert followed(capture)[1].rdma == len(read(capture))


def _moved(payload: bytes) -> int:
    try:
        head = header(payload)
    except ValueError:
        return 0
    return head.read + head.written


def test_a_message_with_huge_chunks_is_written_without_them() -> None:
    segment = rpcrdma.Segment(1, (1 << 32) - 1, 0)
    head = rpcrdma.Header(1, 1, rpcrdma.RDMA_MSG, writes=((segment,),))
    payload = rpcrdma.encode(head) + conversations.reply(1, b"")
    capture = conversations.written([replace(SAID[0], from_client=False, payload=payload)])
    assert len(capture) < 4096
    assert b"more than a capture shows" in capture


def call_with_chunk(length: int, position: int = 40) -> bytes:
    segment = rpcrdma.Segment(1, length, 0)
    head = rpcrdma.Header(1, 1, rpcrdma.RDMA_MSG, reads=(rpcrdma.Read(position, (segment,)),))
    return rpcrdma.encode(head) + bytes(40)


def test_a_message_has_few_bytes_that_were_not_seen() -> None:
    for length in (1 << 26, (1 << 22) + 1, (1 << 32) - 1):
        message = replace(SAID[0], payload=call_with_chunk(length))
        capture = conversations.written([message])
        assert len(capture) < 4096
        assert b"more than a capture shows" in capture
    # what the probe saw does not count
    seen = replace(message, payload=call_with_chunk(1 << 22), data={1: bytes(1 << 20)})
    assert 1 << 22 < len(conversations.written([seen])) < 5 << 20


def test_a_file_has_no_end_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MOST_ZEROS_IN_ALL", 5 << 20)
    message = replace(SAID[0], payload=call_with_chunk(1 << 20))
    size = len(conversations.written([message]))
    assert size > 1 << 20
    assert len(conversations.written([message] * 50)) < 6 * size


def resent(capture: bytes) -> bytes:
    """The frames of a pcap with each frame twice, one lost packet, and RNR."""
    records = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, ETHERNET)]
    server, client = (
        roce.Endpoint(ip_address(address), 1, bytes(6))
        for address in (conversations.SERVER, conversations.CLIENT)
    )
    not_ready = roce.frame(server, client, roce.ACKNOWLEDGE, 1, b"", struct.pack(">I", 0x21000001))
    nak = roce.frame(server, client, roce.ACKNOWLEDGE, 1, b"", struct.pack(">I", 0x60000001))
    for frame in read(capture):
        seconds, rest = divmod(frame.time, 10**9)
        for data in (frame.data, frame.data, not_ready, nak):
            head = struct.pack("<IIII", seconds, rest // 1000, len(data), len(data))
            records.append(head + data)
    return b"".join(records)


def test_a_sniffers_file_shows_what_was_sent_again() -> None:
    texts = "\n".join(finding.found for finding in examined(resent(CAPTURE)))
    assert "packets were sent again" in texts
    assert "receiver was not ready (RNR)" in texts
    assert "packets out of sequence" in texts
    # it is still one Reply to each Call
    assert "8 Calls, 8 Replies" in texts


def test_a_slow_reply_and_a_missing_one_are_found() -> None:
    late = int(examine.SLOW * 1e9) + 1
    messages = [replace(m, time=m.time + late) if n == 1 else m for n, m in enumerate(SAID[:3])]
    findings = examined(conversations.written(messages))
    warnings = [finding.found for finding in findings if finding.status == "warning"]
    assert any("NFSv3 NULL took" in text for text in warnings)
    assert "1 Calls without a Reply in the capture" in warnings


def test_credits_that_are_all_in_use_are_a_warning() -> None:
    payload = rpcrdma.encode(rpcrdma.Header(1, 1, 0)) + conversations.reply(1, b"")
    messages = [SAID[0], replace(SAID[1], payload=payload)]
    findings = examined(conversations.written(messages))
    assert [f.status for f in findings if f.found.startswith("credits")] == ["warning"]


def test_a_capture_without_rdma_is_an_error() -> None:
    file = io.BytesIO()
    Writer(file, "eth0", "a test").frame(0, bytes(60))
    (finding,) = examined(file.getvalue())
    assert finding.status == "error"


def test_a_frame_that_was_cut_is_named() -> None:
    finding, *_ = examined(pcap(ETHERNET, *(frame.data for frame in read(CAPTURE)), snaplen=80))
    assert (finding.status, finding.remedy) == ("warning", "tcpdump -s 0")


def test_commands_print_a_capture(file: Path) -> None:
    printed = CliRunner().invoke(app, ["capture", "--read", str(file)])
    assert printed.exit_code == 0
    assert len(printed.output.splitlines()) == conversations.CALLS
    assert "0x00000002 NFSv3 READ call 160 reply 96 written 9999" in printed.output
    examined = CliRunner().invoke(app, ["doctor", "--capture", str(file), "--json"])
    assert examined.exit_code == 0
    names = {finding["name"] for finding in json.loads(examined.output)["findings"]}
    assert names == {"capture", f"{conversations.CLIENT} to {conversations.SERVER}"}


def pcap(link: int, *data: bytes, snaplen: int = 0xFFFF) -> bytes:
    """A pcap file with the frames, cut at a length."""
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snaplen, link)
    cut = ((frame[:snaplen], len(frame)) for frame in data)
    return head + b"".join(struct.pack("<IIII", 0, 0, len(f), size) + f for f, size in cut)


def printed_of(capture: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "file").write_bytes(capture)
    return nfsrdma("capture", "-r", "file", cwd=folder)


def test_a_capture_that_ends_within_a_frame_is_read_up_to_there(tmp_path: Path) -> None:
    data = [frame.data for frame in read(CAPTURE)]
    for whole in (pcap(ETHERNET, *data), CAPTURE[: CAPTURE.index(data[-1]) + len(data[-1]) + 8]):
        # behind the frame in front of the last one, and within the last one
        end = whole.index(data[-1])
        for cut in (end - 3, end + 1):
            done = printed_of(whole[:cut], tmp_path)
            assert (done.returncode, len(done.stdout.splitlines())) == (0, conversations.CALLS)
            assert done.stderr == f"nfsrdma: file ends in the middle of frame {len(data)}\n"
            finding, *_ = examined(whole[:cut])
            assert finding.status == "warning"
            assert f"the file ends in the middle of frame {len(data)}" in finding.found
    for whole in (pcap(ETHERNET, *data), CAPTURE):
        assert printed_of(whole, tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        (pcap(147, b"user"), "file: link type 147 is not supported, expected 1 (Ethernet) or 247"),
        (pcap(ETHERNET), "file: no RDMA frame among 0 frames"),
        (pcap(ETHERNET, bytes(60), bytes(60)), "file: no RDMA frame among 2 frames"),
        (pcap(ETHERNET)[:23], "the file ends in the middle of its header"),
    ],
    ids=["link-type", "no-frame", "no-rdma", "header"],
)
def test_a_capture_without_rdma_is_refused(capture: bytes, message: str, tmp_path: Path) -> None:
    printed = printed_of(capture, tmp_path)
    assert (printed.returncode, printed.stdout) == (1, "")
    assert message in printed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either --write FILE or --read FILE"),
        (("-w", "a", "-r", "b"), "either --write FILE or --read FILE"),
        (("-w", "a", "--data", "all"), "unknown kind 'all'"),
        (("-r", "a", "--count", "1"), "has no other options"),
    ],
)
def test_options_that_conflict_are_refused(words: tuple[str, ...], message: str) -> None:
    refused = CliRunner().invoke(app, ["capture", *words])
    assert message in str(refused.exception)


def test_a_capture_needs_root_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    refused = CliRunner().invoke(app, ["capture", "-w", str(tmp_path / "file")])
    assert "only root may attach probes" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


class FakeListener:
    """Attached probes that saw a conversation; each poll returns four messages."""

    def __init__(self, messages: Sequence[Message], lost: int = 0) -> None:
        self.said, self.stopped, self._lost = list(messages), False, lost
        self.missing: tuple[str, ...] = ()

    def messages(self, timeout: float = 0.1) -> Iterator[Message]:
        many = 4 if timeout else len(self.said)
        now, self.said = self.said[:many], self.said[many:]
        yield from now

    def stop(self) -> None:
        self.stopped = True

    def lost(self) -> int:
        return min(self._lost, 1)

    def total_lost(self) -> int:
        assert self.stopped
        return self._lost

    def unknown(self) -> int:
        return 0


def recorded(
    monkeypatch: pytest.MonkeyPatch, file: Path, listener: FakeListener, *words: str
) -> tuple[int, str]:
    """How many messages of the conversation a capture has, and what the command said."""

    @contextlib.contextmanager
    def listening(snaplen: int, data: bool) -> Iterator[FakeListener]:
        assert (snaplen, data) == (8192, False)
        yield listener

    monkeypatch.setattr(probes, "listening", listening)
    ended = CliRunner().invoke(app, ["capture", "-w", str(file), "--seconds", "0.2", *words])
    assert ended.exit_code == 0, ended.output
    exchanges, follower = followed(file.read_bytes())
    assert listener.stopped
    replies = sum(1 for exchange in exchanges if exchange.answered)
    return len(exchanges) + replies, f"{ended.output}{follower.dropped}"


def test_a_capture_is_recorded_with_its_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    many, output = recorded(monkeypatch, file, FakeListener(SAID, lost=5))
    assert many == len(SAID)
    assert f"nfsrdma: {len(SAID)} messages, 5 lost" in output
    # one was noticed while it ran, the others at the end, behind all packets
    assert sum(frame.dropped for frame in read(file.read_bytes())) == 1
    assert output.endswith("5")
    assert f"{len(SAID)} messages, 5 lost".encode() in file.read_bytes()


@pytest.mark.parametrize(
    ("words", "many"),
    [(("--count", "6"), 6), (("--client", conversations.CLIENT), len(SAID)),
     (("--client", "10.9.1.12"), 0), (("--xprt", "0"), len(SAID)), (("--xprt", "1"), 0)],
)  # fmt: skip
def test_a_capture_has_what_is_wanted(
    words: tuple[str, ...], many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, output = recorded(monkeypatch, tmp_path / "file", FakeListener(SAID), *words)
    assert count == many
    assert f"nfsrdma: {many} messages, 0 lost" in output


def test_a_mount_is_captured_by_its_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_clients, "clients", dict)
    mounts = {0: ("/mnt/data",), 1: ("/mnt/other",)}
    monkeypatch.setattr(rpc_clients, "mounts_of_transports", lambda _: mounts)
    for mount, many in (("/mnt/data", len(SAID)), ("/mnt/other", 0)):
        listener = FakeListener(SAID)
        count, _ = recorded(monkeypatch, tmp_path / "file", listener, "--mount", mount)
        assert count == many
    refused = CliRunner().invoke(app, ["capture", "-w", "-", "--mount", "/mnt/none"])
    assert "no transport of a mount at /mnt/none" in str(refused.exception)
