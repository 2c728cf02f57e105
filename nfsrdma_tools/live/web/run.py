# SPDX-License-Identifier: Apache-2.0
"""A dashboard or an exporter, from its socket to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.live.collect.feed import FeedOptions, fed
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.snapshot import Snapshot
from nfsrdma_tools.live.web.access_token import token_for
from nfsrdma_tools.live.web.application import application
from nfsrdma_tools.live.web.broadcast import Hub
from nfsrdma_tools.live.web.http_server import bound, server

__all__ = ["Place", "serve"]


@dataclass(frozen=True)
class Place:
    """Where, with whose token, and whether there is a page or metrics alone."""

    address: str
    port: int
    token: Path | None
    page: bool


def serve(asked: FeedOptions, place: Place, say: Callable[[str], None]) -> None:
    """Serve until the process is told to end; ``say`` hears where."""
    token = token_for(place.address, place.token)
    hub, metrics = Hub(), Metrics()

    def deliver(snapshot: Snapshot) -> None:
        metrics.add(snapshot)
        if place.page:
            hub.deliver(snapshot)

    with bound(place.address, place.port) as listener:
        web = server(application(hub, metrics, token, place.page))
        with fed(asked, deliver, lambda: setattr(web, "should_exit", True)):
            say(_address(place, listener.getsockname()[1], token))
            web.run(sockets=[listener])


def _address(place: Place, port: int, token: str) -> str:
    name = f"[{place.address}]" if ":" in place.address else place.address
    url = f"http://{name}:{port}/" + ("" if place.page else "metrics")
    # one that was made up is told, one that was given is known
    made_up = token and place.token is None
    if not made_up:
        return url
    return f"{url}?token={token}" if place.page else f"{url} with the token {token}"
