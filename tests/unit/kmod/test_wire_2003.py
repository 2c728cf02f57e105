# SPDX-License-Identifier: Apache-2.0
"""The module's header of 2003 against an encoder and decoder written from the paper."""

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import rdma2003
from wire.headers import (
    READS,
    WORDS,
    mutations,
    outcome,
    refusal,
    refused_when_cut,
    same_bytes,
    same_header,
)
from wire.native import COMPILER, Wire2003
from wire.rdma2003 import RDMA_DONE
from wire.rpcrdma import Header

SEEDS = sorted((Path(__file__).parents[2] / "wire" / "seeds").glob("*2003*"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

WITH_LIST = st.builds(Header, WORDS, WORDS, st.sampled_from((0, 1)), READS)
DONES = st.builds(Header, WORDS, WORDS, st.just(RDMA_DONE))
HEADERS = st.one_of(WITH_LIST, WITH_LIST, DONES)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire2003:
    return Wire2003(tmp_path_factory.mktemp("wire"))


@given(HEADERS, st.binary(max_size=40))
def test_both_write_and_read_the_same_bytes(wire: Wire2003, header: Header, rpc: bytes) -> None:
    same_bytes(wire, rdma2003, header, rpc)


@given(mutations(rdma2003, HEADERS))
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
    refused_when_cut(wire, rdma2003, header, data)


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
    same_header(wire, rdma2003, seed.read_bytes())
