# SPDX-License-Identifier: Apache-2.0
"""The base class of the mount, host and event screens."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

__all__ = ["TextScreen"]


class TextScreen(Screen[None]):
    """A screen with a scrolling text and the keys."""

    CSS = "#body { padding: 0 1; }"

    def compose(self) -> ComposeResult:
        """The text and the keys."""
        with VerticalScroll():
            yield Static(id="body", markup=False)
        yield Footer(compact=True)

    def set_text(self, whole: Text) -> None:
        """Replace the text."""
        self.query_one("#body", Static).update(whole)
