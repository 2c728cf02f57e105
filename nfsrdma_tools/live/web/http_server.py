# SPDX-License-Identifier: Apache-2.0
"""uvicorn with limits: clients that are slow, send too much or send nonsense are disconnected.

uvicorn limits the size of a request's head and the number of concurrent requests.  It does not
limit how long a client takes for its TLS handshake, for its request and to read the answer.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Patient", "server"]

_HEAD_BYTES = 16 << 10
_MOST = 320
_PATIENCE = 10.0
_COMPLETE = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class Patient(H11Protocol):
    """HTTP/1.1 that waits ``patience`` seconds for a request, and as long for a stuck reader."""

    patience = _PATIENCE
    most = _MOST

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: Any) -> None:
        """A client connected: its request is due within ``patience`` seconds."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        self._start("request")

    def data_received(self, data: bytes) -> None:
        """A part of a request arrived: stop waiting when the request is complete."""
        super().data_received(data)
        if self.conn.their_state in _COMPLETE:
            self._stop("request")
        else:
            self._start("request")

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        super().pause_writing()
        self._start("reader")

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop("reader")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its timers."""
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def _start(self, name: str) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(self.patience, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """It checks twice a second whether it has to stop; uvicorn's own loop wakes up ten times."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen; with TLS, a handshake has ``patience`` seconds, too."""
        if self.config.ssl:
            loop = asyncio.get_running_loop()
            limited = functools.partial(loop.create_server, ssl_handshake_timeout=Patient.patience)
            # uvicorn offers no option for the timeout of 60 s that asyncio has
            setattr(loop, "create_server", limited)  # noqa: B010 - mypy rejects the assignment
        await super().startup(sockets)

    async def main_loop(self) -> None:
        """Run until ``should_exit``."""
        while not await self.on_tick(0):
            await asyncio.sleep(0.5)


def server(app: ASGIApp, tls: ssl.SSLContext | None = None) -> uvicorn.Server:
    """A server of ``app``, to be run with ``sockets=[...]``; it logs only its own errors."""
    config = uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_level="error",
        server_header=False,
        limit_concurrency=_MOST,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    return _Server(config)
