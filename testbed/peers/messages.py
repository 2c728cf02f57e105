# SPDX-License-Identifier: Apache-2.0
"""Mutated messages to a server, on connections of a personality that live until one ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.node import channel
from testbed.peers import rpc
from testbed.peers.mutate import mutated, shown
from testbed.peers.peer import Connection, GoneError
from testbed.peers.verbs import VerbsError

__all__ = ["Outcomes", "Sender", "mutants"]

# the server ends a connection a minute after nfsd dropped its Call
PATIENCE = 90.0
PROBE = 0x50500000


# outcomes of mutated messages by their word, with their number, and failures
Outcomes = tuple[dict[str, int], list[str]]


class Sender(Protocol):
    """A client of a personality."""

    connection: Connection

    def bases(self) -> Sequence[bytes]:
        """Sound messages."""

    def null(self, xid: int) -> bytes:
        """A Call that the server answers."""


def mutants(seed: str, count: int, connect: Callable[[], Sender]) -> Outcomes:
    """Send a mutated message and a NULL Call for each number.

    The server has to end the connection or to answer the Call.
    """
    words, failures = Counter[str](), list[str]()
    sender = connect()
    for number in range(count):
        message = mutated(seed, number, sender.bases())
        # the server may die of it
        channel.send(shown(number, message))
        word = _converse(sender, message, PROBE + number)
        words[word] += 1
        if word == "silent":
            failures.append(f"mutant {number}: {message.hex()}")
        if word != "lives":
            sender.connection.close()
            sender = connect()
    sender.connection.close()
    return dict(words), failures


def _converse(sender: Sender, message: bytes, xid: int) -> str:
    connection = sender.connection
    try:
        connection.finish(connection.send(message))
        connection.finish(connection.send(sender.null(xid)))
        while True:
            answer = connection.next(PATIENCE)
            if answer is None:
                return "ended" if connection.ended else "silent"
            if answer.data[:4] == rpc.words(xid):
                return "lives"
    except (GoneError, VerbsError):
        return "ended"
