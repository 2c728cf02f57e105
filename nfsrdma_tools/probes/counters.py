# SPDX-License-Identifier: Apache-2.0
"""Rows of counters from a program's maps, and their increase between two readings."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = ["Row", "address", "increase", "row_of", "split", "text", "total"]

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


def address(raw: bytes) -> str:
    """The address in a ``struct sockaddr``, without its port; "" if it has none."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    if family == socket.AF_INET6:
        return f"[{socket.inet_ntop(socket.AF_INET6, raw[8:24])}]"
    return ""
