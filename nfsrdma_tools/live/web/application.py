# SPDX-License-Identifier: Apache-2.0
"""The web application: the page and its files, events, the last hour, metrics.  It only reads."""

from __future__ import annotations

import importlib.resources
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.web.access import Access, Guard
from nfsrdma_tools.live.web.broadcast import Hub, TooManyListeners

__all__ = ["application"]

_FOLDER = importlib.resources.files("nfsrdma_tools.live.web") / "page"
_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_TEXT = "nfsrdma exporter: metrics are at /metrics\n"


def application(
    hub: Hub, metrics: Metrics, access: Access | None = None, page: bool = True
) -> ASGIApp:
    """The application; without ``page`` it is the exporter, which serves metrics only."""

    def answer_metrics(request: Request) -> Response:
        body, kind = metrics.text(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    def past(_: Request) -> Response:
        return Response(hub.past(), media_type="application/json")

    async def events(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if hub.listening >= hub.most:
            return PlainTextResponse("too many listeners\n", 503, {"retry-after": "30"})
        return StreamingResponse(_events(hub), media_type="text/event-stream")

    routes = [Route("/metrics", answer_metrics)]
    if page:
        routes += [Route("/past", past), Route("/events", events), *_files()]
    else:
        routes.append(Route("/", lambda _: PlainTextResponse(_TEXT)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        hub.open()
        yield
        hub.close()

    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    return Guard(app, access or Access())


async def _events(hub: Hub) -> AsyncIterator[bytes]:
    try:
        async for event in hub.listen():
            yield event
    except TooManyListeners:
        return


def _files() -> list[Route]:
    """A route for each file of the page: no path of a request reaches the file system."""
    routes = []
    for item in _FOLDER.iterdir():
        kind = _KINDS.get(item.name.rpartition(".")[2])
        if kind:
            path = "/" if item.name == "index.html" else f"/{item.name}"
            routes.append(Route(path, _file(item.read_bytes(), kind)))
    return routes


def _file(body: bytes, kind: str) -> ASGIApp:
    return Response(body, headers={"content-type": kind})
