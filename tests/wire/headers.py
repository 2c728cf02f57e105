# SPDX-License-Identifier: Apache-2.0
"""Transport headers made by hypothesis, and what the module's code and a model must agree on.

A model is ``rpcrdma`` or ``rdma2003``: it has ``encode(header)`` and ``decode(message)``.
"""

import errno
import struct
from collections.abc import Callable
from typing import Protocol

import pytest
from hypothesis import strategies as st

from wire.native import Wire
from wire.rpcrdma import Header, Read, RefusedError, Segment

WORDS = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1), st.just(2**32 - 1))
# the sum of 16 stays within 32 bits
LENGTHS = st.one_of(st.integers(0, 4096), st.integers(0, 2**28 - 1), st.just(2**28 - 1))
SEGMENTS = st.builds(Segment, WORDS, LENGTHS, st.integers(0, 2**64 - 1))
CHUNKS = st.lists(SEGMENTS, min_size=1, max_size=16).map(tuple)
READS = st.lists(st.tuples(st.integers(0, 2**30 - 1), CHUNKS), unique_by=lambda r: r[0]).map(
    lambda reads: tuple(Read(4 * position, chunk) for position, chunk in sorted(reads))
)


class Model(Protocol):
    """An encoder and decoder written apart from the module's."""

    def encode(self, header: Header) -> bytes: ...

    def decode(self, message: bytes) -> tuple[Header, int]: ...


def outcome(judge: Callable[[bytes], object], message: bytes) -> object:
    """The result of a check, or the error's number."""
    try:
        return judge(message)
    except RefusedError as refused:
        return refused.errno


def refusal(function: Callable[..., object], *args: object) -> int:
    """The number of the error that the function must raise."""
    with pytest.raises(RefusedError) as caught:
        function(*args)
    return caught.value.errno


def mutations(model: Model, headers: st.SearchStrategy[Header]) -> st.SearchStrategy[bytes]:
    """Headers with words changed, left out or doubled, and cut anywhere."""

    @st.composite
    def mutated(draw: st.DrawFn) -> bytes:
        message = bytearray(model.encode(draw(headers)))
        for _ in range(draw(st.integers(1, 3))):
            at = 4 * draw(st.integers(0, len(message) // 4 - 1))
            word = struct.pack(">I", draw(WORDS))
            patch = draw(st.sampled_from((word, b"", word + message[at : at + 4])))
            message[at : at + 4] = patch
        end = draw(st.integers(0, len(message))) if draw(st.booleans()) else len(message)
        return bytes(message[:end])

    return mutated()


def same_bytes(wire: Wire, model: Model, header: Header, rpc: bytes) -> None:
    """Both write the header as the same bytes, and read it before an RPC message."""
    message = model.encode(header)
    assert wire.size(header) == len(message)
    assert wire.encode(header, len(message)) == message
    assert wire.encode(header, len(message) + 5) == message
    assert model.decode(message + rpc) == (header, len(message))
    assert wire.decode(message + rpc) == (header, len(message))


def refused_when_cut(wire: Wire, model: Model, header: Header, data: st.DataObject) -> None:
    """The module neither reads nor writes a header with less than its length."""
    message = model.encode(header)
    cut = message[: data.draw(st.integers(0, len(message) - 1) | st.just(len(message) - 1))]
    assert refusal(wire.decode, cut) == errno.EBADMSG
    assert refusal(wire.encode, header, len(cut)) == errno.EMSGSIZE


def same_header(wire: Wire, model: Model, seed: bytes) -> None:
    """Both read the same header from a message, and the module writes it again."""
    header, length = wire.decode(seed)
    assert (header, length) == model.decode(seed)
    assert wire.encode(header, length) == seed[:length]
