# SPDX-License-Identifier: Apache-2.0
"""The screen that those of a mount, the host and the events are made of."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

__all__ = ["TextScreen"]


class TextScreen(Screen[None]):
    """A text that scrolls, and the keys."""

    CSS = "#body { padding: 0 1; }"

    def compose(self) -> ComposeResult:
        """The text, and the keys."""
        with VerticalScroll():
            yield Static(id="body", markup=False)
        yield Footer(compact=True)

    def set_text(self, whole: Text) -> None:
        """Show another text."""
        self.query_one("#body", Static).update(whole)
