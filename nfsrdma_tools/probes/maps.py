# SPDX-License-Identifier: Apache-2.0
"""Reads a program's maps in batches, decodes only rows that changed, and adds up their counters.

bcc makes two system calls per row, and a Python object per counter.  This module reads 64 rows at
once, as bytes (BPF_MAP_LOOKUP_BATCH, Linux 5.6 and later; kernel/bpf/syscall.c), and decodes only
those that differ from the last reading.  bcc's items_lookup_batch() is no substitute: it allocates
room for as many rows as the map may have, and makes a Python object of each.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from nfsrdma_tools.probes.session import Session

__all__ = [
    "IDLE",
    "Losses",
    "Row",
    "address",
    "decoded",
    "drained",
    "free",
    "increase",
    "lost",
    "mapped",
    "named",
    "row_of",
    "rows",
    "sockaddr",
    "split",
    "text",
    "total",
]

IDLE = 600.0
"""Seconds without a change after which ``free`` removes a row."""
_AT_ONCE = 64
# index of the least significant of eight bytes
_LOWEST = 0 if sys.byteorder == "little" else 7


class _Named(Protocol):
    @property
    def procedure(self) -> str: ...


_Name = TypeVar("_Name", bound=_Named)
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class _Batch:
    """Rows as the kernel returned them, and their decoded values."""

    keys: bytes
    values: bytes
    rows: list[Any]


def rows(
    session: Session,
    table: str,
    name: Callable[[Any], _Name],
    decode: Callable[[_Name, list[Any]], _Row],
) -> list[_Row]:
    """The result of ``decode`` for each name's leaves in a map whose keys are hashes of names.

    The session's state keeps the number of each name.
    """
    numbers: dict[_Name, int] = session.state.setdefault(f"numbers of {table}", {})

    def of_number(number: Any, leaves: Any) -> list[_Row]:
        by_name = named(leaves, name)
        numbers.update(dict.fromkeys(by_name, number.value))
        return [decode(key, own) for key, own in by_name.items()]

    return list(chain.from_iterable(decoded(session, table, of_number)))


def named(leaves: Iterable[Any], name: Callable[[Any], _Name]) -> dict[_Name, list[Any]]:
    """The leaves of one number, by the name in each.

    A number may belong to different rows on different CPUs (row_is() of bpf/account.h).  The leaf
    of a CPU that never counted there has no name and no counts: it is left out.
    """
    by_name: dict[_Name, list[Any]] = {}
    for leaf in leaves:
        if (key := name(leaf)).procedure:
            by_name.setdefault(key, []).append(leaf)
    return by_name


def decoded(session: Session, name: str, decode: Callable[[Any, Any], _Row]) -> list[_Row]:
    """The result of ``decode`` for each row's key and leaf, or leaves in a per-CPU map.

    A row that has not changed since the last reading of this session is not decoded again.
    """
    return _decode_all(session, name, _entries(session, name, session.table(name)), decode)


def mapped(
    session: Session, name: str, decode: Callable[[Any], _Row], used: str = "used"
) -> list[_Row]:
    """The same for an array that can be mapped into memory (BPF_F_MMAPABLE, Linux 5.5 and later).

    ``used`` is the field, 64 bits wide, that is 1 in rows in use: other rows are left out.
    """
    leaf = session.table(name).Leaf
    memory = session.state.get(f"memory of {name}") or _memory(session, name)
    before: dict[int, tuple[bytes, _Row]] = session.state.get(f"rows of {name}", {})
    # the kernel pads each element to a multiple of 8 bytes (array_map_alloc in
    # kernel/bpf/arraymap.c); ``used`` has 64 bits, so the size of a leaf is such a multiple
    long, decoded_rows = ctypes.sizeof(leaf), {}
    # most rows are unused, so check only this field in all of them
    flags = memory[getattr(leaf, used).offset + _LOWEST :: long]
    for n in compress(count(), flags):
        row, was = memory[n * long : (n + 1) * long], before.get(n)
        decoded_rows[n] = (
            was if was and was[0] == row else (row, decode(leaf.from_buffer_copy(row)))
        )
    session.state[f"rows of {name}"] = decoded_rows
    return [row for _, row in decoded_rows.values()]


def _memory(session: Session, name: str) -> mmap.mmap:
    table = session.table(name)
    size = table.max_entries * ctypes.sizeof(table.Leaf)
    memory = mmap.mmap(table.map_fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    session.state[f"memory of {name}"] = memory
    return memory


def _decode_all(
    session: Session,
    name: str,
    entries: Iterable[tuple[bytes, bytes]],
    decode: Callable[[Any, Any], _Row],
) -> list[_Row]:
    before: list[_Batch] = session.state.get(f"rows of {name}", [])
    table = session.table(name)
    pairs = zip(entries, chain(before, repeat(None)), strict=False)
    batches = [_batch(table, keys, values, was, decode) for (keys, values), was in pairs]
    session.state[f"rows of {name}"] = batches
    return [row for batch in batches for row in batch.rows]


def _batch(
    table: Any, keys: bytes, values: bytes, was: _Batch | None, decode: Callable[[Any, Any], Any]
) -> _Batch:
    if was and was.keys == keys and was.values == values:
        return was
    wide, long = ctypes.sizeof(table.Key), ctypes.sizeof(table.Leaf)
    rows = list(was.rows) if was and was.keys == keys else []
    for n in range(len(keys) // wide):
        part = values[n * long : (n + 1) * long]
        if not was or was.keys != keys or was.values[n * long : (n + 1) * long] != part:
            key = table.Key.from_buffer_copy(keys, n * wide)
            rows[n : n + 1] = [decode(key, table.Leaf.from_buffer_copy(part))]
    return _Batch(keys, values, rows)


def drained(session: Session, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and leaves in batches, as consecutive bytes, and empty the map."""
    return _batches(session, name, session.table(name), "bpf_lookup_and_delete_batch")


