# SPDX-License-Identifier: Apache-2.0
"""Columns of the tables of `nfsrdma trace`: a heading, and how a row's value is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["Column", "Record", "microseconds", "number", "rare", "size", "words"]

Record = dict[str, Any]
"""A row of a probe set, as its ``records`` returns it."""


class Column(NamedTuple):
    """A column; a ``rare`` one is left out of a table in which it is blank."""

    head: str
    show: Callable[[Record], str]
    rare: bool = False


def rare(*columns: Column) -> Iterator[Column]:
    """Columns that only some personalities of our module have."""
    return (column._replace(rare=True) for column in columns)


def words(key: str, head: str | None = None) -> Column:
    """A name."""
    return Column(key if head is None else head, lambda record: str(record[key]))


def number(key: str, head: str = "") -> Column:
    """A count; blank for 0, so that other counts stand out."""
    return Column(head or key, lambda record: str(record[key] or ""))


def size(key: str, head: str = "") -> Column:
    """Bytes, rounded to a unit."""
    return Column(head or key, lambda record: _short(record[key]) if record[key] else "")


def _short(value: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if value >= unit:
            return f"{value / unit:.4g}{name}"
    return str(value)


def microseconds(key: str, head: str, within: str = "") -> Column:
    """A time in microseconds; blank if the row has none."""

    def show(record: Record) -> str:
        value = (record[within] if within else record).get(key)
        return "" if value is None else f"{value:.4g}"

    return Column(head, show)
