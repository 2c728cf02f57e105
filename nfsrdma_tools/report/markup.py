# SPDX-License-Identifier: Apache-2.0
"""Builds HTML with automatic escaping: text is escaped, ``Markup`` is not."""

from __future__ import annotations

import html
from collections.abc import Iterable

from nfsrdma_tools.errors import printable

__all__ = ["Markup", "join", "tag"]

_VOID = {"meta", "br", "hr"}


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element; children that are not Markup, and all attributes, are escaped.

    Underscores in attribute names become hyphens, and a trailing one is removed ("class_").
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    opening = "".join(f' {key}="{html.escape(printable(value))}"' for key, value in pairs)
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Concatenate children."""
    return Markup(
        "".join(c if isinstance(c, Markup) else html.escape(printable(c)) for c in children)
    )
