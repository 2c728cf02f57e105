# SPDX-License-Identifier: Apache-2.0
"""A connection whose Calls hold their data while they wait for memory, and one beside it.

``held_data_node.py SERVER PORT FOLDER FILE SIZE CALLS GO``

The first connection sends CALLS READs of 1 MiB with a Read chunk of SIZE bytes, which READ has no
use for, and receives no Reply. Makes GO.sent when all are sent. When GO is there, the other one, of
the same address, sends the largest WRITE that the server, this machine, takes. FILE is in the
export FOLDER. Prints JSON: whether the WRITE was answered, and how the first connection ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hostile.calls import GOOD_PRIVATE
from hostile.holders import CHUNK, SILENT, asking, reading, send, until, writing
from hostile.json_lines import print_json
from hostile.peer import Host, Wish
from hostile.site import handles
from hostile.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE

LIMIT = 120.0


def main() -> None:
    server, port, folder, file, *numbers, go = sys.argv[1:]
    size, count = map(int, numbers)
    host, (handle,) = Host(), handles(server, folder, file)
    silent = host.connect(server, int(port), SILENT)
    other = host.connect(server, int(port), Wish(private=GOOD_PRIVATE))
    access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
    theirs, own = silent.memory(CHUNK, access), other.memory(CHUNK, access)
    reads = [reading(handle, 1 + n, theirs, data=size) for n in range(count)]
    sent = send(silent, [asking(), *reads])
    Path(f"{go}.sent").touch()
    until(host, Path(go).exists)
    most = int(Path("/proc/fs/nfsd/max_block_size").read_text())
    other.send(writing(handle, 1, own, min(CHUNK, most)))
    host.wait(lambda: bool(other.messages) or bool(other.ended), LIMIT, late=False)
    found = {"sent": sent, "answered": bool(other.messages), "ended": silent.ended}
    for connection in (silent, other):
        connection.close()
    print_json(**found)


main()
