# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top``, ``dashboard`` and ``exporter``: what happens now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nfsrdma_tools.live.feed import Asked

__all__ = ["dashboard", "exporter", "top"]

_Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two snapshots.")]
_Stall = Annotated[float, typer.Option(min=1, help="After so many seconds an RPC is a stall.")]
_Probes = Annotated[bool, typer.Option("--probes/--no-probes", help="Count in the kernel, too.")]
_Record = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep all snapshots there.")]
_Replay = Annotated[Path | None, typer.Option(metavar="FILE", help="Show a record, not this host.")]
_Address = Annotated[str, typer.Option(help="Listen here; others than loopback need a token.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0: any.")]
_Token = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The token, in a file nobody else may read.")
]


def top(
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    record: _Record = None,
    replay: _Replay = None,
) -> None:
    """Show mounts, clients and what limits them, in the terminal. ? shows the keys.

    With root and bcc more is seen; what is not is said.
    """
    from nfsrdma_tools.live.feed import Asked
    from nfsrdma_tools.live.top.run import run

    run(Asked(interval, stall, probes, record, replay))


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
    from nfsrdma_tools.live.feed import Asked

    _serve(Asked(interval, stall, probes, record, replay), address, port, token, page=True)


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
    from nfsrdma_tools.live.feed import Asked

    _serve(Asked(interval, stall, probes), address, port, token, page=False)


def _serve(asked: Asked, address: str, port: int, token: Path | None, page: bool) -> None:
    from nfsrdma_tools.live.serving import Place, serve

    serve(asked, Place(address, port, token, page), lambda said: print(said, flush=True))
