# SPDX-License-Identifier: Apache-2.0
"""``port_node.py SERVER PORT LANES EXPORT...``: a client whose port tells what it may.

Looks up each EXPORT, a folder in /srv of the server, from a port that any user may have, and from
a reserved one.  With LANES, which is "yes" or "no", it also tries to add lanes from either to a
connection from either; the server has to accept the personality pre-posted.  Prints JSON: the
status of each (RFC 7530), and which lanes joined.
"""

from __future__ import annotations

import itertools
import struct
import sys

from wire.rpcrdma import Header, decode, encode

from hostile import calls, rpc
from hostile.json_lines import print_json
from hostile.lanes import PRE_POSTED, asked
from hostile.peer import Connection, GoneError, Host, Wish
from hostile.private_data import extended

GETATTR, LOOKUP, PUTROOTFH = 9, 15, 24
PORTS = {"any": itertools.repeat(0), "reserved": itertools.count(700)}


def status(connection: Connection, export: str) -> int:
    """The status of a COMPOUND of NFSv4.0 that looks up a folder."""
    name = rpc.opaque(export.encode())
    look = rpc.words(LOOKUP) + rpc.opaque(b"srv") + rpc.words(LOOKUP) + name
    body = rpc.words(0, 0, 4, PUTROOTFH) + look + rpc.words(GETATTR, 0)
    call = rpc.call(calls.XID, rpc.COMPOUND, body)
    # version 4, not 3
    call = call[:16] + rpc.words(4) + call[20:]
    connection.send(encode(Header(calls.XID, 1, 0)) + call)
    message = connection.next()
    assert message, connection.ended
    _, size = decode(message.data)
    # behind xid, kind, accepted, verifier (2 words), success
    words = struct.unpack_from(">7I", message.data, size)
    assert words[:6] == (calls.XID, 1, 0, 0, 0, 0), words
    result: int = words[6]
    return result


def joins(host: Host, server: str, port: int, home: str, lane: str) -> bool:
    """Whether the server lets a lane join a connection."""
    token = 0x5EC0000 + next(PORTS["reserved"])
    wish = Wish(private=extended(PRE_POSTED, token), port=next(PORTS[home]))
    first = host.connect(server, port, wish)
    try:
        host.connect(server, port, Wish(private=asked(token), port=next(PORTS[lane]))).close()
    except GoneError:
        return False
    finally:
        first.close()
    return True


def main() -> None:
    server, port, lanes, *exports = sys.argv[1:]
    host = Host()
    found: dict[str, dict[str, int]] = {}
    for kind, ports in PORTS.items():
        connection = host.connect(
            server, int(port), Wish(private=calls.GOOD_PRIVATE, port=next(ports))
        )
        found[kind] = {export: status(connection, export) for export in exports}
        connection.close()
    joined = {
        f"{lane} joins {home}": joins(host, server, int(port), home, lane)
        for home in PORTS
        for lane in PORTS
        if lanes == "yes"
    }
    print_json(found=found, joined=joined)


main()
