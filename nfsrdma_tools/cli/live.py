# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top``, ``dashboard`` and ``exporter``: what happens now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.errors import UserError

if TYPE_CHECKING:
    from nfsrdma_tools.live.collect.feed import FeedOptions

__all__ = ["dashboard", "exporter"]

_Interval = Annotated[
    float,
    typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Time between snapshots."),
]
_Stall = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, help="Age of an RPC that is reported as a stall.")
]
_Probes = Annotated[bool, typer.Option("--probes/--no-probes", help="Attach the eBPF probes.")]
_Record = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write all snapshots to a new FILE.")
]
_Replay = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Show the snapshots in FILE, not this host.")
]
_Address = Annotated[str, typer.Option(help="Listen here; others than loopback need a token.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0: any.")]
_Token = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The token, in a file nobody else may read.")
]


def dashboard(
    address: _Address = "127.0.0.1",
    port: _Port = 8949,
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    token: _Token = None,
    record: _Record = None,
    replay: _Replay = None,
) -> None:
    """Show the same in browsers, with the last hour; read-only. Metrics are at /metrics.

    For another machine use ssh -L 8949:127.0.0.1:8949 HOST, or --address with a token, which goes
    over the network as it is.
    """
    from nfsrdma_tools.live.collect.feed import FeedOptions

    _serve(FeedOptions(interval, stall, probes, record, replay), address, port, token, page=True)


def exporter(
    address: _Address = "127.0.0.1",
    port: _Port = 9949,
    interval: _Interval = 5.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    token: _Token = None,
) -> None:
    """Offer the same to Prometheus, at /metrics.

    With another address it needs a token, which is Prometheus' "authorization: credentials".
    """
    from nfsrdma_tools.live.collect.feed import FeedOptions

    _serve(FeedOptions(interval, stall, probes), address, port, token, page=False)


def _serve(asked: FeedOptions, address: str, port: int, token: Path | None, page: bool) -> None:
    with _needed("starlette, uvicorn or prometheus-client"):
        from nfsrdma_tools.live.web.run import Place, serve

        serve(asked, Place(address, port, token, page), lambda said: print(said, flush=True))


class _needed:  # noqa: N801 - it reads as a word of the sentence
    """Says which library is missing, if one is."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            what = f"{error.name} is not installed: this needs {self._what}"
            raise UserError(what, "pip install nfsrdma-tools") from error
