# SPDX-License-Identifier: Apache-2.0
"""From the records of bpf/capture.c to messages, and the layout that the probes have."""

import ctypes
import mmap
import re
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import conversations, rpcrdma
from wire.rpcrdma import Header, Read, Segment

from nfsrdma_tools.capture import layout, messages, probes
from nfsrdma_tools.capture.conversation import Message
from nfsrdma_tools.capture.messages import ORIGINS, PARTS, Assembler, Part, part
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.probes import btf
from nfsrdma_tools.probes.btf import Btf

SOURCE = (Path(__file__).parents[3] / "bpf" / "capture.c").read_text()
LOCAL, PEER = (conversations.CLIENT, 1000), (conversations.SERVER, 20049)
EMPTY = Part(5, 1, 0, 0, False, 0, 0, 7, 8, 9, 1, 0, 0, 0, LOCAL, PEER, b"")
OFFSET = 1000
Piece = bytes | tuple[int, bytes]


def said(origin: str, parts: Mapping[str, Piece], number: int = 1) -> list[Part]:
    """The records of a message; a part may be cut: its length and what was captured."""
    records: list[Part] = []
    first = EMPTY._replace(origin=ORIGINS.index(origin), message=number)
    if origin in ("call received", "reply sent"):
        first = first._replace(local=PEER, peer=LOCAL)
    for name, value in parts.items():
        total, data = (len(value), value) if isinstance(value, bytes) else value
        which = PARTS.index(name)
        records.append(
            first._replace(part=which, total=total, captured=data, records=len(records) + 1)
        )
    return [*records, first._replace(last=True, records=len(records) + 1)]


def result(xid: bytes, position: int, length: int) -> Part:
    return EMPTY._replace(
        origin=ORIGINS.index("result"), last=True, local=PEER, peer=LOCAL, position=position,
        total=length, xid=int.from_bytes(xid, sys.byteorder),
    )  # fmt: skip


def fed(assembler: Assembler, records: Iterable[Part]) -> list[Message]:
    return [message for record in records for message in assembler.feed(record)]


def made(*records: Part) -> Message:
    assembler = Assembler(OFFSET)
    (message,) = fed(assembler, records)
    assert assembler.lost == assembler.unknown == 0
    return message


def test_names_are_those_of_the_program() -> None:
    def enum(name: str) -> list[str]:
        match = re.search(rf"enum {name} {{\s(.*?)\s}};", SOURCE, re.DOTALL)
        assert match
        return [word.replace("_", " ").lower() for word in re.split(r",\s+", match[1].strip())]

    assert (enum("origin"), enum("part")) == (list(ORIGINS), list(PARTS))


def test_records_have_the_fields_of_the_program() -> None:
    body = re.search(r"struct part_record \{(.*?)\n\};", SOURCE, re.DOTALL)
    assert body
    kinds = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32}
    fields = re.findall(r"^\t(u64|u32|unsigned char) (\w+)(?:\[(\w+)[^]]*\])?;", body[1], re.M)
    assert fields[-1][1] == "bytes"
    members = [
        (name, ctypes.c_ubyte * 28 if size else kinds[kind]) for kind, name, size in fields[:-1]
    ]
    record = type("record", (ctypes.Structure,), {"_fields_": members})
    raw = record()
    for n, (name, kind) in enumerate(members):
        if kind in kinds.values():
            setattr(raw, name, n + 100)
    address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s", 7, bytes((10, 0, 0, 1)))
    ctypes.memmove(ctypes.addressof(raw) + record.local.offset, address, len(address))  # type: ignore[attr-defined]
    decoded = part(bytes(raw) + b"x" * 300)
    assert (decoded.local, decoded.peer) == (("10.0.0.1", 7), ("", 0))
    names = {"last": True, "part": 103}
    for n, (name, kind) in enumerate(members):
        if kind in kinds.values() and name not in ("captured", "reserved"):
            assert getattr(decoded, name) == names.get(name, n + 100), name
    assert decoded.captured == b"x" * (100 + [name for name, _ in members].index("captured"))


