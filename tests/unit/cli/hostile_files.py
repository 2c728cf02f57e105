# SPDX-License-Identifier: Apache-2.0
"""Captures and stores of at most 1 MiB that claim more than they have: a seed gives the same files.

Each is written here from the formats alone: pcap and pcapng from their drafts, stores with SQLite,
and, for what SQLite would not write, by changes of its pages (https://sqlite.org/fileformat2.html).
"""

# ruff: noqa: S608 -- the SQL of hostile stores
from __future__ import annotations

import json
import random
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from wire import conversations

from nfsrdma_tools.capture import management, roce
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store, Transfer, Trial

__all__ = ["CAPTURES", "LARGEST", "STORES", "capture", "store"]

LARGEST = 1 << 20
"""Bytes of a file."""
_RNG = random.Random(61)  # noqa: S311 - no secret

# ---- captures


def _pcap(records: Iterator[bytes], link: int = 1, magic: int = 0xA1B2C3D4) -> bytes:
    made = bytearray(struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 1 << 18, link))
    for data in records:
        if len(made) + len(data) + 16 > LARGEST:
            break
        made += struct.pack("<IIII", 1, 0, len(data), len(data)) + data
    return bytes(made)


def _block(kind: int, body: bytes, length: int | None = None) -> bytes:
    whole = len(body) + 12 if length is None else length
    return struct.pack("<II", kind, whole) + body + struct.pack("<I", whole)


_SECTION = _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))


def _interface(options: bytes = b"", link: int = 1) -> bytes:
    return _block(1, struct.pack("<HHI", link, 0, 0) + options)


def _enhanced(data: bytes, options: bytes = b"", which: int = 0, high: int = 0) -> bytes:
    head = struct.pack("<5I", which, high, 0, len(data), len(data))
    return _block(6, head + data + bytes(-len(data) % 4) + options)


def _filled(start: bytes, make: Callable[[int], bytes]) -> bytes:
    """``start`` and as many blocks as fit."""
    made, number = bytearray(start), 0
    while len(made) + len(block := make(number)) <= LARGEST:
        made += block
        number += 1
    return bytes(made)


def _end(number: int, queue_pair: int = 16) -> roce.Endpoint:
    return roce.Endpoint(ip_address(0x0A000000 + number), queue_pair, bytes(6))


_SERVER = _end(1)


def _send(payload: bytes, client: int = 2, opcode: int = 4, number: int = 1,
          queue_pair: int = 16) -> bytes:  # fmt: skip
    return roce.frame(_end(client), _end(1, queue_pair), opcode, number, payload)


def _call(xid: int, lists: bytes = bytes(12), procedure: int = 0, version: int = 1) -> bytes:
    body = conversations.call(xid, 6, b"") if procedure == 0 else b""
    return struct.pack(">4I", xid & 0xFFFFFFFF, version, 128, procedure) + lists + body


def _reads(count: int, position: Callable[[int], int], length: int) -> bytes:
    segments = (struct.pack(">4IQ", 1, position(n), n, length, 0) for n in range(count))
    return b"".join(segments) + bytes(12)


def _writes(chunks: int, segments: int, claimed: int | None = None) -> bytes:
    count = segments if claimed is None else claimed
    chunk = struct.pack(">II", 1, count) + struct.pack(">IIQ", 1, 0xFFFFFFFF, 0) * segments
    return bytes(4) + chunk * chunks + bytes(8)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


_BIG = 900_000
_NG = _SECTION + _interface()


def _big(payload: bytes) -> bytes:
    """A Send of up to 1 MiB in one frame of InfiniBand, which has no field of 16 bits for it."""
    lrh = struct.pack(">BBHHH", 0, 2, 1, 0, 2)
    return lrh + struct.pack(">BBHII", 4, 0, 0xFFFF, 16, 1) + payload + bytes(6)


def _infiniband(payload: bytes) -> bytes:
    return _pcap(iter([_big(payload)]), link=247)


def _many(frames: Callable[[int], bytes]) -> bytes:
    return _pcap(frames(number) for number in range(1 << 20))


def _managed(kind: int) -> Callable[[int], bytes]:
    def frame(number: int) -> bytes:
        private = struct.pack(">IBBBB", 0xF6AB0E18, 1, 1, 255, 255).ljust(56, b"\0")
        client = _end(2 + number)
        made = management.request(number, client, _SERVER, 1, private)
        made = made[:16] + struct.pack(">H", kind) + made[18:]
        return roce.datagram(client, _SERVER, number, made)

    return frame


