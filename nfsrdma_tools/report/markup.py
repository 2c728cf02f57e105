# SPDX-License-Identifier: Apache-2.0
"""HTML elements and tables with automatic escaping: text is escaped, ``Markup`` is not."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from nfsrdma_tools.errors import printable

__all__ = ["Markup", "join", "table", "tag"]

_VOID = {"meta", "br", "hr"}
# the length in characters above which a cell may wrap
_LONG = 40


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


def table(heads: Iterable[str], rows: Iterable[Sequence[str]], best: Sequence[bool] = ()) -> Markup:
    """A scrollable table; columns of numbers are right-aligned, rows in ``best`` highlighted."""
    lines = list(rows)
    numeric = {i for i in range(len(lines[0]) if lines else 0) if all(_number(r[i]) for r in lines)}
    head = tag("tr", *(_cell("th", text, i in numeric) for i, text in enumerate(heads)))
    body = [
        tag("tr", *(_cell("td", text, i in numeric) for i, text in enumerate(line)),
            **({"class_": "best"} if best and best[n] else {}))
        for n, line in enumerate(lines)
    ]  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def _cell(name: str, text: str, numeric: bool) -> Markup:
    kind = "n" if numeric else "long" if len(text) > _LONG else ""
    return tag(name, text, class_=kind) if kind else tag(name, text)


def _number(text: str) -> bool:
    return not text or text.replace(".", "", 1).isdigit()
