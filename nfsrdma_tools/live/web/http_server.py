# SPDX-License-Identifier: Apache-2.0
"""uvicorn with limits: who is slow, says too much or says nonsense is closed.

uvicorn itself limits the size of a request's head, and how many are served at once; what it leaves
open is a client that never ends its head, and one that never reads its answer.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nfsrdma_tools.errors import UserError

__all__ = ["Patient", "bound", "server"]

_HEAD_BYTES = 16 << 10
_MOST = 320
_PATIENCE = 10.0
_ASKED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class Patient(H11Protocol):
    """HTTP/1.1 that waits ``patience`` seconds for a request, and as long for a stuck reader."""

    patience = _PATIENCE
    most = _MOST

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: Any) -> None:
        """A client came: its request is awaited from now on."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        self._wait("request")

    def data_received(self, data: bytes) -> None:
        """Some of a request: the rest has to come in time."""
        super().data_received(data)
        if self.conn.their_state in _ASKED:
            self._waited("request")
        else:
            self._wait("request")

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        self._wait("reader")

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._waited("reader")

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        for what in list(self._timers):
            self._waited(what)
        super().connection_lost(exc)

    def _wait(self, what: str) -> None:
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(self.patience, self.transport.abort)

    def _waited(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """It looks twice a second whether it is to end; uvicorn's own loop wakes up ten times."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.5)


def bound(address: str, port: int) -> socket.socket:
    """A socket that listens there; UserError when it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address.strip("[]"), port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot listen on {address} port {port}: {why}", "--port") from error


def server(app: ASGIApp) -> uvicorn.Server:
    """A server of ``app``, to be run with ``sockets=[...]``; it logs nothing but its own faults."""
    return _Server(
        uvicorn.Config(
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
    )
