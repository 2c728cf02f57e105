# SPDX-License-Identifier: Apache-2.0
"""Sizes, times, lists and ranges: ``32k``, ``30s``, ``4k..1M``, ``0..16``, ``8k,32k,128k``.

A range doubles: ``4k..1M`` is the powers of two from 4 KiB to 1 MiB, ``0..16`` is 0, 1, 2, 4, 8,
16, as in the 2003 paper.  A range includes both ends.  Units are powers of 1024, as for rsize.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from nfsrdma_tools.errors import UsageError

__all__ = [
    "format_size",
    "parse_counts",
    "parse_seconds",
    "parse_size",
    "parse_sizes",
    "size_label",
]

_SIZE = re.compile(r"(\d{1,15})([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(ms|s|m|h|)")
_TIMES = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Seconds of ``30s``, ``500ms``, ``2m``, ``30``; UsageError unless it is a time above zero."""
    match = _SECONDS.fullmatch(text)
    if not match or not float(match[1]):
        raise UsageError(f"{text!r} is not a time", "examples: 30s, 2m, 500ms")
    return float(match[1]) * _TIMES[match[2]]


def parse_size(text: str) -> int:
    """Bytes of ``32k``, ``1M``, ``512``; UsageError unless it is a size above zero."""
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise UsageError(f"{text!r} is not a size", "examples: 512, 32k, 1M")
    return int(match[1]) * _UNITS[match[2].lower()]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes from a list of sizes and ranges, ascending, without duplicates."""
    return _parse(text, parse_size)


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers from a list of numbers and ranges, ascending, without duplicates."""
    return _parse(text, _count)


def format_size(size: int) -> str:
    """Bytes in the largest unit that gives a whole number: 32768 is ``32k``."""
    for unit in ("g", "m", "k"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit if unit == 'k' else unit.upper()}"
    return str(size)


def size_label(size: int) -> str:
    """Bytes as a size in a text: 512 B, 8 KiB, 1 MiB."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B" if size < 1024 else f"{size / 1024:g} KiB"


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text.strip(), re.ASCII):
        raise UsageError(f"{text!r} is not a number", "examples: 4, 0..16, 0,1,4")
    return int(text)


def _parse(text: str, parse: Callable[[str], int]) -> tuple[int, ...]:
    values: set[int] = set()
    for part in text.split(","):
        low, dots, high = part.partition("..")
        values.update(_doubling(parse(low), parse(high)) if dots else (parse(low),))
    return tuple(sorted(values))


def _doubling(low: int, high: int) -> list[int]:
    if low > high:
        raise UsageError(f"the range {low}..{high} is descending", f"write {high}..{low}")
    inside = [1 << bit for bit in range(high.bit_length()) if low < 1 << bit < high]
    return [low, *inside, high]
