# SPDX-License-Identifier: Apache-2.0
"""The encoding of a log: UTF-8, or UTF-16 as redirects of PowerShell write it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["utf8_blocks"]

_ENOUGH = 64
"""Bytes that tell the encoding of a log without a byte order mark."""


def utf8_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The bytes of a log in UTF-8, read in blocks of at most ``size`` bytes.

    A log in UTF-16 is converted, with ``?`` for what is no character.
    """
    block = file.read(size)
    while block and len(block) < _ENOUGH and (more := file.read(size - len(block))):
        # a pipe gives what it has
        block += more
    encoding = _utf16(block)
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    while block:
        yield _converted(decoder.decode(block)) if decoder else block
        block = file.read(size)
    if decoder:
        yield _converted(decoder.decode(b"", final=True))


def _converted(text: str) -> bytes:
    return text.replace("\ufffd", "?").encode()


def _utf16(begin: bytes) -> str:
    """The encoding if a log begins as UTF-16, with a byte order mark or with Latin letters."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = begin[:_ENOUGH:2], begin[1:_ENOUGH:2]
    if odd and not any(odd) and all(even):
        return "utf-16-le"
    return "utf-16-be" if even and not any(even) and all(odd) else ""
