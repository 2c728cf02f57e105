# SPDX-License-Identifier: Apache-2.0
"""Serve a dashboard or an exporter over HTTP until the process has to stop.

``serve`` listens on addresses (HOST:PORT, [IPV6]:PORT, or :PORT for all), and gives snapshots to
the application: the page and its files, events, the last hour, and metrics, which only read.  It
runs uvicorn with limits: clients that are slow, send too much or send nonsense are disconnected.
uvicorn limits the size of a request's head and the number of concurrent requests.  It does not
limit how long a client takes for its TLS handshake, for its request and to read the answer: here,
the event loop does, with a protocol of asyncio between its transports and uvicorn.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib.resources
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.live.collect.namespace import mount_namespace
from nfsrdma_tools.live.feed import FeedOptions, fed
from nfsrdma_tools.live.prometheus.families import MOST_SERIES, NAMES
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.web.access import Access, Guard, is_loopback, new_token, read_token
from nfsrdma_tools.live.web.broadcast import Hub, TooManyListeners

if TYPE_CHECKING:
    from nfsrdma_tools.live.web.web_config import WebConfig

__all__ = [
    "Address",
    "Patient",
    "Service",
    "WebServer",
    "access_to",
    "application",
    "parse_address",
    "serve",
]

_FORM = "expected HOST:PORT, [IPV6]:PORT or :PORT"


class Address(NamedTuple):
    """A host and a TCP port; "" is every address of this host, port 0 any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        return is_loopback(self.host)

    def bind(self) -> socket.socket:
        """A socket that listens there; UserError if the system refuses."""
        try:
            if not self.host and socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("::", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
                )
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "choose another --web.listen-address"
            raise UserError(f"cannot listen on {self}: {reason}", hint) from error

    def url(self, scheme: str) -> str:
        """The URL of the server there; localhost stands for every address."""
        return f"{scheme}://{self._replace(host=self.host or 'localhost')}/"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address in ``text``; UsageError if it has another form."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--web.listen-address {text}: the port is missing or not a port", _FORM)
    if (":" in bare) != bracketed:
        raise UsageError(f"--web.listen-address {text}: only IPv6 addresses have brackets", _FORM)
    return Address(bare, int(port))


@dataclass(frozen=True)
class Service:
    """The addresses and the content: the page with metrics, or metrics of these collectors only.

    ``token`` and ``config`` are files: a token, and a web configuration file.  ``max_series`` is
    the most series of the metrics.
    """

    addresses: Sequence[Address]
    token: Path | None = None
    config: Path | None = None
    page: bool = True
    collectors: Sequence[str] = field(default=NAMES)
    max_series: int = MOST_SERIES


def serve(options: FeedOptions, service: Service, report: Callable[[str], None]) -> None:
    """Serve until the process has to stop; ``report`` receives a line for each address."""
    config = _config(service.config)
    access = access_to(service, config)
    # a recording is that of another time, and may be of another host
    source = None if options.replay else mount_namespace(options.machine)
    hub, metrics = Hub(), Metrics(service.collectors, service.max_series, source)

    def deliver(snapshot: Snapshot) -> None:
        metrics.add(snapshot)
        if service.page:
            hub.deliver(snapshot)

    tls = config.tls.context() if config and config.tls else None
    with ExitStack() as stack:
        sockets = [stack.enter_context(address.bind()) for address in service.addresses]
        web = WebServer(application(hub, metrics, access, service.page), tls)
        with fed(options, deliver, lambda: setattr(web, "should_exit", True)):
            for address, listener in zip(service.addresses, sockets, strict=True):
                bound = address._replace(port=listener.getsockname()[1])
                report(_line(bound.url("https" if tls else "http"), service, access.token))
            web.run(sockets=sockets)


def access_to(service: Service, config: WebConfig | None) -> Access:
    """The access that the files define; a new token if they define none beyond loopback."""
    token = read_token(service.token) if service.token else ""
    users = config.users if config else {}
    access = Access(token, users, config is not None and config.verifies_clients)
    if access.is_open and not all(address.is_loopback for address in service.addresses):
        return Access(new_token())
    return access


def _config(path: Path | None) -> WebConfig | None:
    if path is None:
        return None
    # only a server with such a file needs PyYAML
    from nfsrdma_tools.live.web import web_config

    return web_config.read(path)


