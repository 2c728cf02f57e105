# SPDX-License-Identifier: Apache-2.0
"""How ``nfsrdma trace`` looks: a table for each interval, or a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from nfsrdma_tools.errors import printable
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.sizes import format_size

__all__ = ["Lines", "Tables"]

Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]


class Lines:
    """Each interval as one line of JSON; what is missing as the first line."""

    def missing(self, missing: tuple[Missing, ...]) -> None:
        """Print the events that cannot be counted here."""
        print(json.dumps({"missing": {m.event: m.reason for m in missing}}), flush=True)

    def show(self, records: list[Record]) -> None:
        """Print an interval's rows."""
        print(json.dumps({"time": time.time(), "rows": records}), flush=True)


class Tables:
    """A table for each interval; what is missing on standard error."""

    def __init__(self, account: str) -> None:
        self.columns = COLUMNS.get(account, ())

    def missing(self, missing: tuple[Missing, ...]) -> None:
        """Print why some events cannot be counted, a line for each reason."""
        reasons: dict[str, list[str]] = {}
        for each in missing:
            reasons.setdefault(each.reason, []).append(each.event)
        for reason, names in reasons.items():
            print(f"not counted ({reason}): {', '.join(names)}", file=sys.stderr)

    def show(self, records: list[Record]) -> None:
        """Print an interval's rows, with a heading."""
        print(time.strftime("%H:%M:%S"), "" if records else "nothing")
        if records:
            for line in table(self.columns, records):
                print(line)
        print(flush=True)


def table(columns: Sequence[Column], records: Sequence[Record]) -> list[str]:
    """Aligned lines: a heading, and one for each record; names to the left, numbers right."""
    cells = [[head for head, _ in columns]]
    cells += [[printable(show(record)) for _, show in columns] for record in records]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_line(row, widths) for row in cells]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    # the first two columns are names
    names = map(str.ljust, row[:2], widths[:2])
    numbers = map(str.rjust, row[2:], widths[2:])
    return "  ".join((*names, *numbers)).rstrip()


def number(key: str) -> Callable[[Record], str]:
    """A count; nothing instead of 0, so that what happened stands out."""
    return lambda record: str(record[key] or "")


def words(key: str) -> Callable[[Record], str]:
    """A name."""
    return lambda record: str(record[key])


def sum_of(*keys: str) -> Callable[[Record], str]:
    """The sum of counts."""
    return lambda record: str(sum(record[key] for key in keys) or "")


def size(key: str) -> Callable[[Record], str]:
    """Bytes, rounded to a unit."""
    return lambda record: _short(record[key]) if record[key] else ""


def _short(value: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if value >= unit:
            return f"{value / unit:.4g}{name}"
    return str(value)


def sizes(key: str) -> Callable[[Record], str]:
    """The histogram of the commonest kind of chunk, as ``64k:23`` for 23 of 64 KiB to 128 KiB."""
    return lambda record: " ".join(
        f"{kind[0]}{format_size(1 << (slot - 1)) if slot else 0}:{times}"
        for kind, slots in record[key].items()
        for slot, times in enumerate(slots)
        if times
    )


COLUMNS: dict[str, Sequence[Column]] = {
    "chunks": (
        ("mount", words("mount")),
        ("procedure", words("procedure")),
        ("RPCs", number("rpcs")),
        ("inline", sum_of("calls_inline", "calls_pulled_up", "calls_gathered")),
        ("read", number("calls_read")),
        ("long", number("calls_position_zero")),
        ("| inline", number("replies_inline")),
        ("write", number("replies_write")),
        ("reply", number("replies_reply")),
        ("unused", number("reply_unused")),
        ("| sent inline", size("inline_bytes")),
        ("copied", size("pulled_up_bytes")),
        ("by read", size("read_bytes")),
        ("by write", size("write_used")),
        ("by reply", size("reply_used")),
        ("sizes", sizes("sizes")),
    ),
}