def test_every_offset_of_the_program_is_defined_and_used() -> None:
    used = set(re.findall(r"\bOFFSET_(\w+)", SOURCE)) - {""}
    assert used == set(layout._OFFSETS)
    assert set(re.findall(r"^RAW\((\w+)\)", SOURCE, re.M)) == set(layout.RAW)
    functions = set(re.findall(r"^int (capture_\w+)\(void \*ctx\)", SOURCE, re.M))
    assert functions == set(layout.FUNCTIONS.values())


HEAD = conversations.call(1, 7, conversations.HANDLE + struct.pack(">QIII", 0, 9, 2, 9))


@pytest.mark.parametrize("sent", (True, False))
@pytest.mark.parametrize("server", (True, False))
def test_a_message_of_nfsrdma_is_in_one_piece(sent: bool, server: bool) -> None:
    whole = rpcrdma.encode(Header(1, 128, 0)) + HEAD
    records = said(f"message {'sent' if sent else 'received'}", {"whole": whole})
    number = 0x80000003 if server else 3
    message = made(*(record._replace(transport=number) for record in records))
    ends = (PEER[0], LOCAL[0]) if server else (LOCAL[0], PEER[0])
    assert (message.connection.client, message.connection.server) == ends
    assert message.payload == whole
    assert (message.outbound, message.from_client) == (sent, sent != server)
    assert message.notes == ("transport 3 of nfsrdma",)


def test_a_call_with_inline_data_is_whole() -> None:
    header = rpcrdma.encode(Header(1, 128, 0))
    body = {"head": HEAD, "pages": b"123456789", "tail": bytes(3)}
    message = made(*said("call sent", {"whole": header, **body}))
    assert message.payload == header + HEAD + b"123456789" + bytes(3)
    assert (message.time, message.from_client, message.outbound) == (5 + OFFSET, True, True)
    assert (message.connection.client, message.connection.server) == (LOCAL[0], PEER[0])
    assert (message.connection.number, message.missing) == (9, 0)
    assert message.notes == ("transport 9, task 8@7",)


def test_inline_data_that_were_not_copied_are_counted() -> None:
    header = rpcrdma.encode(Header(1, 128, 0))
    parts: dict[str, Piece]
    parts = {"whole": header, "head": HEAD, "pages": (9, b"12"), "tail": bytes(3)}
    message = made(*said("call sent", parts))
    assert message.payload == header + HEAD + b"12" + bytes(7) + bytes(3)
    assert message.missing == 7


@pytest.mark.parametrize(
    ("tail", "rest"), [(bytes(3), b""), (bytes(3) + b"more", b"more"), (b"", b"")]
)
def test_data_of_a_read_chunk_are_not_inline(tail: bytes, rest: bytes) -> None:
    """Padding of up to 3 bytes in front of the tail is part of the chunk."""
    header = rpcrdma.encode(Header(1, 128, 0, reads=(Read(len(HEAD), (Segment(5, 9, 0),)),)))
    parts: dict[str, Piece]
    parts = {"whole": header, "head": HEAD, "pages": (9, b"1234"), "tail": tail}
    message = made(*said("call sent", parts))
    assert message.payload == header + HEAD + rest
    assert (message.data, message.missing) == ({5: b"1234"}, 0)


def test_data_that_are_not_wanted_are_not_in_the_message() -> None:
    header = rpcrdma.encode(Header(1, 128, 0, reads=(Read(len(HEAD), (Segment(5, 9, 0),)),)))
    records = said("call sent", {"whole": header, "head": HEAD, "pages": b"123456789"})
    (message,) = fed(Assembler(0, data=False), records)
    assert message.data == {}


def test_a_long_call_is_all_in_its_chunk() -> None:
    header = rpcrdma.encode(Header(1, 128, 1, reads=(Read(0, (Segment(5, 400, 0),)),)))
    message = made(*said("call sent", {"whole": header, "head": HEAD, "tail": b"t" * 300}))
    assert (message.payload, message.long) == (header, HEAD + b"t" * 300)
    cut = made(*said("call sent", {"whole": header, "head": HEAD, "tail": (300, b"t" * 100)}))
    assert cut.long == b""
    assert any("200 bytes of the long message" in note for note in cut.notes)


