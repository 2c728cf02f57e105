# SPDX-License-Identifier: Apache-2.0
"""Rows of counters out of a program's maps, and what was added between two readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = ["Row", "increase", "row_of", "split", "text", "total"]

# SLOTS of bpf/account.h
_SLOTS = 32


class Row(NamedTuple):
    """What is counted is counted per client (sunrpc's number of it) and procedure."""

    client: int
    procedure: str


_Key = TypeVar("_Key")


def row_of(leaf: Any) -> Row:
    """The row whose name, a ``struct row``, a leaf begins with."""
    return Row(leaf.row.client, text(leaf.row.procedure))


def total(leaves: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sums over CPUs of arrays of counters."""
    first, *more = map(_numbers, leaves)
    return tuple(map(sum, zip(first, *more, strict=True))) if more else tuple(first)


def _numbers(counters: Any) -> Sequence[int]:
    kind = getattr(counters, "_type_", None)
    # an array of ctypes' makes its numbers one by one, which takes five times as long
    return memoryview(counters).cast("B").cast(kind._type_).tolist() if kind else counters


def split(slots: Sequence[int], names: Sequence[str]) -> dict[str, list[int]]:
    """Histograms that lie one behind the other, by their names; what has no count is left out."""
    parts = {name: list(slots[n * _SLOTS : (n + 1) * _SLOTS]) for n, name in enumerate(names)}
    return {name: part for name, part in parts.items() if any(part)}


def increase(
    after: Mapping[_Key, tuple[int, ...]], before: Mapping[_Key, tuple[int, ...]]
) -> dict[_Key, tuple[int, ...]]:
    """What was added to each key's counters; keys to which nothing was are left out."""
    # what did not change is the very same object
    changed = {key: value for key, value in after.items() if before.get(key) is not value}
    grown = {key: _minus(value, before.get(key, ())) for key, value in changed.items()}
    return {key: value for key, value in grown.items() if any(value)}


def _minus(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    # they only grow, so what is nothing was nothing
    return tuple([n and n - m for n, m in zip(after, before, strict=True)]) if before else after


def text(raw: bytes) -> str:
    """A string of the kernel's, up to its zero byte."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")
