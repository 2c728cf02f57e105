# SPDX-License-Identifier: Apache-2.0
"""Clients that have no floor, while others hold all that can be borrowed.

``shared_floor_node.py SERVER PORT FILE SIZE FIRST OTHERS ROUNDS GO HOLDERS WORKERS``

A connection from each of the addresses HOLDERS sends READs of SIZE bytes and receives no Reply: the
first one FIRST READs, the others OTHERS each. Makes GO.sent when all are sent. When GO is there, a
connection from each of the addresses WORKERS has ROUNDS READs of SIZE bytes answered, one after the
other. FILE is below /export. Prints JSON with the number of Replies of each worker, and the longest
time that one waited for a Reply, in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from wire.rpcrdma import decode

from hostile import rpc
from hostile.calls import GOOD_PRIVATE
from hostile.holders import asking, connected, reading, send, until
from hostile.json_lines import print_json
from hostile.peer import Connection, Host, Memory, Wish
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_WRITE

LIMIT = 600.0


class Worker:
    """Has READs answered, one after the other."""

    def __init__(self, connection: Connection, file: bytes, size: int) -> None:
        self.connection, self.file, self.size = connection, file, size
        self.memory: Memory = connection.memory(size, LOCAL_WRITE | REMOTE_WRITE)
        self.replies, self.longest, self.began = 0, 0.0, 0.0

    def ask(self) -> None:
        self.began = time.monotonic()
        self.connection.send(reading(self.file, 1 + self.replies, self.memory, 0, self.size))

    def turn(self, rounds: int) -> bool:
        """Take a Reply, and ask again; returns whether it has all of them."""
        assert not self.connection.ended, self.connection.ended
        if self.connection.messages:
            _check(self.connection.messages.popleft().data)
            self.longest = max(self.longest, time.monotonic() - self.began)
            self.replies += 1
            if self.replies < rounds:
                self.ask()
        return self.replies == rounds


def _check(message: bytes) -> None:
    reply = message[decode(message)[1] :]
    assert rpc.accepted(reply), reply.hex()
    assert reply[24:28] == bytes(4), reply.hex()


def main() -> None:
    server, port, file, *numbers, go, holders, workers = sys.argv[1:]
    size, first, others, rounds = map(int, numbers)
    host, (handle,) = Host(), handles(server, "/export", file)
    each_from = holders.split(",")
    silent = connected(host, server, int(port), each_from, len(each_from))
    honest = [
        host.connect(server, int(port), Wish(private=GOOD_PRIVATE, address=address))
        for address in workers.split(",")
    ]
    target = silent[0].memory(size, LOCAL_WRITE | REMOTE_WRITE)
    for number, connection in enumerate(silent):
        count = others if number else first
        reads = [reading(handle, 1 + n, target, 0, size) for n in range(count)]
        send(connection, [asking(), asking(), *reads])
    Path(f"{go}.sent").touch()
    until(host, Path(go).exists)
    each = [Worker(connection, handle, size) for connection in honest]
    for worker in each:
        worker.ask()
    host.wait(lambda: sum(worker.turn(rounds) for worker in each) == len(each), LIMIT)
    for connection in (*honest, *silent):
        connection.close()
    print_json(
        replies=[worker.replies for worker in each],
        longest=max(worker.longest for worker in each),
    )


main()
