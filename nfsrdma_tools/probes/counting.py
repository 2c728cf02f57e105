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


def total(leaves: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """The sums over CPUs of arrays of counters."""
    return tuple(map(sum, zip(*leaves, strict=True)))


def split(slots: Sequence[int], names: Sequence[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Histograms that lie one behind the other, by their names."""
    return tuple(
        (name, tuple(slots[n * _SLOTS : (n + 1) * _SLOTS])) for n, name in enumerate(names)
    )


def increase(
    after: Mapping[_Key, tuple[int, ...]], before: Mapping[_Key, tuple[int, ...]]
) -> dict[_Key, tuple[int, ...]]:
    """What was added to each key's counters; keys to which nothing was are left out."""
    # what did not change is the very same object
    changed = ((key, value, before.get(key, ())) for key, value in after.items())
    grown = {key: _minus(value, was) for key, value, was in changed if value is not was}
    return {key: value for key, value in grown.items() if any(value)}


def _minus(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(after, before or (0,) * len(after), strict=True))


def text(raw: bytes) -> str:
    """A string of the kernel's, up to its zero byte."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")