def _entries(session: Session, name: str, table: Any) -> list[tuple[bytes, bytes]]:
    try:
        return list(_batches(session, name, table))
    except OSError:
        # an older kernel, or a bucket with more rows than a batch
        rows = [(bytes(key), bytes(leaf)) for key, leaf in table.items()]
        return [(b"".join(k for k, _ in rows), b"".join(v for _, v in rows))]


def _batches(
    session: Session, name: str, table: Any, call: str = "bpf_lookup_batch"
) -> Iterator[tuple[bytes, bytes]]:
    from bcc.libbcc import lib

    ask = getattr(lib, call)
    room = session.state.get(f"room for {name}")
    if room is None:
        room = (table.Key * _AT_ONCE)(), (table.Leaf * _AT_ONCE)()
        session.state[f"room for {name}"] = room
    # where a batch ends, the kernel returns the number of the next bucket, 32 bits wide
    # (__htab_map_lookup_and_delete_batch in kernel/bpf/hashtab.c)
    position, before, failed = ctypes.c_uint32(0), None, 0
    while not failed:
        many = ctypes.c_uint32(_AT_ONCE)
        after, keys, values = map(ctypes.byref, (position, *room))
        failed = ask(table.map_fd, before, after, keys, values, ctypes.byref(many))
        error = ctypes.get_errno()
        # the end of the map
        if failed and error != errno.ENOENT:
            raise OSError(error, os.strerror(error))
        if many.value:
            yield _part(room[0], many.value), _part(room[1], many.value)
        before = after