def _random_words(limit: int) -> bytes:
    edges = (0, 1, 4, 5, 6, 12, 0xFFFFFFFF, 0x7FFFFFFF, 1 << 24, (1 << 24) - 4, 0x0A0D0D0A)
    return b"".join(struct.pack("<I", _RNG.choice(edges)) for _ in range(limit // 4))


CAPTURES: dict[str, Callable[[], bytes]] = {
    # lengths that are not there
    "frame of 4 GiB": lambda: _pcap(iter(())) + struct.pack("<4I", 0, 0, 0xFFFFFFFF, 0xFFFFFFFF),
    "frame of 16 MiB": lambda: _pcap(iter(())) + struct.pack("<4I", 0, 0, 1 << 24, 1 << 24),
    "4 GiB on the wire": lambda: _pcap(iter(())) + (
        struct.pack("<4I", 0, 0, 60, 0xFFFFFFFF) + _send(_call(1))[:60]) * 10000,
    "block of 4 GiB": lambda: _NG + struct.pack("<II", 6, 0xFFFFFFFC) + bytes(40),
    "block of 16 MiB": lambda: _NG + struct.pack("<II", 6, 1 << 24) + bytes(40),
    "block of 0": lambda: _NG + struct.pack("<II", 6, 0) * 1000,
    "block of 13": lambda: _NG + struct.pack("<II", 6, 13) + bytes(40),
    "section of 16 MiB": lambda: struct.pack("<III", 0x0A0D0D0A, 1 << 24, 0x1A2B3C4D) + bytes(999),
    "section without order": lambda: struct.pack("<III", 0x0A0D0D0A, 28, 7) + bytes(16),
    "frame longer than its block": lambda: _NG + _block(6, struct.pack("<5I", 0, 0, 0, 1 << 23, 0)),
    "simple frame of 4 GiB": lambda: _NG + _block(3, struct.pack("<I", 0xFFFFFFFF) + bytes(64)),
    "empty simple block": lambda: _NG + _block(3, b""),
    "empty enhanced block": lambda: _NG + _block(6, b""),
    "no interface": lambda: _SECTION + _enhanced(_send(_call(1))),
    # many of a kind
    "interfaces": lambda: _filled(_SECTION, lambda _: _interface()),
    "interfaces with options": lambda: _filled(
        _SECTION, lambda _: _interface(_option(9, b"\xff") + _option(2, b"x" * 60))),
    "sections": lambda: _filled(b"", lambda _: _SECTION),
    "resolution of 2^-127": lambda: _filled(
        _SECTION + _interface(_option(9, b"\xff")),
        lambda n: _enhanced(_send(_call(n)), high=0xFFFFFFFF)),
    "resolution of 10^-127": lambda: _filled(
        _SECTION + _interface(_option(9, b"\x7f")),
        lambda n: _enhanced(_send(_call(n)), high=0xFFFFFFFF)),
    "comments": lambda: _filled(_NG, lambda n: _enhanced(_send(_call(n)), _option(1, b"c") * 9)),
    "empty comments": lambda: _NG + _enhanced(_send(_call(1)), struct.pack("<HH", 1, 0) * 240_000),
    "long comments": lambda: _filled(_NG, lambda n: _enhanced(b"", _option(1, b"\xff" * 65535))),
    "option beyond its block": lambda: _NG + _enhanced(b"", struct.pack("<HH", 1, 65535)),
    "statistics": lambda: _filled(_NG, lambda n: _block(
        5, bytes(12) + _option(5, b"\xff" * 8))),
    "losses": lambda: _filled(_NG, lambda n: _enhanced(b"", _option(4, b"\xff" * 8))),
    "empty frames": lambda: _many(lambda _: b""),
    # of messages
    "connections": lambda: _many(lambda n: _send(_call(n), client=2 + n)),
    "connections that are requested": lambda: _many(_managed(0x10)),
    "connections that are rejected": lambda: _many(_managed(0x12)),
    "queue pairs": lambda: _many(lambda n: _send(b"x", opcode=0, queue_pair=n)),
    "Calls without a Reply": lambda: _many(lambda n: _send(_call(n))),
    "Calls that are sent again": lambda: _many(lambda n: _send(_call(7), number=n)),
    "versions": lambda: _many(lambda n: _send(_call(n, b"", 0, 2 + n), number=n)),
    "packets without an end": lambda: _many(lambda n: _send(bytes(4000), opcode=n and 1, number=n)),
    "packet numbers": lambda: _many(lambda n: _send(b"", opcode=4, number=n)),
    "vlans": lambda: _many(lambda _: bytes(12) + b"\x81\0\0\0" * 16000),
    "Read segments of 4 GiB": lambda: _infiniband(
        _call(1, _reads(_BIG // 24, lambda n: 0, 0xFFFFFFFF))),
    "Read chunks": lambda: _infiniband(_call(1, _reads(_BIG // 24, lambda n: n, 0xFFFFFFFF))),
    "Write segments": lambda: _infiniband(_call(1, _writes(1, _BIG // 16))),
    "Write chunks": lambda: _infiniband(_call(1, _writes(_BIG // 24, 1))),
    "empty Write chunks": lambda: _infiniband(_call(1, _writes(_BIG // 8, 0))),
    "chunk of 4 Gi segments": lambda: _infiniband(_call(1, _writes(1, 8, 0xFFFFFFFF))),
    "many chunks of 4 Gi segments": lambda: _many(
        lambda n: _send(_call(n, _writes(1, 8, 0x0FFFFFFF)), number=n)),
    "Read list of 2003": lambda: _infiniband(
        _call(1, _reads(_BIG // 24, lambda n: n, 0xFFFFFFFF), version=0)),
    "long Call with chunks": lambda: _many(
        lambda n: _send(_call(n, _reads(40, lambda n: 0, 1 << 31), 1), number=n)),
    "words": lambda: struct.pack("<I", 0x0A0D0D0A) + _random_words(LARGEST - 4),
    "random pcap": lambda: _pcap(_RNG.randbytes(_RNG.randrange(2000)) for _ in range(1 << 12)),
    "nanoseconds": lambda: _pcap((_RNG.randbytes(64) for _ in range(99999)), magic=0xA1B23C4D),
}  # fmt: skip
"""What makes the bytes of each capture."""


def _changed_captures() -> None:
    base = conversations.written(conversations.messages())

    def of(seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311 - no secret
        made = bytearray(base)
        for _ in range(rng.randint(1, 12)):
            at = 4 * rng.randrange(len(made) // 4)
            made[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 0xFFFFFFFF, 1 << 24, 64)))
        return bytes(made)

    for seed in range(8):
        CAPTURES[f"changed words {seed}"] = lambda seed=seed: of(seed)  # type: ignore[misc]


_changed_captures()


def capture(name: str, path: Path) -> Path:
    """Write the capture ``name``."""
    path.write_bytes(CAPTURES[name]()[:LARGEST])
    return path


# ---- stores

_PLAN = Plan("server:/export", uid="p", rsizes=(8192, 32768), read_aheads=(0, 1))


def _trials(plan: Plan, **more: object) -> list[Trial]:
    trial = Trial("p", plan.cells()[0], 1, 0, began="2026-01-02T03:04:05+00:00", **more)  # type: ignore[arg-type]
    return [
        replace(trial, cell=cell, order=at, transfer=Transfer(10**9, 1 << 20, 9.0 + at))
        for at, cell in enumerate(plan.cells())
    ]


@dataclass(frozen=True)
class _Made:
    """A store: ``change`` is applied to an honest one by SQL, ``pages`` to its bytes."""

    change: Sequence[str] = ()
    values: Sequence[object] = ()
    pages: Callable[[bytearray], None] | None = None
    plan: Plan = _PLAN
    trials: Callable[[], Sequence[Trial]] | None = None


def _set(column: str, value: object, table: str = "trials") -> _Made:
    return _Made([f'UPDATE {table} SET "{column}" = ? WHERE rowid = 1'], [value])


def _view(table: str, select: str) -> _Made:
    return _Made([f"ALTER TABLE {table} RENAME TO kept", f"CREATE VIEW {table} AS {select}"])


_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "


def _generated(expression: str) -> _Made:
    return _Made([
        "ALTER TABLE environments RENAME TO kept",
        f"CREATE TABLE environments (uid TEXT PRIMARY KEY, facts TEXT AS ({expression}))",
        "INSERT INTO environments (uid) VALUES ('a'), ('b'), ('c')",
    ])  # fmt: skip


def _first_pages(made: bytearray, size: int) -> list[int]:
    """Offsets of the leaf pages of tables."""
    return [at for at in range(0, len(made), size) if made[at] == 0x0D]


def _same_pages(made: bytearray) -> None:
    """Interior pages whose children are all one page: rows without end."""
    for at in range(4096, len(made), 4096):
        if made[at] != 0x05:
            continue
        count = int.from_bytes(made[at + 3 : at + 5], "big")
        cells = [int.from_bytes(made[at + 12 + 2 * n :][:2], "big") for n in range(count)]
        child = made[at + cells[0] : at + cells[0] + 4]
        for cell in cells:
            made[at + cell : at + cell + 4] = child


def _own_parent(made: bytearray) -> None:
    for at in range(4096, len(made), 4096):
        if made[at] == 0x05:
            made[at + 8 : at + 12] = struct.pack(">I", at // 4096 + 1)


def _huge_count(made: bytearray) -> None:
    made[28:32] = struct.pack(">I", 0xFFFFFFFE)
    made[92:96] = made[24:28]


def _overflow_loop(made: bytearray) -> None:
    """Overflow pages that follow each other in a circle."""
    for at in range(4096, len(made), 4096):
        if made[at] == 0 and int.from_bytes(made[at : at + 4], "big"):
            made[at : at + 4] = struct.pack(">I", at // 4096 + 1)


def _one_overflow(made: bytearray) -> None:
    """All rows with an overflow page share that of the first: rows of 500 KiB in a file of 1 MiB.

    Of a table leaf with large rows each cell ends with the number of its overflow page.
    """
    first = b""
    for at in _first_pages(made, 4096):
        count = int.from_bytes(made[at + 3 : at + 5], "big")
        for n in range(count):
            cell = at + int.from_bytes(made[at + 8 + 2 * n :][:2], "big")
            size, _ = _varint(made, cell)
            if size <= 4096 - 35:
                continue
            local = 489 + (size - 489) % (4096 - 4)
            local = local if local <= 4096 - 35 else 489
            head = _varint(made, _varint(made, cell)[1])[1]
            end = head + local
            first = first or bytes(made[end : end + 4])
            made[end : end + 4] = first


def _varint(made: bytearray, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(9):
        value = value << 7 | made[at] & 0x7F
        at += 1
        if made[at - 1] < 0x80:
            break
    return value, at


def _header(at: int, value: bytes) -> Callable[[bytearray], None]:
    def change(made: bytearray) -> None:
        made[at : at + len(value)] = value

    return change


def _zeros_from(share: float) -> Callable[[bytearray], None]:
    def change(made: bytearray) -> None:
        start = int(len(made) * share)
        made[start:] = bytes(len(made) - start)

    return change


def _noise(seed: int) -> Callable[[bytearray], None]:
    def change(made: bytearray) -> None:
        rng = random.Random(seed)  # noqa: S311 - no secret
        for _ in range(rng.randint(1, 200)):
            made[rng.randrange(100, len(made))] = rng.choice((0, 1, 0x0D, 0x05, 0x7F, 0x81, 0xFF))

    return change


def _many_trials(count: int) -> Sequence[Trial]:
    trial = _trials(_PLAN)[0]
    return [
        replace(trial, run=run, order=run, transfer=Transfer(10**9, 1 << 20, 1.0 + run % 7))
        for run in range(count)
    ]


def _of_cells(**lists: object) -> _Made:
    """A store with a trial of each cell."""
    plan = replace(_PLAN, transports=("tcp",), **lists)  # type: ignore[arg-type]
    return _Made(plan=plan, trials=lambda: _trials(plan))


def _rows_of(sql: str, times: int) -> _Made:
    return _Made([f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {times})"
                  f" {sql}"])  # fmt: skip


def _grown(values: str, count: int) -> str:
    return f"INSERT INTO environments SELECT 'e' || i, {values} FROM n LIMIT {count}"


_LIST = "[" * 300_000
_SIZES = tuple(4096 * n for n in range(1, 1601))
STORES: dict[str, _Made] = {
    # JSON
    "deep list": _set("rdma", _LIST),
    "deep mapping": _set("rdma", '{"a":' * 100_000),
    "deep cell": _set("cell", _LIST),
    "deep plan": _set("plan", _LIST, "plans"),
    "deep facts": _set("facts", _LIST, "environments"),
    "wide list in rows": _set("probe_rows", json.dumps({"a": [[]] * 200_000})),
    "wide list of mappings": _set("probe_rows", json.dumps({"a": [{}] * 80_000})),
    "wide mapping": _set("axes", json.dumps({str(n): "" for n in range(15_000)})),
    "wide counters": _set("rdma", json.dumps(dict.fromkeys(map(str, range(15_000)), 1))),
    "wide facts": _set("facts", json.dumps({str(n): "" for n in range(50_000)}), "environments"),
    "long number": _set("rdma", '{"a":' + "9" * 200_000 + "}"),
    "huge number": _set("rdma", '{"a":1e999}'),
    "not a number": _set("rdma", '{"a":NaN}'),
    "list of rsizes": _set("plan", json.dumps(
        _PLAN.to_json() | {"rsizes": [8192] * 100_000}), "plans"),
    "list of words": _set("plan", json.dumps(
        _PLAN.to_json() | {"transports": ["tcp"] * 9999, "rsizes": [1], "read_aheads": [1]}),
        "plans"),
    "list of axes": _set("plan", json.dumps(
        _PLAN.to_json() | {"axes": [[f"a{n}", ["1", "2"]] for n in range(20_000)]}), "plans"),
    "axes of one value": _set("plan", json.dumps(
        _PLAN.to_json() | {"axes": [[f"a{n}", ["1"]] for n in range(30_000)]}), "plans"),
    "axes of a cell": _set("cell", json.dumps({
        "axes": [[str(n), ""] for n in range(20_000)], "nconnect": 1, "read_ahead": 0,
        "rsize": 8192, "transport": "tcp"})),
    "loads": _Made(["INSERT INTO notes VALUES ('load of a server', 's', ?)"],
                   [json.dumps([[0, 0]] * 80_000)]),
    "plan of nothing": _set("plan", "{}", "plans"),
    "plan of null": _set("plan", "null", "plans"),
    # numbers and texts
    "runs": _set("plan", json.dumps(_PLAN.to_json() | {"runs": 10**18}), "plans"),
    "jobs of a cell": _set("cell", json.dumps({
        "axes": [], "nconnect": 1, "read_ahead": 10**18, "rsize": 10**18, "transport": "tcp",
        "jobs": 10**18})),
    "throughput of 1e308": _set("throughput", 1e308),
    "throughput of 1e-308": _set("throughput", 1e-308),
    "times of 2^63": _set("duration_ns", (1 << 63) - 1),
    "blob of zeros": _Made(["UPDATE trials SET reason = zeroblob(100000)"]),
    "text of zeros": _Made(["UPDATE trials SET reason = CAST(zeroblob(100000) AS TEXT)"]),
    "text that is no UTF-8": _Made(["UPDATE trials SET reason = CAST(x'fffefdfc' AS TEXT)"]),
    "text of terminals": _set("reason", "\x1b[2J\n" * 30_000),
    "trials": _Made(trials=lambda: _many_trials(3000)),
    "rsizes": _of_cells(rsizes=_SIZES, read_aheads=(1,)),
    "rsizes at the limit": _of_cells(rsizes=_SIZES[:1000], read_aheads=(1,)),
    "read-aheads": _of_cells(read_aheads=tuple(range(500))),
    "small tiles": _of_cells(rsizes=_SIZES[:31], read_aheads=tuple(range(32))),
    "tiles": _of_cells(rsizes=_SIZES[:20], read_aheads=tuple(range(32))),
    "axes": _of_cells(rsizes=(8192,), read_aheads=(1,), nconnects=tuple(range(1, 1000))),
    "24 sets of axes": _of_cells(nconnects=tuple(range(1, 25)), rsizes=(8192,)),
    "axes of plan and cell": _of_cells(axes=tuple((f"a{n}", ("1",)) for n in range(3000)),
                                       rsizes=(8192,)),
    "environments": _rows_of(_grown("'{}'", 12_000), 12_000),
    "plans": _rows_of("INSERT INTO plans SELECT 'q' || i, '', plan FROM n, plans LIMIT 900", 900),
    # a schema that computes
    "endless view of plans": _view(
        "plans", _ENDLESS + "SELECT 'p' AS uid, '' AS created, plan, kept.rowid AS rowid "
        "FROM kept, n"),
    "endless view of trials": _view("trials", _ENDLESS + "SELECT kept.*, kept.rowid AS rowid "
                                    "FROM kept, n"),
    "view without a row": _view("trials", _ENDLESS + "SELECT kept.*, kept.rowid AS rowid "
                                "FROM kept, n WHERE i < 0"),
    "view of huge blobs": _view("environments", "SELECT uid, hex(zeroblob(400000000)) AS facts, "
                                "rowid FROM kept"),
    "view of many blobs": _view("environments", _ENDLESS + "SELECT i AS uid, "
                                "'{\"a\":\"' || hex(zeroblob(400000)) || '\"}' AS facts, "
                                "i AS rowid FROM n"),
    "generated column": _generated("hex(zeroblob(300000000))"),
    "generated columns": _generated("'{\"a\":\"' || hex(zeroblob(30000000)) || '\"}'"),
    "trigger": _Made(["CREATE TRIGGER t AFTER INSERT ON notes BEGIN "
                      "UPDATE trials SET reason = hex(randomblob(400000000)); END"]),
    "index of an expression": _Made([
        "CREATE INDEX x ON trials (plan, length(hex(zeroblob(100000))))"]),
    "check that computes": _Made([
        "ALTER TABLE environments RENAME TO kept",
        "CREATE TABLE environments (uid TEXT PRIMARY KEY, facts TEXT NOT NULL "
        "CHECK (length(randomblob(300)) > 0))"]),
    "virtual table": _Made(["ALTER TABLE environments RENAME TO kept",
                            "CREATE VIRTUAL TABLE environments USING fts5(uid, facts)"]),
    "tables": _Made([f"CREATE TABLE t{n} (a)" for n in range(200)]),
    # pages
    "pages of one page": _Made(trials=lambda: _many_trials(2000), pages=_same_pages),
    "page of itself": _Made(trials=lambda: _many_trials(2000), pages=_own_parent),
    "overflow in a circle": _Made(
        ["UPDATE trials SET reason = ? WHERE rowid = 1"], ["x" * 900_000], pages=_overflow_loop),
    "overflow of many rows": _Made(
        ["UPDATE environments SET facts = ?",
         "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 100) "
         "INSERT INTO environments SELECT 'e' || i, facts FROM n, environments"],
        [json.dumps({"a": "x" * 8000})], pages=_one_overflow),
    "page count": _Made(pages=_huge_count),
    "page size of 65536": _Made(pages=_header(16, b"\0\1")),
    "page size of 0": _Made(pages=_header(16, b"\0\0")),
    "reserved bytes": _Made(pages=_header(20, b"\xff")),
    "cache of 2^31 pages": _Made(pages=_header(48, struct.pack(">I", 0x7FFFFFFF))),
    "free list": _Made(pages=_header(32, struct.pack(">II", 2, 0xFFFFFFFF))),
    "text in UTF-16": _Made(pages=_header(56, struct.pack(">I", 2))),
    "zeros": _Made(pages=_zeros_from(0)),
    "zeros behind the header": _Made(pages=_zeros_from(0.02)),
    "zeros in the half": _Made(trials=lambda: _many_trials(2000), pages=_zeros_from(0.5)),
    "write-ahead log": _Made(pages=_header(18, b"\2\2")),
    **{f"noise {n}": _Made(trials=lambda: _many_trials(50), pages=_noise(n)) for n in range(8)},
}  # fmt: skip
"""What makes each store."""


def store(name: str, path: Path) -> Path:
    """Write the store ``name``."""
    made = STORES[name]
    with Store(path) as opened:
        opened.add_all([made.plan], [{"host": "a"}], made.trials() if made.trials else
                       _trials(made.plan))  # fmt: skip
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("PRAGMA legacy_alter_table=ON")
    for number, sql in enumerate(made.change):
        db.execute(sql, () if number else tuple(made.values))
    db.execute("PRAGMA application_id")
    db.close()
    if made.pages:
        data = bytearray(path.read_bytes())
        made.pages(data)
        path.write_bytes(data)
    return path