def test_a_received_reply_has_the_data_of_its_chunks() -> None:
    chunks = ((Segment(5, 4, 0), Segment(6, 4, 0)),)
    whole = rpcrdma.encode(Header(1, 64, 0, writes=chunks)) + conversations.reply(1, bytes(8))
    message = made(*said("reply received", {"whole": whole, "pages": (8, b"abcdef")}))
    assert (message.payload, message.data) == (whole, {5: b"abcd", 6: b"ef"})
    assert (message.from_client, message.outbound) == (False, False)


def test_a_received_long_reply_ends_where_the_chunk_ends() -> None:
    whole = rpcrdma.encode(Header(1, 64, 1, reply=(Segment(5, 30, 0),)))
    body = {"head": conversations.reply(1, b""), "pages": b"p" * 20}
    message = made(*said("reply received", {"whole": whole, **body}))
    assert message.long == conversations.reply(1, b"") + b"p" * 6


def test_a_callback_gets_a_header() -> None:
    call = conversations.call(3, 1, bytes(20))
    message = made(*said("callback received", {"head": call}))
    assert rpcrdma.decode(message.payload)[0] == Header(3, 1, 0)
    assert message.payload.endswith(call)
    assert (message.from_client, message.outbound) == (False, False)


def test_a_sent_reply_is_reduced_by_its_results() -> None:
    chunks = ((Segment(5, 5, 0),), (Segment(6, 4, 0),))
    whole = rpcrdma.encode(Header(1, 64, 0, writes=chunks))
    head = conversations.reply(1, b"one.")
    # 5 bytes with padding, an operation, 4 bytes
    pages = b"AAAAA\0\0\0two.BBBB"
    xid = struct.pack(">I", 1)
    message = made(
        result(xid, len(head), 5),
        result(xid, len(head) + 12, 4),
        *said("reply sent", {"whole": whole, "head": head, "pages": pages, "tail": b"end."}),
    )
    assert message.payload == whole + head + b"two." + b"end."
    assert message.data == {5: b"AAAAA", 6: b"BBBB"}
    assert message.positions == (len(head), len(head) + 4)
    assert (message.connection.client, message.outbound) == (LOCAL[0], True)


def test_results_of_others_are_not_taken() -> None:
    chunks = ((Segment(5, 8, 0),),)
    whole = rpcrdma.encode(Header(1, 64, 0, writes=chunks))
    head = conversations.reply(1, b"one.")
    message = made(
        result(struct.pack(">I", 2), 0, 5),
        *said("reply sent", {"whole": whole, "head": head, "pages": b"D" * 8}),
    )
    # without its results, pages are taken for the data
    assert (message.payload, message.data) == (whole + head, {5: b"D" * 8})


def test_a_record_that_was_lost_is_a_lost_message() -> None:
    header = rpcrdma.encode(Header(1, 128, 0))
    records = said("call sent", {"whole": header, "head": HEAD, "tail": bytes(4)})
    for missing in range(len(records)):
        assembler = Assembler(0)
        assert fed(assembler, (record for n, record in enumerate(records) if n != missing)) == []
        # the last record is missed only by the count of messages that began
        assert (assembler.complete, assembler.lost) == (0, int(missing < len(records) - 1))


def test_messages_of_two_processors_are_mixed() -> None:
    header = rpcrdma.encode(Header(1, 128, 0))
    first = said("call sent", {"whole": header, "head": HEAD})
    other = said("call sent", {"whole": header, "head": HEAD}, number=1 << 48 | 1)
    assembler = Assembler(0)
    complete = fed(assembler, chain.from_iterable(zip(first, other, strict=True)))
    assert len(complete) == assembler.complete == 2


def test_a_connection_without_addresses_is_counted() -> None:
    assembler = Assembler(0)
    records = said("call sent", {"whole": rpcrdma.encode(Header(1, 128, 0))})
    assert fed(assembler, (record._replace(peer=("", 0)) for record in records)) == []
    assert (assembler.complete, assembler.unknown) == (1, 1)


