# SPDX-License-Identifier: Apache-2.0
"""Messages made from good ones: the same seed and number give the same bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

__all__ = ["LARGEST", "mutated", "shown"]

# what an Ethernet with large frames carries in a few packets; beyond every inline size
LARGEST = 8192
_EDGES = (0, 1, 2, 3, 4, 7, 8, 16, 28, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
_Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(seed: str, number: int, bases: Sequence[bytes]) -> bytes:
    """One of the bases, changed one to four times."""
    rng = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
    message = rng.choice(bases)
    for _ in range(rng.randint(1, 4)):
        message = rng.choice(_CHANGES)(rng, message, bases)
    return message[:LARGEST]


def shown(number: int, message: bytes) -> str:
    """A mutant as text: enough for its header, its lists and the beginning of the RPC."""
    return f"mutant {number}: {message[:200].hex()}"


def _at(rng: random.Random, message: bytes) -> int:
    """The place of a word, in the header more often than not."""
    count = len(message) // 4
    if not count:
        return 0
    return 4 * rng.randrange(min(count, 16) if rng.random() < 0.7 else count)


def _put(message: bytes, at: int, value: int) -> bytes:
    return message[:at] + struct.pack(">I", value) + message[at + 4 :]


def _bit(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    if not message:
        return message
    at = min(_at(rng, message) + rng.randrange(4), len(message) - 1)
    return message[:at] + bytes((message[at] ^ 1 << rng.randrange(8),)) + message[at + 1 :]


def _edge(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return _put(message, _at(rng, message), rng.choice(_EDGES))


def _word(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return _put(message, _at(rng, message), rng.getrandbits(32))


def _swap(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    first, second = sorted((_at(rng, message), _at(rng, message)))
    word, other = message[first : first + 4], message[second : second + 4]
    if first == second:
        return message
    return message[:first] + other + message[first + 4 : second] + word + message[second + 4 :]


def _cut(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return message[: rng.randrange(len(message) + 1)]


def _splice(rng: random.Random, message: bytes, bases: Sequence[bytes]) -> bytes:
    other = rng.choice(bases)
    return message[: _at(rng, message)] + other[_at(rng, other) :]


def _double(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    at, size = _at(rng, message), 4 * rng.randint(1, 12)
    return message[: at + size] + message[at:]


def _grow(rng: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return message + rng.randbytes(rng.choice((1, 4, 100, 2000, 5000)))


_CHANGES: tuple[_Change, ...] = (
    _bit,
    _bit,
    _edge,
    _edge,
    _word,
    _swap,
    _cut,
    _splice,
    _double,
    _grow,
)
