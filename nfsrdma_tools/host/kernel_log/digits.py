# SPDX-License-Identifier: Apache-2.0
"""Lines and words without their digits: lines of one form differ in numbers, mostly."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

__all__ = ["knows_digits", "loosened", "mask", "masks"]

_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_NEUTRAL = re.compile(r"\\d|\{[\d,]+\}|0-9|\(\?P<\w+>")
"""In a pattern: what stands for any digit, counts of repetitions, and names."""


def mask(text: str) -> bytes:
    """A text in UTF-8, with "0" for each digit."""
    return text.encode(errors="surrogatepass").translate(_ZEROS)


def masks(lines: Sequence[str]) -> list[bytes]:
    """The masks of many texts."""
    # one pass over all takes less than one of each
    masked = mask("\n".join(lines)).split(b"\n")
    return masked if len(masked) == len(lines) else list(map(mask, lines))


@functools.cache
def knows_digits(pattern: str) -> bool:
    """Whether a pattern may fit a line, and not the same line with other digits."""
    return any(map(str.isdigit, _NEUTRAL.sub("", pattern)))


def loosened(pattern: str) -> str:
    """A pattern that fits each line that a pattern fits with any digits in place of the line's."""
    if not knows_digits(pattern):
        return pattern
    if _NOT.search(pattern):
        return r"[\s\S]*"
    return "".join(map(_loosened, _PARTS.findall(pattern)))


_NOT = re.compile(r"\(\?<?!|\\[1-9ux]|\[\^[^]]*\d")
"""What a wider pattern in it would make narrower, or what is not read here."""
_PARTS = re.compile(r"\(\?P<\w+>|\\.|\[(?:\\.|[^]\\])+\]|\{[\d,]+\}|.", re.DOTALL)


def _loosened(part: str) -> str:
    if part.isdigit():
        return r"\d"
    return rf"[\d{part[1:]}" if part[0] == "[" and knows_digits(part) else part
