#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Read ranges of a file with one COMPOUND each, then all with one COMPOUND, and compare the bytes.

Usage, as root (nfsd's default export refuses other ports): reproduce.py SERVER PATH
PATH is that of a file of 64 KiB or more of random bytes, as NFSv4 names it below the server's root.
It needs no mount and no RDMA: NFSv4.0 over TCP, READ with the stateid of all ones.
The exit status is 0, 1 if bytes differ, or 2 if the server refuses a request.
"""

from __future__ import annotations

import socket
import struct
import sys

PUTROOTFH, LOOKUP, READ = 24, 15, 25
# bytes of each READ: the first ends with a page, or within one
COUNTS = ((4096, 4000, 9998), (4000, 4096, 9998), (100, 100, 100), (5000, 1, 4096, 12288))
BYPASS = b"\xff" * 16


def opaque(data: bytes) -> bytes:
    """Opaque data of variable length, as XDR has them."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def expect(condition: bool, otherwise: str) -> None:
    """End the program with a message unless a condition is true."""
    if not condition:
        print(otherwise, file=sys.stderr)
        raise SystemExit(2)


class Reader:
    """Takes a reply apart."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        """The next word."""
        self.at += 4
        return int.from_bytes(self.data[self.at - 4 : self.at], "big")

    def opaque(self) -> bytes:
        """The opaque data that follow."""
        size = self.number()
        start, self.at = self.at, self.at + size + -size % 4
        return self.data[start : start + size]


class Server:
    """A connection to nfsd."""

    def __init__(self, host: str) -> None:
        self.socket = socket.socket()
        for port in range(1023, 600, -1):
            try:
                self.socket.bind(("", port))
                break
            except OSError:
                continue
        self.socket.connect((host, 2049))
        self.xid = 1

    def received(self, size: int) -> bytes:
        """Receive ``size`` bytes."""
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            expect(bool(piece), "the server closed the connection")
            data += piece
        return data

    def call(self, body: bytes) -> bytes:
        """Send a COMPOUND with AUTH_SYS as root; returns its results."""
        self.xid += 1
        credential = opaque(struct.pack(">I", 0) + opaque(b"reproduce") + bytes(12))
        header = struct.pack(">6I", self.xid, 0, 2, 100003, 4, 1)
        call = header + struct.pack(">I", 1) + credential + bytes(8) + body
        self.socket.sendall(struct.pack(">I", 1 << 31 | len(call)) + call)
        reply, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self.received(4))
            last = bool(mark >> 31)
            reply += self.received(mark & 0x7FFFFFFF)
        words = struct.unpack(">6I", reply[:24])
        expect(words[:3] == (self.xid, 1, 0) and words[5] == 0, f"no accepted reply: {words}")
        return reply[24:]

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of ranges of a file, by one COMPOUND."""
        names = [name.encode() for name in path.split("/") if name]
        operations = [struct.pack(">I", PUTROOTFH)]
        operations += [struct.pack(">I", LOOKUP) + opaque(name) for name in names]
        operations += [struct.pack(">I16sQI", READ, BYPASS, *each) for each in ranges]
        body = opaque(b"") + struct.pack(">2I", 0, len(operations)) + b"".join(operations)
        results = Reader(self.call(body))
        status = results.number()
        expect(status == 0, f"NFS error {status}")
        results.opaque()
        data = []
        for _ in range(results.number()):
            operation, status = results.number(), results.number()
            expect(status == 0, f"NFS error {status} of operation {operation}")
            if operation == READ:
                results.number()
                data.append(results.opaque())
        return data


def main(host: str, path: str) -> int:
    """Compare all ranges; returns the exit status."""
    server, wrong = Server(host), 0
    for counts in COUNTS:
        ranges = [(20000 + sum(counts[:i]), count) for i, count in enumerate(counts)]
        expected = [server.read(path, [each])[0] for each in ranges]
        found = server.read(path, ranges)
        for each, one, together in zip(ranges, expected, found, strict=True):
            same = one == together
            wrong += not same
            print(f"READ {each[1]:5} bytes at {each[0]}: {'equal' if same else 'WRONG'}")
        print()
    print(f"{wrong} READs returned other bytes in a COMPOUND with several READs than alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
