# SPDX-License-Identifier: Apache-2.0
"""Tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nfsrdma_tools.report.markup import Markup, tag

__all__ = ["table"]

LONG = 40
"""The length in characters above which a cell may wrap."""


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
    kind = "n" if numeric else "long" if len(text) > LONG else ""
    return tag(name, text, class_=kind) if kind else tag(name, text)


def _number(text: str) -> bool:
    return not text or text.replace(".", "", 1).isdigit()
