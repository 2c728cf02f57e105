# SPDX-License-Identifier: Apache-2.0
"""Broadcast snapshots from the sampler's thread to the browsers, and keep the last hour.

Each listener has a short queue of events, the same bytes for all.  A listener with a full queue is
disconnected; EventSource reconnects by itself.
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


class Full(Exception):  # noqa: N818 - a state, not a fault
    """The number of listeners is at its limit."""


class Hub:
    """``deliver`` runs in any thread, all other methods in the event loop's thread."""

    def __init__(self, most: int = 256) -> None:
        self.most = most
        self._history = History()
        self._events: deque[object] = deque(maxlen=_EVENTS)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Queue[bytes | None]] = set()

    @property
    def listening(self) -> int:
        """The number of listeners."""
        return len(self._listeners)

    def open(self) -> None:
        """Send events to listeners in the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and send it to all listeners."""
        small, events = text(frame(snapshot)), to_plain(snapshot.events)
        with self._lock:
            self._history.add(snapshot.seconds, small)
            self._events.extend(events)
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, small, snapshot)

    def past(self) -> bytes:
        """The last hour and the newest events, as JSON."""
        with self._lock:
            frames, events = self._history.frames(), list(self._events)
        return f'{{"frames":[{",".join(frames)}],"events":{text(events)}}}'.encode()

    async def listen(self) -> AsyncIterator[bytes]:
        """Server-sent events with the snapshots from now on; Full at the limit of listeners."""
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
        """Disconnect all listeners."""
        for queue in list(self._listeners):
            self._dismiss(queue)

    def _send(self, small: str, snapshot: Snapshot) -> None:
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
