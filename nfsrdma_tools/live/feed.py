# SPDX-License-Identifier: Apache-2.0
"""A thread that delivers snapshots, from the sampler or from a recording.

Snapshots of the sampler get their bottlenecks and events here (analyze/); those of a recording
have them.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.live import snapshot_json
from nfsrdma_tools.live.analyze.bottleneck import with_limits
from nfsrdma_tools.live.analyze.stalls import EventFinder
from nfsrdma_tools.live.collect.probe_statistics import SETS
from nfsrdma_tools.live.collect.sampler import Sampler
from nfsrdma_tools.live.snapshot import Snapshot

__all__ = ["Feed", "FeedOptions", "fed", "snapshots"]

Deliver = Callable[[Snapshot], None]
_WAITING = "nfsrdma: waiting for the compiler, to detach the probes"


@dataclass(frozen=True)
class FeedOptions:
    """Options of the sampler.

    ``interval`` is the time between snapshots and ``patience`` the age of an RPC that is a stall,
    both in seconds.  ``record`` is a file to write, ``replay`` one to read in place of the host.
    ``machine`` is the host.  ``pending_rpcs``: whether the RPCs that nfsd works on are read, which
    not all kernels do without risk (host/nfsd_netlink.py): only while a user looks.
    """

    interval: float = 1.0
    patience: float = 5.0
    probes: bool = True
    record: Path | None = None
    replay: Path | None = None
    probe_sets: Sequence[str] = SETS
    machine: Machine = LIVE
    pending_rpcs: bool = False


class Feed:
    """Delivers snapshots until ``stop``; ``failure`` is the error that ended it, if one did."""

    def __init__(self, options: FeedOptions, deliver: Deliver, failed: Callable[[], None]) -> None:
        _check(options)
        sets = options.probe_sets if options.probes else ()
        self.sampler = Sampler(options.interval, sets, options.machine, options.pending_rpcs)
        self._finder = EventFinder(options.patience)
        self.failure: UserError | None = None
        self._recorder = snapshot_json.Recorder(options.record) if options.record else None
        # read it now: a file that is not a recording is an error before anything is displayed
        self._past = list(snapshot_json.read(options.replay)) if options.replay else None
        self._compiles = bool(sets) and not options.replay
        self._deliver, self._failed = deliver, failed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and detach the probes."""
        self._over.set()
        self.sampler.stop()
        self._ended()
        if self._recorder:
            self._recorder.close()

    def _ended(self) -> None:
        """Wait for the thread, however long the compiler takes: it detaches what it attached."""
        if self._thread.is_alive():
            self._thread.join(timeout=1)
        if self._compiles and self._thread.is_alive():
            print(_WAITING, file=sys.__stderr__, flush=True)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            if self._past is None:
                self.sampler.run(self._analyze)
            else:
                snapshot_json.replayed(self._past, self._hand_on, self._over.wait)
        except UserError as error:
            self.failure = error
            self._failed()
        # any other error must not leave old figures on the screen
        except Exception as error:
            self.failure = UserError(f"the sampler failed: {error!r}")
            self._failed()

    def _analyze(self, snapshot: Snapshot) -> None:
        spent = time.thread_time_ns()
        snapshot = with_limits(snapshot)
        events = (*snapshot.events, *self._finder.add(snapshot))
        cost = snapshot.cost_ns + time.thread_time_ns() - spent
        self._hand_on(replace(snapshot, events=events, cost_ns=cost))

    def _hand_on(self, snapshot: Snapshot) -> None:
        if self._recorder:
            self._recorder.add(snapshot)
        self._deliver(snapshot)


@contextmanager
def fed(options: FeedOptions, deliver: Deliver, failed: Callable[[], None]) -> Iterator[Feed]:
    """A feed that runs within the block; UserError after the block if the feed failed."""
    feed = Feed(options, deliver, failed)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()
    if feed.failure:
        raise feed.failure


def snapshots(options: FeedOptions, count: int | None = None) -> Iterator[Snapshot]:
    """Yield ``count`` snapshots; None: until the recording ends or the caller closes the iterator.

    Raises UserError when the sampler fails or the recording cannot be read.
    """
    _check(options)
    source = snapshot_json.read(options.replay) if options.replay else _sampled(options)
    return itertools.islice(source, count)


def _sampled(options: FeedOptions) -> Iterator[Snapshot]:
    waiting: SimpleQueue[Snapshot | None] = SimpleQueue()
    with fed(options, waiting.put, lambda: waiting.put(None)):
        while snapshot := waiting.get():
            yield snapshot


def _check(options: FeedOptions) -> None:
    if options.record and options.replay:
        raise UsageError("--record and --replay exclude each other", "omit one of them")
