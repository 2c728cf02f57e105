# SPDX-License-Identifier: Apache-2.0
"""A server that calls a client with a session without a pause.

It forwards the client's Calls to the node's nfsd, and sends callbacks of its own: the next one
with each Reply to a callback, and a few with each Reply to a Call, so that some arrive after the
client's session has ended.
"""

from __future__ import annotations

import struct

from wire.rpcrdma import decode

from testbed.peers import rpc
from testbed.peers.peer import GoneError, Host
from testbed.peers.proxy import Peer, Proxy
from testbed.peers.replies import callback
from testbed.peers.verbs import VerbsError

# the module's client lets a server have eight callbacks at once
AT_ONCE, MOST = 4, 8
MINE = 0xCA110000
SEQUENCE = 53


def has_session(call: bytes) -> bool:
    """Whether a Call is an NFSv4.1 COMPOUND that begins with SEQUENCE."""
    about = rpc.parse_call(call)
    if not about or (about.version, about.procedure) != (4, rpc.COMPOUND):
        return False
    at = 24
    for _ in range(2):
        (length,) = struct.unpack_from(">I", call, at + 4)
        at += 8 + (length + 3 & ~3)
    (tag,) = struct.unpack_from(">I", call, at)
    at += 4 + (tag + 3 & ~3)
    return len(call) >= at + 12 and bool(struct.unpack_from(">III", call, at)[2] == SEQUENCE)


class Caller(Proxy):
    """The server; ``waiting`` has the callbacks without a Reply of each connection."""

    def __init__(self, port: int) -> None:
        super().__init__(Host(), port)
        self.waiting: dict[int, int] = {}
        self.number = 0

    def _received(self, peer: Peer, message: bytes) -> None:
        header, size = decode(message)
        if header.xid & 0xFFFF0000 == MINE and rpc.is_reply(message[size:]):
            self.waiting[id(peer)] -= 1
            self._call(peer, AT_ONCE)
            return
        inline = message[size:]
        super()._received(peer, message)
        if has_session(inline):
            self.waiting.setdefault(id(peer), 0)
        if id(peer) in self.waiting:
            self._call(peer, MOST)

    def _call(self, peer: Peer, most: int) -> None:
        while self.waiting[id(peer)] < most and not peer.connection.ended:
            self.number = self.number + 1 & 0xFFFF
            try:
                peer.connection.send(callback(MINE + self.number))
            except VerbsError as error:
                raise GoneError(str(error)) from error
            self.waiting[id(peer)] += 1

    def drop(self, peer: Peer) -> None:
        self.waiting.pop(id(peer), None)
        super().drop(peer)


def serve(port: int) -> None:
    Caller(port).run()
