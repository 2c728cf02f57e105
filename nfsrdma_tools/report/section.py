# SPDX-License-Identifier: Apache-2.0
"""Sections and tables of the page, and the template that shows them with all text escaped."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from nfsrdma_tools.errors import printable

__all__ = ["Section", "Table", "render"]

# the length in characters above which a cell may wrap
_LONG = 40


@dataclass(frozen=True)
class Table:
    """A scrollable table; columns of numbers are right-aligned, rows in ``best`` highlighted."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Sequence[bool] = ()

    @functools.cached_property
    def _numeric(self) -> set[int]:
        columns = enumerate(zip(*self.rows, strict=True))
        return {at for at, texts in columns if all(map(_is_number, texts))}

    def kind(self, column: int, text: str) -> str:
        """The class of a cell in page.css, or ""."""
        return "n" if column in self._numeric else "long" if len(text) > _LONG else ""


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs and tables."""

    title: str
    texts: Sequence[str] = ()
    tables: Sequence[Table] = ()
    muted: bool = False


def render(**values: object) -> str:
    """The page; values that are not Markup are escaped, control characters are printed as such."""
    return _template().render(values)


@functools.cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text)


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).isdigit()
