# SPDX-License-Identifier: Apache-2.0
"""Connections that receive no replies, so that the server has to keep them.

``unreceived_replies_node.py SERVER PORT FILE MOUNT CONNECTIONS CALLS STOP ADDRESSES``

Makes CONNECTIONS, in turn from each of ADDRESSES, and when STOP.go is there sends CALLS READs of 1
MiB over each, every one of another part of FILE, below /export. No connection takes a reply but its
first one, so the server has to keep all the others. Goes on until STOP is there or the server has
ended all connections. MOUNT, of the same server, is worked on meanwhile, and one of its files is
read in chunks of 1 MiB, past the cache. Prints JSON, with the longest of these reads in seconds.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wire.rpcrdma import Header, Segment, encode

from hostile import calls, rpc
from hostile.bystander import Bystander
from hostile.calls import GOOD_PRIVATE
from hostile.json_lines import print_json
from hostile.peer import Connection, GoneError, Host, Memory, Wish
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_WRITE

WISH = Wish(private=GOOD_PRIVATE, receives=1, deaf=True)
READ = 1 << 20
# longer than any server keeps clients that take nothing
LIMIT = 600.0


def reading(file: bytes, number: int, target: Memory) -> bytes:
    """A READ of 1 MiB, the so-manieth of all, into memory that all of them name."""
    segment = Segment(target.key, READ, target.address)
    body = rpc.opaque(file) + rpc.hyper(number * READ) + rpc.words(READ)
    head = encode(Header(number, calls.CREDITS, 0, writes=((segment,),)))
    return head + rpc.call(number, rpc.READ, body)


def asking() -> bytes:
    """A Call with an inline Reply: the client receives the first Reply, never the second."""
    return encode(Header(calls.XID, calls.CREDITS, 0)) + rpc.call(calls.XID, rpc.NULL)


def send(connection: Connection, messages: list[bytes]) -> int:
    """Send messages; returns how many found a receive of the server before the connection ended."""
    for number, message in enumerate(messages):
        try:
            connection.finish(connection.send(message))
        except GoneError:
            return number
    return len(messages)


class Reader(Bystander):
    """Reads 1 MiB past the cache, again and again, and measures the longest read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, rest=0.05)
        self.path = folder / f"reader-{os.getpid()}"
        self.path.write_bytes(bytes(READ))
        self.file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        self.buffer, self.longest = mmap.mmap(-1, READ), 0.0

    def _round(self, data: bytes) -> None:
        del data
        began = time.monotonic()
        if os.preadv(self.file, [self.buffer], 0) != READ:
            self.errors.append("a short read")
        self.longest = max(self.longest, time.monotonic() - began)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self.file)


def until(host: Host, condition: Callable[[], bool]) -> None:
    """Handle events until a condition is true for which there is no event."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing in {LIMIT} s")
        host.wait(lambda: False, 0.2, late=False)


def main() -> None:
    server, port, file, mount, connections, calls_each, stop, addresses = sys.argv[1:]
    host, (handle,) = Host(), handles(server, "/export", file)
    wishes = [replace(WISH, address=address) for address in addresses.split(",")]
    everyone = [
        host.connect(server, int(port), wishes[number % len(wishes)])
        for number in range(int(connections))
    ]
    target = everyone[0].memory(READ, LOCAL_WRITE | REMOTE_WRITE)
    until(host, lambda: Path(f"{stop}.go").exists())
    sent, last = 0, Path(stop)
    with Bystander(Path(mount)) as bystander, Reader(Path(mount)) as reader:
        for number, connection in enumerate(everyone):
            first = number * int(calls_each)
            reads = [reading(handle, first + n, target) for n in range(int(calls_each))]
            sent += send(connection, [asking(), asking(), *reads])
        until(host, lambda: last.exists() or all(one.ended for one in everyone))
        ends = Counter(one.ended for one in everyone)
        for connection in everyone:
            connection.close()
    bystander.errors += reader.errors
    print_json(
        sent=sent, ends=dict(ends), bystander=bystander.account(), longest=reader.longest,
        reads=reader.rounds,
    )  # fmt: skip


main()
