# SPDX-License-Identifier: Apache-2.0
"""A hostile server, controlled over TCP.

Each line of a command is a JSON object, and so is each answer.
``{"trick": NAME}`` or ``{"mutate": SEED, "number": N, "on": KIND}`` arms it for the next Call of
its kind; ``{"over": true}`` when the application's call has ended; ``{"accept": NAME}`` ends all
connections and sets how the server accepts the next ones. A file in LAST has the last mutated
message of each server.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, RefusedError, decode

from testbed.node import channel
from testbed.peers import rpc
from testbed.peers.connect_replies import ACCEPTS
from testbed.peers.mutate import mutated, shown
from testbed.peers.peer import GoneError, Host
from testbed.peers.proxy import Armed, Exchange, Proxy
from testbed.peers.replies import TRICKS, Play, ignore
from testbed.peers.verbs import VerbsError

LAST = Path("/run/hostile")
V3 = {
    **{"read": (rpc.READ,), "small": (rpc.READ,), "write": (rpc.WRITE,)},
    "list": (rpc.READDIR, rpc.READDIRPLUS),
}


def of_kind(kind: str) -> Callable[[rpc.Call], bool]:
    if kind == "session":
        return lambda call: (call.version, call.procedure) == (4, rpc.COMPOUND)
    return lambda call: call.version == 3 and call.procedure in V3[kind]


def calmly(play: Play) -> Play:
    """A connection that ends meanwhile is what may happen."""

    def calm(exchange: Exchange) -> None:
        try:
            play(exchange)
        except (GoneError, VerbsError) as error:
            exchange.connection.ended = exchange.connection.ended or str(error)

    return calm


def believable(message: bytes, exchange: Exchange) -> bool:
    """Whether a client may take it for the answer: what RPC says in it is not looked at."""
    try:
        header, _ = decode(message)
    except RefusedError:
        return False
    return header.xid == exchange.xid and header.proc in (RDMA_MSG, RDMA_NOMSG)


class Control:
    """The other end of the conversation."""

    def __init__(self, proxy: Proxy, port: int) -> None:
        self.proxy = proxy
        self.later: Play = ignore
        self.bases: list[bytes] = []
        self.last = LAST / str(port)
        self.is_over = False
        with socket.create_server(("", port)) as listener:
            channel.send("listening")
            self.socket, _ = listener.accept()
        self.file = self.socket.makefile("rw")
        proxy.host.watched[self.socket.fileno()] = self.line

    def line(self) -> None:
        line = self.file.readline()
        if not line:
            self.is_over = True
            return
        asked = json.loads(line)
        (verb,) = {"trick", "mutate", "over", "accept"} & asked.keys()
        answer = getattr(self, verb)(asked)
        self.file.write(json.dumps(answer or {}) + "\n")
        self.file.flush()

    def trick(self, asked: dict[str, Any]) -> None:
        trick = TRICKS[asked["trick"]]
        self._arm(trick.on, trick.play, trick.answers, trick.later)

    def mutate(self, asked: dict[str, Any]) -> None:
        def play(exchange: Exchange) -> None:
            honest = exchange.honest()
            self.bases = [honest, *self.bases[:7]]
            made = mutated(asked["mutate"], asked["number"], [honest, *self.bases])
            exchange.notes["message"] = made.hex()
            exchange.notes["believable"] = believable(made, exchange)
            # its client may die of it
            self.last.write_text(f"{shown(asked['number'], made)}\n")
            exchange.connection.send(made)

        self._arm(asked["on"], play, True, None)

    def _arm(self, on: str, play: Play, answers: bool, later: Play | None) -> None:
        self.proxy.notes.clear()
        self.proxy.armed = Armed(of_kind(on), calmly(play), answers)
        self.later = calmly(later or ignore)

    def over(self, _: dict[str, Any]) -> dict[str, Any]:
        armed, self.proxy.armed = self.proxy.armed, None
        if not armed or not armed.exchange:
            return {"played": False}
        self.later(armed.exchange)
        connection = armed.exchange.connection
        return {"played": True, "ended": connection.ended, **self.proxy.notes}

    def accept(self, asked: dict[str, Any]) -> None:
        for peer in list(self.proxy.peers):
            self.proxy.drop(peer)
        self.proxy.accept = ACCEPTS[asked["accept"]](self.proxy)


def serve(port: int) -> None:
    """Serve at a port, until the conversation at the next one ends."""
    LAST.mkdir(exist_ok=True)
    proxy = Proxy(Host(), port)
    control = Control(proxy, port + 1)
    while not control.is_over:
        proxy.turn(1.0)