def _line(url: str, service: Service, token: str) -> str:
    url += "" if service.page else "metrics"
    # print a generated token; the user knows one from a file
    if not token or service.token:
        return url
    return f"{url}?token={token}" if service.page else f"{url} with the token {token}"


_HEAD_BYTES = 16 << 10
_MOST_CONNECTIONS = 320
_PATIENCE = 10.0


class Patient(asyncio.Protocol):
    """Passes a connection on to a protocol of uvicorn, and closes it if the client is too slow.

    The client has ``patience`` seconds for a request, and as long for an answer that it does not
    read.
    """

    patience = _PATIENCE
    most = _MOST_CONNECTIONS

    def __init__(self, inner: asyncio.Protocol, clients: set[Patient]) -> None:
        self.ends: _Ends = (None, None)
        self._inner, self._clients = inner, clients
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answers, self._more = 0, False

    def connection_made(self, transport: Any) -> None:
        """A client connected: its request is due within ``patience`` seconds."""
        self._transport = transport
        self.ends = _ends(transport.get_extra_info(name) for name in ("peername", "sockname"))
        self._clients.add(self)
        self._inner.connection_made(transport)
        if len(self._clients) > self.most:
            transport.abort()
        self._start("request")

    def data_received(self, data: bytes) -> None:
        """A part of a request arrived."""
        if self._answers:
            self._more = True
        else:
            self._start("request")
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        self._inner.pause_writing()
        self._start("reader")

    def resume_writing(self) -> None:
        """The client reads again."""
        self._inner.resume_writing()
        self._stop("reader")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its timers."""
        self._clients.discard(self)
        for name in list(self._timers):
            self._stop(name)
        self._inner.connection_lost(exc)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The request is complete; in the block, the application answers it."""
        self._answers += 1
        self._stop("request")
        try:
            yield
        finally:
            self._answers -= 1
            if self._more and not self._answers:
                # the next request, or a part of it, arrived meanwhile
                self._more = False
                self._start("request")

    def _start(self, name: str) -> None:
        if name not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(self.patience, self._transport.abort)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


_Ends = tuple[tuple[str, int | None] | None, tuple[str, int | None] | None]
"""The addresses and ports of the client and of the server, as in the scope of ASGI."""


def _ends(addresses: Iterable[Any]) -> _Ends:
    client, server = ((str(address[0]), address[1]) if address else None for address in addresses)
    return client, server


class _Loop(asyncio.SelectorEventLoop):
    """An event loop of which each server passes connections through Patient, and TLS if given.

    uvicorn has no options for it, and asyncio waits 60 s for a handshake by default.
    """

    def __init__(self, clients: set[Patient], tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._clients, self._tls = clients, tls

    async def create_server(self, protocol_factory: Any, *args: Any, **more: Any) -> Any:
        """Listen, as asyncio does."""
        if self._tls:
            more |= {"ssl": self._tls, "ssl_handshake_timeout": Patient.patience}
        return await super().create_server(
            lambda: Patient(protocol_factory(), self._clients), *args, **more
        )


class WebServer(uvicorn.Server):
    """A server of an application, with limits for its ``clients``; it logs only its own errors."""

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        self.clients: set[Patient] = set()
        self._tls = tls
        config = uvicorn.Config(
            self._timed(app),
            http="h11",
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="error",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets until ``should_exit``."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self.clients, self._tls)) as runner:
            runner.run(self.serve(sockets=sockets))

    def _timed(self, app: ASGIApp) -> ASGIApp:
        """The application, which is called when a request is complete: its body is dropped."""

        async def timed(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            while (await receive()).get("more_body"):
                pass
            ends = _ends((scope["client"], scope["server"]))
            # a client that has gone is none of them
            client = next((candidate for candidate in self.clients if candidate.ends == ends), None)
            with client.answering() if client else nullcontext():
                await app(scope, receive, send)

        return timed


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

    def past(request: Request) -> Response:
        # in a thread: Starlette runs functions that are not async in one
        return _past(hub.past(), request.headers.get("accept-encoding", ""))

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


def _past(body: bytes, accepted: str) -> Response:
    headers = {"vary": "accept-encoding"}
    if "gzip" in accepted:
        body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
    return Response(body, media_type="application/json", headers=headers)


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
