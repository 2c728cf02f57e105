# SPDX-License-Identifier: Apache-2.0
"""Mutated messages to a server, on connections of a personality that live until one ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hostile import rpc
from hostile.json_lines import TEXT, print_json
from hostile.mutate import mutated
from hostile.peer import Connection, GoneError
from hostile.verbs import VerbsError

__all__ = ["Sender", "mutants"]

# the server ends a connection a minute after nfsd dropped its Call
PATIENCE = 90.0
PROBE = 0x50500000


class Sender(Protocol):
    """A client of a personality."""

    connection: Connection

    def bases(self) -> Sequence[bytes]:
        """Sound messages."""

    def null(self, xid: int) -> bytes:
        """A Call that the server answers."""


def mutants(seed: str, numbers: range, connect: Callable[[], Sender]) -> dict[str, Any]:
    """Send a mutated message and a NULL Call for each number.

    The server has to end the connection or to answer the Call.
    """
    words, failures = Counter[str](), []
    sender = connect()
    for number in numbers:
        message = mutated(seed, number, sender.bases())
        # the server may die of it
        print_json(sent=number, message=message.hex()[:TEXT])
        word = _converse(sender, message, PROBE + number)
        words[word] += 1
        if word == "silent":
            failures.append({"number": number, "message": message.hex()})
        print_json(did=f"mutant {number}", answer=word)
        if word != "lives":
            sender.connection.close()
            sender = connect()
    sender.connection.close()
    return {"answers": dict(words), "failures": failures}


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
