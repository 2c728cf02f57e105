# SPDX-License-Identifier: Apache-2.0
"""Run ``nfsrdma top`` on a terminal."""

from __future__ import annotations

import os
import sys

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.feed import Feed, FeedOptions
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.top.app import Taken, Top

__all__ = ["run"]


class _Top(Top):
    """Top, with the snapshots of a feed."""

    def __init__(self, options: FeedOptions) -> None:
        super().__init__(options.interval)
        self.feed = Feed(options, self._deliver, self.exit)

    def _deliver(self, snapshot: Snapshot) -> None:
        self.post_message(Taken(snapshot))

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
    top = _Top(options)
    try:
        top.run()
    finally:
        top.feed.stop()
    if top.feed.failure:
        raise top.feed.failure
