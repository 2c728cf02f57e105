# SPDX-License-Identifier: Apache-2.0
"""Where a face gets its snapshots: the sampler or a record, in a thread, recorded meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.collect import recording
from nfsrdma_tools.live.collect.sampler import Sampler
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.probes.probe_sets import NAMES

__all__ = ["Feed", "FeedOptions", "fed"]

Deliver = Callable[[Snapshot], None]
_WAITING = "nfsrdma: ends as soon as the probes are compiled and taken away again"


@dataclass(frozen=True)
class FeedOptions:
    """What is asked for: seconds between snapshots, and after how many an RPC is a stall."""

    interval: float = 1.0
    patience: float = 5.0
    probes: bool = True
    record: Path | None = None
    replay: Path | None = None


class Feed:
    """Delivers until ``stop``; ``failure`` is why it ended by itself, if it did."""

    def __init__(self, asked: FeedOptions, deliver: Deliver, failed: Callable[[], None]) -> None:
        if asked.replay and asked.record:
            raise UserError("--record and --replay exclude each other", "leave one away")
        self.sampler = Sampler(asked.interval, NAMES if asked.probes else (), asked.patience)
        self.failure: UserError | None = None
        self._recorder = recording.Recorder(asked.record) if asked.record else None
        # here, so that a file that is none is an error before any face is shown
        self._past = list(recording.read(asked.replay)) if asked.replay else None
        self._compiles = asked.probes and not asked.replay
        self._deliver, self._failed = deliver, failed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was attached to the kernel is detached then."""
        self._over.set()
        self.sampler.stop()
        self._ended()
        if self._recorder:
            self._recorder.close()

    def _ended(self) -> None:
        """Wait, however long the compiler takes: what it returns has to be detached, once."""
        if self._thread.is_alive():
            self._thread.join(timeout=1)
        if self._compiles and self._thread.is_alive():
            print(_WAITING, file=sys.__stderr__, flush=True)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            if self._past is None:
                self.sampler.run(self._hand_on)
            else:
                recording.replayed(self._past, self._hand_on, self._over.wait)
        except UserError as error:
            self.failure = error
            self._failed()
        # whatever it is: who looks is told, instead of seeing old figures for ever
        except Exception as error:
            self.failure = UserError(f"no more snapshots: {error!r}")
            self._failed()

    def _hand_on(self, snapshot: Snapshot) -> None:
        if self._recorder:
            self._recorder.add(snapshot)
        self._deliver(snapshot)


@contextmanager
def fed(asked: FeedOptions, deliver: Deliver, failed: Callable[[], None]) -> Iterator[Feed]:
    """A feed that runs within the block; UserError after it when the feed failed."""
    feed = Feed(asked, deliver, failed)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()
    if feed.failure:
        raise feed.failure
