# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma ping``: test whether a server answers NFS over RDMA."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, default_signals, option
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.client.ping import Ping

__all__ = ["ping", "remedy"]


def ping(
    server: Annotated[
        str, argument("SERVER[:PORT]", "Server, and its port for RDMA (default: 20049).")
    ],
    count: Annotated[
        int, option("N", "Call NULL N times (default: 10).", "--count", "-c", least=1)
    ] = 10,
    timeout: Annotated[
        float, option("SECONDS", "Stop waiting after SECONDS (default: 10 s).", least=1)
    ] = 10,
    as_json: Json = False,
) -> None:
    """Connect to a server over RDMA, and measure round trips.

    Print the terms of the connection and the round trips of NULL calls.  It needs no mount, no root
    and no kernel module for NFS, but access to /dev/infiniband, and the library libnfsrdma.

    Exit status: 0 when the server replied to all calls, 1 otherwise.
    """
    from nfsrdma_tools.client.ping import ping as measure

    try:
        with default_signals():
            found = measure(server, count, timeout)
    except OSError as error:
        hint = remedy(error, server)
        if not hint:
            raise
        raise UserError(error.strerror or str(error), hint) from error
    if as_json:
        print_json(_facts(server, found))
        return
    for line in _lines(server, found):
        print(printable(line))


def remedy(error: OSError, server: str) -> str:
    """The remedy if ping tried no connection to SERVER[:PORT]; "" if it tried one."""
    if error.errno not in _NOT_TRIED:
        return ""
    if not _RDMA_UCM.exists():
        return "modprobe rdma_ucm, as root"
    if error.errno != errno.ENODEV:
        return "run this as root, or let this user open /dev/infiniband"
    address = _address(server)
    return f"use a device with a route to {address}, see: rdma link; ip route get {address}"


def _address(server: str) -> str:
    """The address of SERVER[:PORT]; its name if it has none."""
    from nfsrdma_tools.client.place import split_server
    from nfsrdma_tools.host.nfs.target import Target, UnknownHostError

    host = split_server(server)[0].strip("[]")
    try:
        return Target(host, "/").addresses()[0]
    except UnknownHostError:
        return host


# no device, or no access to it
_NOT_TRIED = (errno.ENODEV, errno.ENOENT, errno.EACCES, errno.EPERM)
# also if rdma_ucm is part of the kernel
_RDMA_UCM = Path("/sys/class/misc/rdma_cm")


def _facts(server: str, found: Ping) -> dict[str, object]:
    trips = {"min": found.times[0], "median": found.median, "p99": found.p99}
    return {
        "server": server,
        "port": found.port,
        **found.terms._asdict(),
        "personalities": found.personalities,
        "count": len(found.times),
        "round_trip_us": {name: round(time * 1e6, 1) for name, time in trips.items()},
    }


def _lines(server: str, found: Ping) -> list[str]:
    terms = found.terms
    peer = "module nfsrdma" if terms.extended else "other than module nfsrdma"
    if found.personalities:
        peer += f", personalities {', '.join(found.personalities)}"
    trips = (
        f"{name} {time * 1e3:.3f} ms"
        for name, time in (
            ("min", found.times[0]),
            ("median", found.median),
            ("p99", found.p99),
        )
    )
    return [
        f"{server}: address {terms.address}, RDMA port {found.port}, by device {terms.device}",
        f"server         {peer}",
        f"credits        {terms.credits}",
        f"inline sizes   {terms.send_size} bytes to the server, {terms.recv_size} from it",
        f"private data   {'RFC 8797' if terms.private_data else 'none'}",
        f"{len(found.times)} round trips: {', '.join(trips)}",
    ]
