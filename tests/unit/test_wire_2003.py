# SPDX-License-Identifier: Apache-2.0
"""The module's header of 2003 against an encoder and decoder written from the paper."""

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import rdma2003
from wire.native import COMPILER, Wire2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import Header, Read, RefusedError, Segment

SEEDS = sorted((Path(__file__).parents[1] / "wire" / "seeds").glob("*2003*"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

WORDS = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1), st.just(2**32 - 1))
# the sum of 16 stays within 32 bits
LENGTHS = st.one_of(st.integers(0, 4096), st.integers(0, 2**28 - 1), st.just(2**28 - 1))
SEGMENTS = st.builds(Segment, WORDS, LENGTHS, st.integers(0, 2**64 - 1))
CHUNKS = st.lists(SEGMENTS, min_size=1, max_size=16).map(tuple)
READS = st.lists(st.tuples(st.integers(0, 2**30 - 1), CHUNKS), unique_by=lambda r: r[0]).map(
    lambda reads: tuple(Read(4 * position, chunk) for position, chunk in sorted(reads))
)
WITH_LIST = st.builds(Header, WORDS, WORDS, st.sampled_from((0, 1)), READS)
DONES = st.builds(Header, WORDS, WORDS, st.just(RDMA_DONE))
HEADERS = st.one_of(WITH_LIST, WITH_LIST, DONES)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire2003:
    return Wire2003(tmp_path_factory.mktemp("wire"))


def outcome(decode: Callable[[bytes], tuple[Header, int]], message: bytes) -> object:
    """The header and its length, or the error's number."""
    try:
        return decode(message)
    except RefusedError as refused:
        return refused.errno


def refusal(function: Callable[..., object], *args: object) -> int:
    with pytest.raises(RefusedError) as caught:
        function(*args)
    return caught.value.errno


@given(HEADERS, st.binary(max_size=40))
def test_both_write_and_read_the_same_bytes(wire: Wire2003, header: Header, rpc: bytes) -> None:
    message = rdma2003.encode(header)
    assert wire.size(header) == len(message)
    assert wire.encode(header, len(message)) == message
    assert wire.encode(header, len(message) + 5) == message
    assert rdma2003.decode(message + rpc) == (header, len(message))
    assert wire.decode(message + rpc) == (header, len(message))


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A header with words changed, left out or doubled, and cut anywhere."""
    message = bytearray(rdma2003.encode(draw(HEADERS)))
    for _ in range(draw(st.integers(1, 3))):
        at = 4 * draw(st.integers(0, len(message) // 4 - 1))
        word = struct.pack(">I", draw(WORDS))
        patch = draw(st.sampled_from((word, b"", word + message[at : at + 4])))
        message[at : at + 4] = patch
    end = draw(st.integers(0, len(message))) if draw(st.booleans()) else len(message)
    return bytes(message[:end])


@given(mutations())
def test_both_judge_damaged_headers_alike(wire: Wire2003, message: bytes) -> None:
    assert outcome(wire.decode, message) == outcome(rdma2003.decode, message)


@given(st.binary(max_size=200))
def test_both_judge_noise_alike(wire: Wire2003, noise: bytes) -> None:
    started = struct.pack(">4I", 1, 0, 1, 0) + noise
    for message in (noise, started):
        assert outcome(wire.decode, message) == outcome(rdma2003.decode, message)


@given(HEADERS, st.data())
def test_every_header_cut_short_is_refused(
    wire: Wire2003, header: Header, data: st.DataObject
) -> None:
    message = rdma2003.encode(header)
    cut = message[: data.draw(st.integers(0, len(message) - 1) | st.just(len(message) - 1))]
    assert refusal(wire.decode, cut) == errno.EBADMSG
    assert refusal(wire.encode, header, len(cut)) == errno.EMSGSIZE


@given(WITH_LIST)
def test_the_caller_s_space_is_enough_when_it_just_is(wire: Wire2003, header: Header) -> None:
    chunks, segments = len(header.reads), sum(len(read.segments) for read in header.reads)
    message = rdma2003.encode(header)
    assert wire.decode(message, (chunks, segments))[0] == header
    if chunks:
        assert refusal(wire.decode, message, (chunks - 1, segments)) == errno.E2BIG
        assert refusal(wire.decode, message, (chunks, segments - 1)) == errno.E2BIG


LISTS = {
    "a boolean of 2": (2, 4, 1, 2, 0, 3, 0),
    "a position inside a word": (1, 6, 2, 1, 0, 3, 0),
    "positions that go down": (1, 8, 2, 1, 0, 3, 1, 4, 2, 1, 0, 3, 0),
    "a chunk of 4 GiB": (1, 4, 0xFFFFFFFF, 1, 0, 3, 1, 4, 1, 1, 0, 3, 0),
    "no end": (1, 4, 2, 1, 0, 3),
    "no list": (),
}


@pytest.mark.parametrize("words", LISTS.values(), ids=LISTS)
def test_malformed_lists_are_refused(wire: Wire2003, words: tuple[int, ...]) -> None:
    message = struct.pack(f">{4 + len(words)}I", 9, 0, 32, 0, *words)
    assert refusal(wire.decode, message) == refusal(rdma2003.decode, message) == errno.EBADMSG


@pytest.mark.parametrize(
    ("version", "proc", "number"),
    ((1, 0, errno.EPROTONOSUPPORT), (0, 2, errno.EPROTO), (0, 4, errno.EPROTO)),
)
def test_what_is_not_spoken_is_refused(
    wire: Wire2003, version: int, proc: int, number: int
) -> None:
    message = struct.pack(">5I", 0xFEEDC0DE, version, 32, proc, 0)
    assert refusal(wire.decode, message) == number
    assert wire.start(message) == (0xFEEDC0DE, version, 32, proc)


@pytest.mark.parametrize("proc", (2, 4, 5))
def test_what_is_not_spoken_is_not_written(wire: Wire2003, proc: int) -> None:
    assert wire.size(Header(1, 1, proc)) == 0
    assert refusal(wire.encode, Header(1, 1, proc), 99) == errno.EINVAL


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_both_read_the_seeds_of_the_fuzzer(wire: Wire2003, seed: Path) -> None:
    message = seed.read_bytes()
    header, length = wire.decode(message)
    assert (header, length) == rdma2003.decode(message)
    assert wire.encode(header, length) == message[:length]
