# SPDX-License-Identifier: Apache-2.0
"""Connections that receive no replies, so that the server has to keep them.

``unreceived_replies_node.py SERVER PORT FILE MOUNT CONNECTIONS CALLS STOP ADDRESSES``

Makes CONNECTIONS, in turn from each of ADDRESSES, and when STOP.go is there sends CALLS READs of 1
MiB over each, every one of another part of FILE, below /export. No connection takes a reply but its
first one, so the server has to keep all the others. Goes on until STOP is there or the server has
ended all connections. MOUNT, of the same server, is worked on meanwhile, and one of its files is
read in chunks of 1 MiB, past the cache. Prints JSON, with the longest of these reads in seconds,
and the longest Call without chunks.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hostile.bystander import Asker, Bystander, Reader
from hostile.holders import CHUNK, asking, connected, reading, send, until
from hostile.json_lines import print_json
from hostile.peer import Host
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_WRITE


def main() -> None:
    server, port, file, mount, connections, calls_each, stop, addresses = sys.argv[1:]
    host, (handle,) = Host(), handles(server, "/export", file)
    everyone = connected(host, server, int(port), addresses.split(","), int(connections))
    target = everyone[0].memory(CHUNK, LOCAL_WRITE | REMOTE_WRITE)
    until(host, lambda: Path(f"{stop}.go").exists())
    sent, last = 0, Path(stop)
    folder = Path(mount)
    with Bystander(folder) as bystander, Reader(folder) as reader, Asker(folder) as asker:
        for number, connection in enumerate(everyone):
            first = number * int(calls_each)
            reads = [
                reading(handle, first + n, target, (first + n) * CHUNK)
                for n in range(int(calls_each))
            ]
            sent += send(connection, [asking(), asking(), *reads])
        until(host, lambda: last.exists() or all(one.ended for one in everyone))
        ends = Counter(one.ended for one in everyone)
        for connection in everyone:
            connection.close()
    bystander.errors += reader.errors + asker.errors
    print_json(
        sent=sent, ends=dict(ends), bystander=bystander.account(), longest=reader.longest,
        reads=reader.rounds, beside=asker.longest,
    )  # fmt: skip


main()
