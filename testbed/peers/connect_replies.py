# SPDX-License-Identifier: Apache-2.0
"""How a server may meet a client that connects: its private data (RFC 8797), or the door."""

from __future__ import annotations

from collections.abc import Callable

from testbed.peers.peer import Connection
from testbed.peers.proxy import Proxy

__all__ = ["ACCEPTS", "PRIVATE"]

Accept = Callable[[], Connection | None]
MAGIC = bytes.fromhex("f6ab0e18")
EXTENDED = MAGIC + bytes((1, 1, 3, 3)) + b"NFRX"
PRIVATE = {
    "none": b"",
    "one byte": MAGIC[:1],
    "the magic alone": MAGIC,
    "seven bytes": MAGIC + bytes((1, 0, 3)),
    "wrong magic": bytes.fromhex("f6ab0e19") + bytes((1, 1, 3, 3)),
    "magic the other way round": MAGIC[::-1] + bytes((1, 1, 3, 3)),
    "version 0": MAGIC + bytes((0, 1, 3, 3)),
    "version 2": MAGIC + bytes((2, 1, 255, 255)),
    "all flags": MAGIC + bytes((1, 255, 3, 3)),
    "smallest sizes": MAGIC + bytes((1, 0, 0, 0)),
    "largest sizes": MAGIC + bytes((1, 1, 255, 255)),
    "more behind it": MAGIC + bytes((1, 0, 3, 3)) + b"\xa5" * 48,
    "extension": EXTENDED + bytes((1,)) + bytes(11) + b"\xa5" * 4,
    "extension that ends early": EXTENDED + bytes((1,)) + bytes(14),
    "extension of version 0": EXTENDED + bytes(16),
    "extension with everything set but a lane": EXTENDED + b"\xff" * 4 + b"\x7f" + b"\xff" * 39,
    "zeros": bytes(56),
    "ones": b"\xff" * 56,
}


def _with(private: bytes) -> Callable[[Proxy], Accept]:
    return lambda proxy: lambda: proxy.take(private)


def _rejecting(proxy: Proxy) -> Accept:
    return _first(proxy, lambda: proxy.host.reject(proxy.host.requests.popleft()))


def _leaving(proxy: Proxy) -> Accept:
    return _first(proxy, lambda: proxy.take(b"").close())


def _first(proxy: Proxy, work: Callable[[], None]) -> Accept:
    """The first comer is met so, the next ones honestly."""

    def accept() -> None:
        proxy.accept = proxy.honest_accept
        work()

    return accept


# a client that sends it asks to join a connection that is not there: lane_client.py
LANE = EXTENDED + b"\xff" * 44
ACCEPTS: dict[str, Callable[[Proxy], Accept]] = {
    "honest": lambda proxy: proxy.honest_accept,
    "rejects": _rejecting,
    "accepts and leaves": _leaving,
    **{name: _with(private) for name, private in PRIVATE.items()},
    "extension with everything set": _with(LANE),
}
