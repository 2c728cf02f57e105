# SPDX-License-Identifier: Apache-2.0
"""Run a dashboard or an exporter until the process has to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nfsrdma_tools.live.collect.feed import FeedOptions, fed
from nfsrdma_tools.live.prometheus.families import NAMES
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.web import access_token
from nfsrdma_tools.live.web.access_control import Access
from nfsrdma_tools.live.web.application import application
from nfsrdma_tools.live.web.broadcast import Hub
from nfsrdma_tools.live.web.http_server import server
from nfsrdma_tools.live.web.listen_address import Address

if TYPE_CHECKING:
    from nfsrdma_tools.live.web.web_config import WebConfig

__all__ = ["Service", "access_to", "serve"]


@dataclass(frozen=True)
class Service:
    """The addresses and the content: the page with metrics, or metrics of these collectors only.

    ``token`` and ``config`` are files: a token, and a web configuration file.
    """

    addresses: Sequence[Address]
    token: Path | None = None
    config: Path | None = None
    page: bool = True
    collectors: Sequence[str] = field(default=NAMES)


def serve(options: FeedOptions, service: Service, report: Callable[[str], None]) -> None:
    """Serve until the process has to stop; ``report`` receives a line for each address."""
    config = _config(service.config)
    access = access_to(service, config)
    hub, metrics = Hub(), Metrics(service.collectors)

    def deliver(snapshot: Snapshot) -> None:
        metrics.add(snapshot)
        if service.page:
            hub.deliver(snapshot)

    tls = config.tls.context() if config and config.tls else None
    with ExitStack() as stack:
        sockets = [stack.enter_context(address.bind()) for address in service.addresses]
        web = server(application(hub, metrics, access, service.page), tls)
        with fed(options, deliver, lambda: setattr(web, "should_exit", True)):
            for address, listener in zip(service.addresses, sockets, strict=True):
                bound = address._replace(port=listener.getsockname()[1])
                report(_line(bound.url("https" if tls else "http"), service, access.token))
            web.run(sockets=sockets)


def access_to(service: Service, config: WebConfig | None) -> Access:
    """The access that the files define; a new token if they define none beyond loopback."""
    token = access_token.read(service.token) if service.token else ""
    users = config.users if config else {}
    access = Access(token, users, config is not None and config.verifies_clients)
    if access.is_open and not all(address.is_loopback for address in service.addresses):
        return Access(access_token.generated())
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
