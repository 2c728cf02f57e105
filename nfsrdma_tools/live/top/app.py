# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top`` on a terminal: key bindings, screens, and the snapshots that they show."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Input, Static

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.feed import Feed, FeedOptions
from nfsrdma_tools.live.snapshot import Event, Snapshot
from nfsrdma_tools.live.top.figures import RecentRates
from nfsrdma_tools.live.top.screens import SORTS, Detail, Host, Log, Overview, status

__all__ = ["SnapshotTaken", "Top", "run"]

_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0)


class SnapshotTaken(Message):
    """A new snapshot has arrived."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Top(App[None]):
    """The application; ``interval`` is the initial sampling interval in seconds."""

    TITLE = "nfsrdma top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("enter", "deeper", "Open", priority=True),
        Binding("escape", "leave", "Back", priority=True),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("e", "log", "Events"),
        Binding("h", "host", "Host"),
        Binding("plus", "slower", "Slow", key_display="+"),
        Binding("minus", "faster", "Fast", key_display="-"),
        Binding("question_mark", "help", "Help", show=False),
    ]

    def __init__(self, interval: float = 1.0) -> None:
        super().__init__()
        self.pace = interval
        self.sort = "bytes"
        self.paused = False
        self.rates = RecentRates()
        self.events: deque[Event] = deque(maxlen=500)
        self.taken: Snapshot | None = None
        self.overview = Overview()

    def on_mount(self) -> None:
        """Exit cleanly on SIGTERM and SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            # with nohup SIGHUP stays ignored
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.push_screen(self.overview)

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Keep a snapshot, and show it unless paused."""
        self.rates.add(message.snapshot)
        self.events.extend(message.snapshot.events)
        if not self.paused:
            self.taken = message.snapshot
            self.refresh_screens()

    def refresh_screens(self) -> None:
        """Show the last snapshot on the visible screen."""
        screen, taken = self.screen, self.taken
        if taken is None:
            return
        if isinstance(screen, Detail):
            screen.show(taken, self.rates)
        elif isinstance(screen, Log):
            screen.show(tuple(self.events), taken.missing)
        elif isinstance(screen, Host):
            screen.show(taken)
        elif isinstance(screen, Overview):
            screen.show(taken, self.rates, self.sort, tuple(self.events))
            self.tell()

    def tell(self) -> None:
        """Update the status line."""
        if self.taken:
            state = "PAUSED" if self.paused else f"every {self.pace:g} s"
            self.overview.query_one("#status", Static).update(
                status(self.taken, f"by {self.sort}  {state}")
            )

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Show the bottleneck of the highlighted mount."""
        self.overview.tell()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Show only mounts with this text in their name."""
        self.overview.wanted = message.value
        self._close_filter()

    def action_deeper(self) -> None:
        """Open the mount at the cursor, or apply the filter."""
        given = self.overview.query_one("#filter", Input)
        if given.has_focus:
            self.overview.wanted = given.value
            self._close_filter()
        elif self.screen is self.overview and self.overview.chosen:
            self._go(Detail(self.overview.chosen.device))

    def action_leave(self) -> None:
        """Go back one screen; on the first, clear the filter."""
        if self.screen is not self.overview:
            self.pop_screen()
        else:
            self.overview.wanted = ""
            self.overview.query_one("#filter", Input).value = ""
            self._close_filter()
        self.refresh_screens()

    def action_pause(self) -> None:
        """Pause or resume."""
        self.paused = not self.paused
        self.tell()

    def action_sort(self) -> None:
        """Sort by the next key."""
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.refresh_screens()

    def action_filter(self) -> None:
        """Open the filter input."""
        if self.screen is self.overview:
            given = self.overview.query_one("#filter", Input)
            given.display = True
            given.focus()

    def action_log(self) -> None:
        """Open the event log."""
        if not isinstance(self.screen, Log):
            self._go(Log())

    def action_host(self) -> None:
        """Open the host screen."""
        if not isinstance(self.screen, Host):
            self._go(Host())

    def action_help(self) -> None:
        """Show or hide all key bindings."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_slower(self) -> None:
        """Use a longer interval."""
        self._pace(next((pace for pace in _INTERVALS if pace > self.pace), _INTERVALS[-1]))

    def action_faster(self) -> None:
        """Use a shorter interval."""
        shorter = [pace for pace in _INTERVALS if pace < self.pace]
        self._pace(shorter[-1] if shorter else _INTERVALS[0])

    def _pace(self, seconds: float) -> None:
        self.pace = seconds
        self.tell()

    def _go(self, screen: Detail | Log | Host) -> None:
        self.push_screen(screen)
        self.call_after_refresh(self.refresh_screens)

    def _close_filter(self) -> None:
        self.overview.query_one("#filter", Input).display = False
        self.overview.query_one("#mounts", DataTable).focus()
        self.refresh_screens()


class LiveTop(Top):
    """Top, with the snapshots of a feed."""

    def __init__(self, options: FeedOptions) -> None:
        super().__init__(options.interval)
        self.feed = Feed(options, self._deliver, self.exit)

    def _deliver(self, snapshot: Snapshot) -> None:
        self.post_message(SnapshotTaken(snapshot))

    def _pace(self, seconds: float) -> None:
        super()._pace(seconds)
        self.feed.sampler.interval = seconds

    def on_mount(self) -> None:
        """Start the feed, now that the screen can show snapshots."""
        super().on_mount()
        self.feed.start()


def run(options: FeedOptions) -> None:
    """Show snapshots until the user quits.

    Raises UserError without a terminal, or with the error that ended the feed.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            "standard input or output is not a terminal",
            "print frames instead: nfsrdma top --batch",
        )
    # probes capture the compiler's output on descriptor 2, where textual draws
    sys.__stderr__ = os.fdopen(os.dup(2), "w")  # type: ignore[misc]
    top = LiveTop(options)
    try:
        top.run()
    finally:
        top.feed.stop()
    if top.feed.failure:
        raise top.feed.failure
