# SPDX-License-Identifier: Apache-2.0
"""Rows of counters out of a program's maps, and what was added between two readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

__all__ = ["Row", "increase", "rows", "text", "total"]


class Row(NamedTuple):
    """What is counted is counted per client (sunrpc's number of it) and procedure."""

    client: int
    procedure: str


_Key = TypeVar("_Key")


def rows(table: Any) -> dict[Row, list[Any]]:
    """A map per CPU whose key is a ``struct row``: for each row its leaves, one per CPU."""
    return {Row(key.client, text(key.procedure)): list(leaves) for key, leaves in table.items()}


def total(leaves: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """The sums over CPUs of arrays of counters."""
    return tuple(map(sum, zip(*leaves, strict=True)))


def increase(
    after: Mapping[_Key, tuple[int, ...]], before: Mapping[_Key, tuple[int, ...]]
) -> dict[_Key, tuple[int, ...]]:
    """What was added to each key's counters; keys to which nothing was are left out."""
    grown = {key: _minus(value, before.get(key, ())) for key, value in after.items()}
    return {key: value for key, value in grown.items() if any(value)}


def _minus(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(after, before or (0,) * len(after), strict=True))


def text(raw: bytes) -> str:
    """A string of the kernel's, up to its zero byte."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")
