# SPDX-License-Identifier: Apache-2.0
"""Formats numbers for a terminal: short and of fixed width."""

from __future__ import annotations

from rich.text import Text

from nfsrdma_tools.errors import printable

__all__ = ["number", "rate", "span", "text"]

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(raw: object, style: str = "", width: int = 0) -> Text:
    """Untrusted text without markup and control characters; long text loses its middle."""
    plain = printable(str(raw))
    if width and len(plain) > width:
        tail = (width - 1) // 2
        plain = f"{plain[: width - 1 - tail]}…{plain[len(plain) - tail :]}"
    return Text(plain, style, no_wrap=True)


def number(value: float) -> str:
    """Three digits and a unit; "" for 0."""
    if not value:
        return ""
    for size, unit in _UNITS:
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def rate(amount: float, seconds: float) -> str:
    """An amount per second."""
    return number(amount / seconds) if seconds else ""


def span(ms: float) -> str:
    """A time given in milliseconds."""
    if not ms:
        return ""
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1000:.3g} us"
