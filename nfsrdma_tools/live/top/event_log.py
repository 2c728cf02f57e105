# SPDX-License-Identifier: Apache-2.0
"""Events: one line each on the overview, and a screen of all with the missing metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from nfsrdma_tools.live.snapshot import Event
from nfsrdma_tools.live.top.number_format import text
from nfsrdma_tools.live.top.text_screen import TextScreen

__all__ = ["Log", "line"]

_SIGNS = {"error": ("x", "bold red"), "warning": ("!", "yellow"), "note": (" ", "")}


def line(event: Event, advice: bool = False) -> Text:
    """An event in one line; ``advice`` adds a second line."""
    sign, style = _SIGNS.get(event.severity, _SIGNS["note"])
    said = Text(time.strftime("%H:%M:%S ", time.localtime(event.time)), "dim")
    said += Text(f"{sign} ", style) + text(event.kind, style) + Text(" ")
    said += text(f"{event.where}: {event.what}")
    if advice and event.advice:
        said += Text("\n           ") + text(event.advice, "italic")
    return said


class Log(TextScreen):
    """All kept events, newest first, and the missing metrics."""

    def show(self, events: Sequence[Event], missing: dict[str, str]) -> None:
        """Show the current events."""
        lines = [line(event, advice=True) for event in reversed(events)]
        lines += [Text(""), Text("Missing metrics:" if missing else "", "bold")]
        lines += [text(f"  {what}: {why}") for what, why in missing.items()]
        whole = Text("\n").join(lines or [Text("No events yet.")])
        whole.no_wrap = False
        self.set_text(whole)
