# SPDX-License-Identifier: Apache-2.0
"""Connections and messages of clients that make a server hold memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from wire.rpcrdma import Header, Read, Segment, encode

from testbed.peers import calls, rpc
from testbed.peers.calls import GOOD_PRIVATE
from testbed.peers.peer import Connection, GoneError, Host, Memory, Wish

__all__ = ["CHUNK", "SILENT", "asking", "connected", "reading", "send", "until", "writing"]

CHUNK = 1 << 20
# receives one message and no more
SILENT = Wish(private=GOOD_PRIVATE, receives=1, deaf=True)
# longer than any server keeps clients that take nothing
LIMIT = 600.0


def connected(host: Host, addresses: Sequence[str], count: int) -> list[Connection]:
    """Connections that receive nothing more, in turn from each of the addresses."""
    wishes = [replace(SILENT, address=address) for address in addresses]
    return [host.connect(wishes[number % len(wishes)]) for number in range(count)]


def asking() -> bytes:
    """A Call with an inline Reply."""
    return encode(Header(calls.XID, calls.CREDITS, 0)) + rpc.call(calls.XID, rpc.NULL)


def reading(
    file: bytes, number: int, target: Memory, at: int = 0, size: int = CHUNK, data: int = 0
) -> bytes:
    """A READ, with ``number`` as its XID.

    ``data`` bytes follow its arguments in a Read chunk, which READ has no use for.
    """
    segment = Segment(target.key, size, target.address)
    call = rpc.call(number, rpc.READ, rpc.opaque(file) + rpc.hyper(at) + rpc.words(size))
    source = Segment(target.key, data, target.address)
    reads = (Read(len(call), (source,)),) if data else ()
    return encode(Header(number, calls.CREDITS, 0, reads=reads, writes=((segment,),))) + call


def writing(file: bytes, number: int, source: Memory, size: int) -> bytes:
    """A WRITE whose data the server has to read."""
    body = rpc.opaque(file) + rpc.hyper(0) + rpc.words(size, 0, size)
    call = rpc.call(number, rpc.WRITE, body)
    reads = (Read(len(call), (Segment(source.key, size, source.address),)),)
    return encode(Header(number, calls.CREDITS, 0, reads=reads)) + call


def send(connection: Connection, messages: list[bytes]) -> int:
    """Send messages; returns how many found a receive of the server before the connection ended."""
    for number, message in enumerate(messages):
        try:
            connection.finish(connection.send(message))
        except GoneError:
            return number
    return len(messages)


def until(host: Host, condition: Callable[[], bool]) -> None:
    """Handle events until a condition is true for which there is no event."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing in {LIMIT} s")
        host.wait(lambda: False, 0.2, late=False)
