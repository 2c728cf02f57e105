# SPDX-License-Identifier: Apache-2.0
"""Snapshots for ``nfsrdma top --batch``: from the sampler, or from a recording without waiting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from queue import SimpleQueue

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.live.collect import recording
from nfsrdma_tools.live.collect.feed import FeedOptions, fed
from nfsrdma_tools.live.snapshot import Snapshot

__all__ = ["snapshots"]


def snapshots(options: FeedOptions, count: int | None = None) -> Iterator[Snapshot]:
    """Yield ``count`` snapshots; None: until the recording ends or the caller closes the iterator.

    Raises UserError when the sampler fails or the recording cannot be read.
    """
    if options.record and options.replay:
        raise UsageError("--record and --replay exclude each other", "omit one of them")
    source = recording.read(options.replay) if options.replay else _sampled(options)
    return itertools.islice(source, count)


def _sampled(options: FeedOptions) -> Iterator[Snapshot]:
    waiting: SimpleQueue[Snapshot | None] = SimpleQueue()
    with fed(options, waiting.put, lambda: waiting.put(None)):
        while snapshot := waiting.get():
            yield snapshot
