# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file without external resources, for phones, light and dark mode.

Its content security policy allows only its own style sheet, by hash.  The figures' styles move
into that sheet, so that no attribute needs an exception.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources

from nfsrdma_tools.report import captions, render, sections, style
from nfsrdma_tools.report.canvas import Drawing
from nfsrdma_tools.report.data import Study
from nfsrdma_tools.report.markup import Markup, tag

__all__ = ["page"]


def page(study: Study, drawings: Sequence[Drawing]) -> str:
    """The whole page; equal studies give equal pages."""
    sheet = _Sheet()
    figures = Markup(sheet.adopt(_figures(study, drawings)))
    css = resources.files(__package__).joinpath("page.css").read_text() + _variables() + sheet.css()
    body = tag(
        "main",
        *sections.opening(study),
        tag("h2", "The figures"),
        figures,
        *sections.details(study),
    )
    return f"<!DOCTYPE html>\n{tag('html', _head(study, css), tag('body', body), lang='en')}\n"


def _head(study: Study, css: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"NFS {captions.verb(study)} sweep of {study.plan.target}"),
        tag("style", Markup(css)),
    )


def _figures(study: Study, drawings: Sequence[Drawing]) -> Markup:
    wide = "wide" if len(study.variants) > 1 else ""
    each = [
        tag("figure", Markup(render.inline_svg(drawing)), tag("p", drawing.alt, class_="off"),
            tag("figcaption", drawing.caption), class_=wide, id=drawing.name)
        for drawing in drawings
    ]  # fmt: skip
    small = tag("p", captions.small_print(study), class_="muted")
    return tag("div", tag("div", *each, class_="figures"), small)


def _variables() -> str:
    light = "".join(f"{render.variable(c)}:{c};" for c in style.COLOURS)
    dark = "".join(f"{render.variable(c)}:{d};" for c, d in style.COLOURS.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


class _Sheet:
    """Turns style attributes into classes of one style sheet."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def adopt(self, markup: str) -> str:
        """Replace the styles in markup by classes."""
        markup = re.sub(r"<style[^>]*>.*?</style>", "", markup, flags=re.DOTALL)
        return re.sub(r' style="([^"]*)"', self._class, markup)

    def _class(self, match: re.Match[str]) -> str:
        name = self._classes.setdefault(match[1], f"s{len(self._classes)}")
        return f' class="{name}"'

    def css(self) -> str:
        """The rules of all classes."""
        return "".join(f".{name}{{{rule}}}\n" for rule, name in self._classes.items())