@given(st.lists(st.binary(max_size=400), max_size=20))
def test_records_of_anything_are_taken(raw: list[bytes]) -> None:
    """The kernel's records are sound, but what they carry is a peer's."""
    assembler = Assembler(0)
    for data in raw:
        record = part(data.ljust(messages._RECORD.size, b"\0"))
        # a total is the kernel's own; only the peer's bytes are anything
        bounded = record._replace(total=record.total % 9000, at=record.at % 9000)
        for origin in range(len(ORIGINS)):
            for last in (False, True):
                list(assembler.feed(bounded._replace(origin=origin, last=last)))


def blob(types: bytes, strings: bytes) -> bytes:
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return head + types + strings


def kind(name: int, kind: int, size: int, members: tuple[tuple[int, ...], ...] = ()) -> bytes:
    packed = b"".join(struct.pack(f"<{len(member)}I", *member) for member in members)
    return struct.pack("<III", name, kind << 24 | len(members), size) + packed


# struct page { u64 flags; struct { u64 deep; }; } and a pointer to it
STRINGS = b"\0page\0flags\0deep\0"
BASE = blob(
    kind(0, 1, 8) + struct.pack("<I", 64)
    + kind(0, 4, 8, ((12, 1, 0),))
    + kind(1, 4, 16, ((6, 1, 0), (0, 2, 64)))
    + kind(0, 2, 3),
    STRINGS,
)  # fmt: skip
# struct req { u32; struct page *page; struct page own; } and f(int, struct page *)
MODULE_STRINGS = b"req\0own\0f\0page_pointer\0"
FIRST = len(STRINGS)
MODULE = blob(
    kind(FIRST, 4, 24, ((FIRST + 10, 4, 0), (FIRST + 4, 3, 64)))
    + kind(0, 13, 0, ((0, 1), (0, 4)))
    + kind(FIRST + 8, 12, 6),
    MODULE_STRINGS,
)


def test_offsets_are_those_of_the_types() -> None:
    base = Btf(BASE)
    module = Btf(MODULE, base)
    # "deep" is of an unnamed structure
    assert (base.offset("page", "flags"), base.offset("page", "deep")) == (0, 8)
    assert (module.offset("req", "own"), module.offset("req", "own", "deep")) == (8, 16)
    assert (module.size("page"), module.argument("f", "page")) == (16, 1)
    assert (module.has_function("f"), module.has_function("g")) == (True, False)
    for call, words, message in (
        (module.offset, ("req", "other"), "struct req has no other"),
        (module.offset, ("none", "x"), "no struct none"),
        (module.argument, ("f", "req"), "no argument struct req"),
    ):
        with pytest.raises(KeyError, match=message):
            call(*words)


REGISTERS_STRINGS = b"\0pt_regs\0di\0si\0dx\0cx\0r8\0regs\0"
# struct pt_regs { long r8, cx, dx, si, di; struct { long regs[31]; }; }, more or less
REGISTERS = blob(
    kind(0, 1, 8) + struct.pack("<I", 64) + kind(24, 4, 8, ((24, 1, 0),))
    + kind(1, 4, 48, ((21, 1, 0), (18, 1, 64), (15, 1, 128), (12, 1, 192), (9, 1, 256),
                      (0, 2, 320))),
    REGISTERS_STRINGS,
)  # fmt: skip


def test_arguments_are_in_the_registers_of_the_machine() -> None:
    types = Btf(REGISTERS)
    assert layout._arguments(types, "x86_64") == [32, 24, 16, 8, 0]
    assert layout._arguments(types, "aarch64") == [40, 48, 56, 64, 72]
    assert layout._arguments(types, "loongarch64")[0] == 40 + 8 * 4
    for machine, missing in (("riscv64", "has no a0"), ("sparc64", "no registers of sparc64")):
        with pytest.raises(KeyError, match=missing):
            layout._arguments(types, machine)


