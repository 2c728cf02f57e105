# SPDX-License-Identifier: Apache-2.0
"""Tests whether a server answers NFS over RDMA, and how fast: NULL calls on a connection."""

from __future__ import annotations

import math
import statistics
import time
from typing import NamedTuple

from nfsrdma_tools.client.place import split_server
from nfsrdma_tools.client.session import CAPABILITIES, Terms, connect
from nfsrdma_tools.nfs_ports import RDMA_PORT

__all__ = ["Ping", "ping"]


class Ping(NamedTuple):
    """The terms of a connection, and the round trips of NULL calls in seconds, ascending."""

    terms: Terms
    port: int
    personalities: tuple[str, ...]
    """Those that a server of nfsrdma accepts, beside read-write."""
    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median round trip."""
        return statistics.median(self.times)

    @property
    def p99(self) -> float:
        """The round trip that 99% do not exceed."""
        return self.times[math.ceil(0.99 * len(self.times)) - 1]


def ping(server: str, count: int = 10, timeout: float = 10) -> Ping:
    """Connect to SERVER[:PORT] over RDMA and call NULL.

    OSError if there is no connection or no reply within ``timeout`` seconds; UserError if the
    library is not installed.
    """
    host, port = split_server(server)
    with connect(host, port=port, timeout=timeout) as session:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            session.null()
            times.append(time.perf_counter() - start)
        terms = session.terms
    offered = CAPABILITIES if terms.extended else ()
    accepted = tuple(name for name in offered if _accepts(host, port, timeout, name))
    return Ping(terms, port or RDMA_PORT, accepted, tuple(sorted(times)))


def _accepts(host: str, port: int, timeout: float, personality: str) -> bool:
    """Whether the server agrees to a personality: a connection asks for one."""
    with connect(host, port=port, timeout=timeout, personality=personality) as session:
        return personality in session.terms.personalities
