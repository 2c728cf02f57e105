# SPDX-License-Identifier: Apache-2.0
"""Clients that make the server hold memory, and how long others wait meanwhile.

``held_memory_node.py SERVER PORT FILE MOUNT KIND CONNECTIONS CALLS SIZE PAUSE STOP ADDRESSES``

Makes CONNECTIONS, in turn from each of ADDRESSES, and sends CALLS over each of them. With KIND
"reads" they are READs of SIZE bytes, and no connection receives a Reply; if PAUSE is not 0, those
of the second half of ADDRESSES receive one Reply each PAUSE seconds. With "writes" they are WRITEs
of SIZE bytes in Read chunks; the test has the server receive no data. FILE is below /export.

An application on MOUNT, of the same server, moves 1 MiB at a time past the cache, in the same
direction, and another one sends Calls without chunks, which need none of that memory. Makes
STOP.sent when all Calls are sent, and goes on until STOP is there. Prints JSON, with the longest
operation of both in seconds.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from hostile.bystander import Asker, Reader, Writer
from hostile.holders import asking, connected, reading, send, until, writing
from hostile.json_lines import print_json
from hostile.peer import Connection, Host
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE

# rounds of the application before the other clients send anything
BEFORE = 3


class Receipts:
    """Receive one Reply each PAUSE seconds on some connections."""

    def __init__(self, connections: list[Connection], pause: float) -> None:
        self.connections, self.pause = connections, pause
        self.next, self.posted = time.monotonic() + pause, Counter[int]()

    def turn(self) -> None:
        if not self.pause or time.monotonic() < self.next:
            return
        self.next += self.pause
        for connection in self.connections:
            # the first receive, and those posted here: the queue has room for one
            if not connection.ended and len(connection.messages) > self.posted[connection.qp]:
                self.posted[connection.qp] += 1
                connection.receive_one()


def main() -> None:
    server, port, file, mount, kind, *numbers, stop, addresses = sys.argv[1:]
    connections, calls_each, size, pause = map(int, numbers)
    host, (handle,), last = Host(), handles(server, "/export", file), Path(stop)
    sources = addresses.split(",")
    everyone = connected(host, server, int(port), sources, connections)
    memory = everyone[0].memory(size, LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE)
    application = Reader if kind == "reads" else Writer

    def messages(number: int) -> list[bytes]:
        """Of one connection."""
        numbers = range(1 + number * calls_each, 1 + (number + 1) * calls_each)
        if kind == "writes":
            return [writing(handle, n, memory, size) for n in numbers]
        return [asking(), asking(), *(reading(handle, n, memory, 0, size) for n in numbers)]

    with Asker(Path(mount)) as asker, application(Path(mount)) as worker:
        until(host, lambda: worker.rounds >= BEFORE)
        calm, rounds = worker.longest, worker.rounds
        sent = sum(send(one, messages(number)) for number, one in enumerate(everyone))
        Path(f"{stop}.sent").touch()
        second_half = sources[len(sources) // 2 :]
        receiving = [one for one in everyone if one.wish.address in second_half]
        receipts = Receipts(receiving, pause)

        def over() -> bool:
            receipts.turn()
            return last.exists()

        until(host, over)
        ends = Counter(one.ended for one in everyone)
        received = sum(bool(one.ended) for one in receipts.connections)
    for connection in everyone:
        connection.close()
    print_json(
        sent=sent, ends=dict(ends), received=received, calm=calm, longest=worker.longest,
        rounds=worker.rounds - rounds, beside=asker.longest, errors=worker.errors + asker.errors,
    )  # fmt: skip


main()
