# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma ping``: test whether a server answers NFS over RDMA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, default_signals, option
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.client.ping import Ping

__all__ = ["ping"]


def ping(
    server: Annotated[
        str, argument("SERVER[:PORT]", "Server, and its port for RDMA (default: 20049).")
    ],
    count: Annotated[
        int, option("N", "Call NULL N times (default: 10).", "--count", "-c", least=1)
    ] = 10,
    timeout: Annotated[
        float,
        option("SECONDS", "Stop waiting after SECONDS (default: 10 s).", least=1, most=86_400),
    ] = 10,
    as_json: Json = False,
) -> None:
    """Connect to a server over RDMA, and measure round trips.

    Print the terms of the connection and the round trips of NULL calls.  It needs no mount, no root
    and no kernel module for NFS, but access to /dev/infiniband, and the library libnfsrdma.

    Exit status: 0 when the server replied to all calls, 1 otherwise.
    """
    from nfsrdma_tools.client.ping import ping as measure
    from nfsrdma_tools.doctor.ping import remedy

    try:
        with default_signals():
            seen = measure(server, count, timeout)
    except OSError as error:
        hint = remedy(error, server)
        if not hint:
            raise
        raise UserError(error.strerror or str(error), hint) from error
    if as_json:
        print_json(_facts(server, seen))
        return
    for line in _lines(server, seen):
        print(printable(line))


def _facts(server: str, seen: Ping) -> dict[str, object]:
    trips = {"min": seen.times[0], "median": seen.median, "p99": seen.p99}
    return {
        "server": server,
        "port": seen.port,
        **seen.terms._asdict(),
        "personalities": seen.personalities,
        "count": len(seen.times),
        "round_trip_us": {name: round(time * 1e6, 1) for name, time in trips.items()},
    }


def _lines(server: str, seen: Ping) -> list[str]:
    terms = seen.terms
    peer = "module nfsrdma" if terms.extended else "other than module nfsrdma"
    if seen.personalities:
        peer += f", personalities {', '.join(seen.personalities)}"
    trips = (
        f"{name} {time * 1e3:.3f} ms"
        for name, time in (
            ("min", seen.times[0]),
            ("median", seen.median),
            ("p99", seen.p99),
        )
    )
    return [
        f"{server}: address {terms.address}, RDMA port {seen.port}, by device {terms.device}",
        f"server         {peer}",
        f"credits        {terms.credits}",
        f"inline sizes   {terms.send_size} bytes to the server, {terms.recv_size} from it",
        f"private data   {'RFC 8797' if terms.private_data else 'none'}",
        f"{len(seen.times)} round trips: {', '.join(trips)}",
    ]
