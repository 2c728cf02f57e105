# SPDX-License-Identifier: Apache-2.0
"""A client that sends no private data, and offers no Reply chunk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wire.rpcrdma import ERR_CHUNK, RDMA_ERROR, Header, decode, encode

from testbed.node.programs import until
from testbed.peers import calls, rpc
from testbed.peers.peer import SERVER, GoneError, Host, Wish
from testbed.peers.site import handles

READLINK = 5
# behind xid, kind, status, verifier (2), accept status: NFS status and attributes, which may change
ATTRIBUTES = 24 + 8 + 84
READ_HEAD = ATTRIBUTES + 12
HEADER = 28
MOST_ENDS = 4


class Client:
    """Connections to the server, and the same Calls over TCP."""

    def __init__(self) -> None:
        self.host, self.tcp = Host(), rpc.Stream(SERVER, 2049)

    def outcome(self, size: int, procedure: int, body: bytes) -> str:
        """How a Call over a new connection ends."""
        call = rpc.call(calls.XID, procedure, body)
        self.tcp.send(call)
        wanted = self.tcp.receive()
        connection = self.host.connect(Wish(receives=16, size=size))
        try:
            connection.send(encode(Header(calls.XID, calls.CREDITS, 0)) + call)
            message = connection.next()
            return self._word(message.data, wanted) if message else "ended"
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

    def _word(self, data: bytes, wanted: bytes) -> str:
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


class LongReplies(NamedTuple):
    """The outcomes of Calls."""

    readlink: str
    readdir: str
    reads: dict[int, list[str]]
    """by length of the receives: of a READ whose Reply fits, of READs whose Reply is a word too
    long, until one does not end its connection, and of the first READ again"""


def long_replies(folder: Path, sizes: list[int]) -> LongReplies:
    """Compare each Reply with that over TCP.

    The receives have each of ``sizes`` in turn, the largest first: the server remembers the
    shortest length that ended a connection.  The folder has a file "data", a link "link" and names
    in "names".
    """
    data, link, names = handles(folder, "data", "link", "names")
    client, most = Client(), sizes[0]
    listing = rpc.opaque(names) + rpc.hyper(0) + rpc.hyper(0) + rpc.words(32768)
    readlink = client.outcome(most, READLINK, rpc.opaque(link))

    def readdir() -> str:
        word = client.outcome(most, rpc.READDIR, listing)
        return "" if word == "chunk" else word

    # the server remembers for a minute what an address refused: that of another test's client
    answer, reads = until("a READDIR without an error", readdir, 180, pause=1), {}
    for size in sizes:
        fits = rpc.opaque(data) + rpc.hyper(4096) + rpc.words(size - HEADER - READ_HEAD)
        longer = rpc.opaque(data) + rpc.hyper(4096) + rpc.words(size - HEADER - READ_HEAD + 4)
        reads[size] = [
            client.outcome(size, rpc.READ, fits),
            *client.outcomes_until_answered(size, longer),
            client.outcome(size, rpc.READ, fits),
        ]
    return LongReplies(readlink, answer, reads)
