# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top`` from its start to its end."""

from __future__ import annotations

import os
import sys

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.collect.feed import Feed, FeedOptions
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.top.app import Taken, Top

__all__ = ["run"]


class _Top(Top):
    """Top, fed."""

    def __init__(self, asked: FeedOptions) -> None:
        super().__init__(asked.interval)
        self.feed = Feed(asked, self._deliver, self.exit)

    def _deliver(self, snapshot: Snapshot) -> None:
        self.post_message(Taken(snapshot))

    def _pace(self, seconds: float) -> None:
        super()._pace(seconds)
        self.feed.sampler.interval = seconds

    def on_mount(self) -> None:
        """From now on there is somebody to deliver to."""
        super().on_mount()
        self.feed.start()


def run(asked: FeedOptions) -> None:
    """Show until it is told to end.

    Raises UserError without a terminal, or with what ended the feed.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            "this is no terminal", "nfsrdma exporter, or trace --json, say it to programs"
        )
    # probes keep the compiler's words from descriptor 2, which is where textual draws
    sys.__stderr__ = os.fdopen(os.dup(2), "w")  # type: ignore[misc]
    top = _Top(asked)
    try:
        top.run()
    finally:
        top.feed.stop()
    if top.feed.failure:
        raise top.feed.failure
