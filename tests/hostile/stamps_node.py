# SPDX-License-Identifier: Apache-2.0
"""``stamps_node.py SERVER PORT FOLDER SECONDS``: READs whose credentials have all other stamps.

The stamp of AUTH_SYS is "an arbitrary ID which the caller machine may generate" (RFC 5531, appendix
A): it names no user. FOLDER is a folder below /export with a file "data". Prints the READs, and how
many of these the server answered without a thread of nfsd, by the kernel's count of nfsd's READs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from wire.rpcrdma import RDMA_MSG, Header, decode, encode

from hostile import rpc
from hostile.json_lines import print_json
from hostile.odd_reads import INLINE, read
from hostile.peer import Connection, Host, Wish
from hostile.private_data import extended
from hostile.site import handles


def stamped(stamp: int) -> bytes:
    """AUTH_SYS of root, with a stamp."""
    return rpc.words(1, 20, stamp, 0, 0, 0, 0)


def nfsd_reads() -> int:
    for line in Path("/proc/net/rpc/nfsd").read_text().splitlines():
        if line.startswith("proc3 "):
            return int(line.split()[2 + rpc.READ])
    raise ValueError("nfsd has no NFSv3")


def answer(connection: Connection, xid: int, call: bytes) -> bytes:
    """The data of a Reply."""
    connection.send(encode(Header(xid, 32, RDMA_MSG)) + rpc.words(xid) + call[4:])
    message = connection.next()
    if not message:
        raise ConnectionError(connection.ended or "no Reply")
    _, size = decode(message.data)
    reply = message.data[size:]
    place = rpc.read_data(reply)
    if not place:
        raise ValueError(f"nfsd refused: {reply.hex()}")
    return rpc.split(reply, place)[1]


def wait_until_settled(file: Path) -> None:
    """Wait until the last change is older than a second: no permit follows a READ before that."""
    while time.time() < file.stat().st_ctime + 2:
        time.sleep(0.1)


def main() -> None:
    server, port, folder, seconds = sys.argv[1:]
    (file,) = handles(server, folder, "data")
    data = (Path(folder) / "data").read_bytes()[:INLINE]
    wait_until_settled(Path(folder) / "data")
    token = int.from_bytes(os.urandom(8), "big")
    connection = Host().connect(server, int(port), Wish(extended(0, token)))
    before, count, wrong = nfsd_reads(), 0, 0
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        count += 1
        call = read(file, credential=stamped(0x5EED0000 + count))
        wrong += answer(connection, 0x57A30000 + count, call) != data
    executed = nfsd_reads() - before
    connection.close()
    print_json(reads=count, nfsd=executed, wrong=wrong)


main()
