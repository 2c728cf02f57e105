# SPDX-License-Identifier: Apache-2.0
"""``long_reply_node.py SERVER PORT FOLDER SIZE...``: a client that sends no private data.

It offers no Reply chunk, and has receives of SIZE bytes, for each SIZE in turn, the largest first:
the server remembers the shortest length that ended a connection.  FOLDER, below /export, has a
file "data", a link "link" and names in "names".  Prints JSON: for each SIZE the outcome of a READ
whose Reply fits, of attempts at one whose Reply is a word too long, until one does not end its
connection, and of the first READ again; for the largest SIZE that of a READLINK and a READDIR.
Compares each Reply with that over TCP.
"""

from __future__ import annotations

import sys
import time

from wire.rpcrdma import ERR_CHUNK, RDMA_ERROR, Header, decode, encode

from hostile import calls, rpc
from hostile.json_lines import print_json
from hostile.peer import GoneError, Host, Wish
from hostile.site import handles

READLINK = 5
# behind xid, kind, status, verifier (2), accept status: NFS status and attributes, which may change
ATTRIBUTES = 24 + 8 + 84
READ_HEAD = ATTRIBUTES + 12
HEADER = 28
MOST_ENDS = 4


class Client:
    """Connections to a server, and the same Calls over TCP."""

    def __init__(self, server: str, port: int) -> None:
        self.host, self.server, self.port = Host(), server, port
        self.tcp = rpc.Stream(server, 2049)

    def outcome(self, size: int, procedure: int, body: bytes) -> str:
        """How a Call over a new connection ends."""
        call = rpc.call(calls.XID, procedure, body)
        self.tcp.send(call)
        wanted = self.tcp.receive()
        connection = self.host.connect(self.server, self.port, Wish(receives=16, size=size))
        try:
            connection.send(encode(Header(calls.XID, calls.CREDITS, 0)) + call)
            message = connection.next()
            return self._said(message.data, wanted) if message else "ended"
        except GoneError:
            return "ended"
        finally:
            connection.close()

    def outcomes_until_answered(self, size: int, body: bytes) -> list[str]:
        """The outcomes of READs, up to the first that does not end its connection."""
        outcomes = [self.outcome(size, rpc.READ, body)]
        while outcomes[-1] == "ended" and len(outcomes) < MOST_ENDS:
            outcomes.append(self.outcome(size, rpc.READ, body))
        return outcomes

    def _said(self, data: bytes, wanted: bytes) -> str:
        head, size = decode(data)
        if head.proc == RDMA_ERROR:
            return "chunk" if head.error == ERR_CHUNK else f"error {head.error}"
        assert size == HEADER, head
        assert rpc.accepted(wanted), wanted[:64].hex()
        same = (len(data) - size, data[size + ATTRIBUTES :]) == (
            len(wanted),
            wanted[ATTRIBUTES:],
        )
        return "same" if same else f"{len(data) - size} bytes unlike {len(wanted)}"


def main() -> None:
    server, port, folder, *sizes = sys.argv[1:]
    data, link, names = handles(server, f"/export/{folder}", "data", "link", "names")
    client, most = Client(server, int(port)), int(sizes[0])
    listing = rpc.opaque(names) + rpc.hyper(0) + rpc.hyper(0) + rpc.words(32768)
    readlink = client.outcome(most, READLINK, rpc.opaque(link))
    # the server remembers for a minute what an address refused: that of another test's client
    end = time.monotonic() + 180
    while (readdir := client.outcome(most, rpc.READDIR, listing)) == "chunk":
        if time.monotonic() > end:
            break
        time.sleep(1)
    found = {}
    for size in map(int, sizes):
        fits = rpc.opaque(data) + rpc.hyper(4096) + rpc.words(size - HEADER - READ_HEAD)
        longer = rpc.opaque(data) + rpc.hyper(4096) + rpc.words(size - HEADER - READ_HEAD + 4)
        found[size] = [
            client.outcome(size, rpc.READ, fits),
            *client.outcomes_until_answered(size, longer),
            client.outcome(size, rpc.READ, fits),
        ]
    print_json(found=found, readlink=readlink, readdir=readdir)


main()
