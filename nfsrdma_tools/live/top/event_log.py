# SPDX-License-Identifier: Apache-2.0
"""The log of events, and what cannot be seen here: a line each, and a screen of all."""

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
    """An event in one line; with ``advice`` what to do in a second."""
    sign, style = _SIGNS.get(event.severity, _SIGNS["note"])
    said = Text(time.strftime("%H:%M:%S ", time.localtime(event.time)), "dim")
    said += Text(f"{sign} ", style) + text(event.kind, style) + Text(" ")
    said += text(f"{event.where}: {event.what}")
    if advice and event.advice:
        said += Text("\n           ") + text(event.advice, "italic")
    return said


class Log(TextScreen):
    """All events that are kept, the newest first, and what is missing."""

    def show(self, events: Sequence[Event], missing: dict[str, str]) -> None:
        """What there is now."""
        lines = [line(event, advice=True) for event in reversed(events)]
        lines += [Text(""), Text("Not seen here:" if missing else "", "bold")]
        lines += [text(f"  {what}: {why}") for what, why in missing.items()]
        whole = Text("\n").join(lines or [Text("Nothing has happened yet.")])
        whole.no_wrap = False
        self.set_text(whole)
