# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top``: mounts, clients and bottlenecks, in the terminal or as frames of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.live import _Interval, _Probes, _Record, _Replay, _Stall
from nfsrdma_tools.cli.options import flag, option
from nfsrdma_tools.errors import UsageError

if TYPE_CHECKING:
    from nfsrdma_tools.live.feed import FeedOptions

__all__ = ["top"]


def top(
    batch: Annotated[
        bool, flag("Print frames of text; needs no terminal.", "--batch", "-b")
    ] = False,
    count: Annotated[
        int | None,
        option(
            "N",
            "Stop after N frames, with --batch (default: run until Ctrl-C).",
            "--count",
            "-c",
            "-n",
            min=1,
        ),
    ] = None,
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    record: _Record = None,
    replay: _Replay = None,
    as_json: Annotated[
        bool, flag("Print a line of JSON per frame, with --batch.", "--json", "-j")
    ] = False,
) -> None:
    """Show mounts, clients and bottlenecks, live.

    Press ? for the keys.  With --batch, print frames instead, as top(1) does.  Root and bcc add
    probes; unavailable metrics are listed.
    """
    from nfsrdma_tools.live.feed import FeedOptions

    options = FeedOptions(interval, stall, probes, record, replay)
    if batch:
        _print(options, count, as_json)
        return
    if count or as_json:
        raise UsageError("--count and --json need --batch", "add -b")
    from nfsrdma_tools.live.top.app import run

    run(options)


def _print(options: FeedOptions, count: int | None, as_json: bool) -> None:
    from nfsrdma_tools.cli.output import print_line
    from nfsrdma_tools.cli.top_view import frame
    from nfsrdma_tools.live.dataclass_json import to_plain
    from nfsrdma_tools.live.feed import snapshots

    try:
        for snapshot in snapshots(options, count):
            if as_json:
                print_line(to_plain(snapshot))
            else:
                print(*frame(snapshot), sep="\n", flush=True)
    except KeyboardInterrupt:
        # without a count, Ctrl-C is how it ends
        if count:
            raise
