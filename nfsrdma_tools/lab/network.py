# SPDX-License-Identifier: Apache-2.0
"""The network of a pair: a socket pair per client that connects two QEMUs."""

from __future__ import annotations

import socket
from collections.abc import Iterable

__all__ = ["HUB", "Lan"]

HUB = ("-netdev", "hubport,id=lan,hubid=1")


class Lan:
    """The links between a server and its clients, connected before QEMU starts.

    QEMU's own ``stream`` connection is unusable: 7.2 crashes on a packet sent before it is done.
    """

    def __init__(self, clients: Iterable[str]) -> None:
        self._wires = {client: socket.socketpair() for client in clients}

    def arguments(self, node: str) -> tuple[str, ...]:
        """The netdev ``lan`` of a node."""
        if node in self._wires:
            return _end("lan", self._wires[node][1])
        if len(self._wires) == 1:
            # no hub: QEMU's hub reorders packets if the receiver's ring is full
            return _end("lan", *(end for end, _ in self._wires.values()))
        # several clients: a hub in the server's QEMU is their switch, with a port for each
        return (*HUB, *(word for client in self._wires for word in self._port(client)))

    def _port(self, client: str) -> tuple[str, ...]:
        hubport = f"hubport,id={client}-hub,hubid=1,netdev={client}"
        return (*_end(client, self._wires[client][0]), "-netdev", hubport)

    def descriptors(self, node: str) -> tuple[int, ...]:
        """The file descriptors that a node's QEMU inherits."""
        if node in self._wires:
            return (self._wires[node][1].fileno(),)
        return tuple(end.fileno() for end, _ in self._wires.values())

    def close(self) -> None:
        """Close our ends; the machines keep theirs."""
        for end in (end for wire in self._wires.values() for end in wire):
            end.close()


def _end(name: str, end: socket.socket) -> tuple[str, ...]:
    return ("-netdev", f"socket,id={name},fd={end.fileno()}")