def _part(rows: Any, many: int) -> bytes:
    return bytes(memoryview(rows).cast("B")[: ctypes.sizeof(rows) // _AT_ONCE * many])


def free(session: Session, table: str, now: float, *reading: dict[Any, tuple[int, ...]]) -> None:
    """Remove idle rows from a map that ``rows`` reads, and from a ``reading`` of it.

    The client of an idle row is gone or inactive; removing the row makes room for new clients in a
    program that runs for months.  A client that becomes active again gets a new row, which begins
    at 0; so the last reading drops the row, too.  An RPC that ends between the reading and the
    removal, after IDLE seconds without RPCs, is lost.

    The first part of the reading has the counters; ``now`` is in seconds.
    """
    seen: dict[Any, tuple[tuple[int, ...], float]]
    seen = session.state.setdefault(f"since when of {table}", {})
    for name, counts in reading[0].items():
        if name not in seen or seen[name][0] != counts:
            seen[name] = counts, now
    numbers: dict[Any, int] = session.state[f"numbers of {table}"]
    # remove all rows of one number together
    busy = {numbers[name] for name, (_, since) in seen.items() if now - since < IDLE}
    idle = [name for name in seen if numbers[name] not in busy]
    there = session.table(table)
    for number in {numbers[name] for name in idle}:
        del there[there.Key(number)]
    for name in idle:
        del seen[name], numbers[name]
        for part in reading:
            part.pop(name, None)


# SLOTS of bpf/account.h
_SLOTS = 32


class Row(NamedTuple):
    """The key of counters: the sunrpc client's number, and the procedure."""

    client: int
    procedure: str


_Key = TypeVar("_Key")


def row_of(leaf: Any) -> Row:
    """The key in the ``struct row`` at the start of a leaf."""
    return Row(leaf.row.client, text(leaf.row.procedure))


def total(leaves: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sums over CPUs of arrays of counters."""
    first, *more = map(_numbers, leaves)
    return tuple(map(sum, zip(first, *more, strict=True))) if more else tuple(first)


def _numbers(counters: Any) -> Sequence[int]:
    kind = getattr(counters, "_type_", None)
    # reading a ctypes array element by element takes five times as long
    return memoryview(counters).cast("B").cast(kind._type_).tolist() if kind else counters


def split(slots: Sequence[int], names: Sequence[str]) -> dict[str, list[int]]:
    """Split consecutive histograms by name; empty ones are left out."""
    parts = {name: list(slots[n * _SLOTS : (n + 1) * _SLOTS]) for n, name in enumerate(names)}
    return {name: part for name, part in parts.items() if any(part)}


def increase(
    after: Mapping[_Key, tuple[int, ...]], before: Mapping[_Key, tuple[int, ...]]
) -> dict[_Key, tuple[int, ...]]:
    """The increase of each key's counters; keys without an increase are left out."""
    # an unchanged row is the same object
    changed = {key: value for key, value in after.items() if before.get(key) is not value}
    grown = {key: _minus(value, before.get(key, ())) for key, value in changed.items()}
    return {key: value for key, value in grown.items() if any(value)}


def _minus(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    # counters only grow, so a 0 was 0 before
    return tuple([n and n - m for n, m in zip(after, before, strict=True)]) if before else after


def text(raw: bytes) -> str:
    """A C string of the kernel, up to its NUL byte."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def sockaddr(raw: bytes) -> tuple[str, int]:
    """The address and the port in a ``struct sockaddr``; "" and 0 if it has none."""
    family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24]), port
    return "", 0


def address(raw: bytes) -> str:
    """The address in a ``struct sockaddr``, of IPv6 in brackets; "" if it has none."""
    host, _ = sockaddr(raw)
    return f"[{host}]" if ":" in host else host


class Losses(NamedTuple):
    """Events that were not counted, or not to their end (enum loss).

    ``rpcs``, memory ``regions``, Calls whose ``credits`` are unknown, read-ahead ``windows``.
    """

    rpcs: int = 0
    regions: int = 0
    credits: int = 0
    windows: int = 0

    def __sub__(self, other: tuple[int, ...]) -> Losses:
        """The increase since ``other``."""
        return Losses(*map(sub, self, other))

    def __str__(self) -> str:
        """As text, without zeros."""
        names = ("RPCs", "regions", "Calls' credits", "read-ahead windows")
        return ", ".join(f"{n} {name}" for n, name in zip(self, names, strict=True) if n)


def lost(session: Session) -> Losses:
    """The lost counts of all probe sets since the session began."""
    return Losses(*(sum(cpus) for _, cpus in session.table("losses").items()))