def test_types_of_a_kernel_are_loaded_or_an_error(tmp_path: Path) -> None:
    machine = Machine(sysfs=tmp_path)
    folder = machine.path("sys/kernel/btf")
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="cannot read the kernel's type information"):
        btf.load(("rpcrdma",), machine)
    (folder / "vmlinux").write_bytes(BASE)
    assert btf.load(("rpcrdma",), machine) == {}
    (folder / "rpcrdma").write_bytes(MODULE)
    assert btf.load(("rpcrdma",), machine)["rpcrdma"].has_function("f")
    (folder / "rpcrdma").write_bytes(b"no BTF" * 9)
    with pytest.raises(UserError, match="no BTF"):
        btf.load(("rpcrdma",), machine)


def test_an_unknown_layout_is_an_error() -> None:
    with pytest.raises(UserError, match="rpcrdma is not known: no struct xdr_buf"):
        probes._flags(Btf(MODULE, Btf(BASE)), 8192, data=False)


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_the_ring_has_as_many_bytes_with_pages_of_any_size(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    flags = probes._flags(None, 8192, data=False)
    (pages,) = [flag.partition("=")[2] for flag in flags if flag.startswith("-DRING_PAGES=")]
    # as the documentation of the command says
    assert int(pages) * page == 16 << 20


def test_the_events_of_nfsrdma_are_those_of_the_module() -> None:
    system, event = layout.OURS
    assert f"TRACEPOINT_PROBE({system}, {event})" in SOURCE
    header = (Path(__file__).parents[3] / "kmod/observe/trace.h").read_text()
    body = header.split(f"TRACE_EVENT({event},")[1].split("TP_printk")[0]
    used = set(re.findall(r"\bargs->(\w+)", SOURCE))
    fields = set(re.findall(r"__(?:field|array)\([\w ]+, (\w+)", body))
    assert used == fields == {"xprt", "length", "data", "sent", "local", "peer"}


def test_memory_of_pages_is_found_on_x86_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kallsyms = tmp_path / "kallsyms"
    monkeypatch.setattr("nfsrdma_tools.probes.kallsyms._KALLSYMS", kallsyms)
    kallsyms.write_text("ffffffff81000010 D vmemmap_base\nffffffff81000018 D page_offset_base\n")
    flags = probes._memory_of_pages("x86_64")
    assert flags == ["-DVMEMMAP=0xffffffff81000010ULL", "-DPAGE_OFFSET_BASE=0xffffffff81000018ULL"]
    assert probes._memory_of_pages("aarch64") == []
    # addresses are hidden
    kallsyms.write_text("0000000000000000 D vmemmap_base\n0000000000000000 D page_offset_base\n")
    assert probes._memory_of_pages("x86_64") == []


def test_messages_become_a_capture() -> None:
    """The records of a READ, at the client: the file has both messages and the head of the data."""
    chunks = ((Segment(5, 8192, 0x1000),),)
    call = conversations.call(1, 6, conversations.HANDLE + struct.pack(">QI", 0, 8192))
    reply = conversations.reply(1, struct.pack(">5I", 0, 0, 8192, 0, 8192))
    header = rpcrdma.encode(Header(1, 64, 0, writes=chunks))
    both = (
        made(*said("call sent", {"whole": header, "head": call})),
        made(*said("reply received", {"whole": header + reply, "pages": (8192, b"first bytes")})),
    )
    capture = conversations.written([replace(both[0], time=1), both[1]])
    assert capture.count(b"first bytes") == 1


def test_a_kernel_whose_modules_have_no_types_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Linux 5.10: tracefs has rpcrdma's events, and there is no file rpcrdma of BTF."""
    monkeypatch.setattr("nfsrdma_tools.probes.program.TRACEFS", tmp_path)
    (tmp_path / "events" / "rpcrdma").mkdir(parents=True)
    monkeypatch.setattr(probes, "check", lambda: None)
    monkeypatch.setattr(probes, "load", lambda _: {})
    with (
        pytest.raises(UserError, match="rpcrdma has no type information") as caught,
        probes.listening(128, data=False),
    ):
        pass
    assert "boot Linux 5.11 or later" in str(caught.value.hint)
    assert "nfsrdma trace" in str(caught.value.hint)
