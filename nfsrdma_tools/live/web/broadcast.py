# SPDX-License-Identifier: Apache-2.0
"""Between the sampler's thread and the browsers: the hour, and who listens.

A listener has a queue of a few events, the same bytes for all.  One whose queue is full is sent
away, and comes back by itself when it can (EventSource).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from nfsrdma_tools.live.dataclass_json import to_plain
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.web.history import History, frame
from nfsrdma_tools.live.web.page_data import page_data, text

__all__ = ["Full", "Hub"]

_QUEUE = 8
_EVENTS = 500


class Full(Exception):  # noqa: N818 - it is a state, and not a fault
    """As many listen as may."""


class Hub:
    """``deliver`` may be called from any thread, all else from that of the event loop."""

    def __init__(self, most: int = 256) -> None:
        self.most = most
        self._history = History()
        self._events: deque[object] = deque(maxlen=_EVENTS)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Queue[bytes | None]] = set()

    @property
    def listening(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def open(self) -> None:
        """From now on events go to listeners of the running loop."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and tell all who listen."""
        small, events = text(frame(snapshot)), to_plain(snapshot.events)
        with self._lock:
            self._history.add(snapshot.time, small)
            self._events.extend(events)
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, small, snapshot)

    def past(self) -> bytes:
        """The hour, and the last events, as JSON."""
        with self._lock:
            frames, events = self._history.frames(), list(self._events)
        return f'{{"frames":[{",".join(frames)}],"events":{text(events)}}}'.encode()

    async def listen(self) -> AsyncIterator[bytes]:
        """Each snapshot from now on, as a server-sent event; Full when too many listen."""
        if len(self._listeners) >= self.most:
            raise Full
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self._listeners.add(queue)
        try:
            yield b"retry: 2000\n\n"
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """Send everybody away."""
        for queue in list(self._listeners):
            self._dismiss(queue)

    def _tell(self, small: str, snapshot: Snapshot) -> None:
        if not self._listeners:
            return
        event = _event(small, text(page_data(snapshot)))
        for queue in list(self._listeners):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._dismiss(queue)

    def _dismiss(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._listeners.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


def _event(small: str, now: str) -> bytes:
    return f'data: {{"frame":{small},"now":{now}}}\n\n'.encode()
