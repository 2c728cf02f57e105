# SPDX-License-Identifier: Apache-2.0
"""The module's header code against an encoder and decoder of RFC 8166 written apart from it."""

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import rpcrdma
from wire.headers import (
    READS,
    SEGMENTS,
    WORDS,
    mutations,
    outcome,
    refusal,
    refused_when_cut,
    same_bytes,
    same_header,
)
from wire.native import COMPILER, Private, Wire
from wire.rpcrdma import Header

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
ALL = sorted((Path(__file__).parents[2] / "wire" / "seeds").iterdir())
OTHERS = ("2003", "padded", "private", "notice", "nfs3")
SEEDS = [path for path in ALL if not any(name in path.name for name in OTHERS)]
PRIVATE_SEEDS = [path for path in ALL if "private" in path.name]

# Write and Reply chunks may be empty: their XDR is an array of any length, RFC 8166, section 4.2.2
RESULTS = st.lists(SEGMENTS, max_size=16).map(tuple)
WITH_LISTS = st.builds(
    Header,
    *(WORDS, WORDS, st.sampled_from((rpcrdma.RDMA_MSG, rpcrdma.RDMA_NOMSG)), READS),
    *(st.lists(RESULTS).map(tuple), st.none() | RESULTS),
)
ERRORS = st.one_of(
    st.builds(Header, WORDS, WORDS, st.just(4), error=st.just(rpcrdma.ERR_CHUNK)),
    st.builds(
        *(Header, WORDS, WORDS, st.just(4)),
        error=st.just(rpcrdma.ERR_VERS),
        versions=st.tuples(WORDS, WORDS),
    ),
)
HEADERS = st.one_of(WITH_LISTS, WITH_LISTS, ERRORS)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    return Wire(tmp_path_factory.mktemp("wire"))


@given(HEADERS, st.binary(max_size=40))
def test_both_write_and_read_the_same_bytes(wire: Wire, header: Header, rpc: bytes) -> None:
    same_bytes(wire, rpcrdma, header, rpc)


@given(mutations(rpcrdma, HEADERS))
def test_both_judge_damaged_headers_alike(wire: Wire, message: bytes) -> None:
    assert outcome(wire.decode, message) == outcome(rpcrdma.decode, message)


@given(st.binary(max_size=200))
def test_both_judge_noise_alike(wire: Wire, noise: bytes) -> None:
    started = struct.pack(">4I", 1, 1, 1, 0) + noise
    for message in (noise, started):
        assert outcome(wire.decode, message) == outcome(rpcrdma.decode, message)


@given(HEADERS, st.data())
def test_every_header_cut_short_is_refused(wire: Wire, header: Header, data: st.DataObject) -> None:
    refused_when_cut(wire, rpcrdma, header, data)


@given(WITH_LISTS)
def test_the_caller_s_space_is_enough_when_it_just_is(wire: Wire, header: Header) -> None:
    arrays = [*(read.segments for read in header.reads), *header.writes]
    arrays += [] if header.reply is None else [header.reply]
    chunks, segments = len(arrays), sum(map(len, arrays))
    message = rpcrdma.encode(header)
    assert wire.decode(message, (chunks, segments))[0] == header
    if arrays:
        assert refusal(wire.decode, message, (chunks - 1, segments)) == errno.E2BIG
    if segments:
        assert refusal(wire.decode, message, (chunks, segments - 1)) == errno.E2BIG


LISTS = {
    "a boolean of 2": (0, 0, 2, 1, 1, 2, 0, 3),
    "a count that no message could hold": (0, 1, 0xFFFFFFFF, 1, 2, 0, 3, 0, 0),
    "a count whose bytes wrap": (0, 1, 0x10000001, 1, 2, 0, 3, 0, 0),
    "a position inside a word": (1, 6, 1, 2, 0, 3, 0, 0, 0),
    "positions that go down": (1, 8, 1, 2, 0, 3, 1, 4, 1, 2, 0, 3, 0, 0, 0),
    "a chunk of 4 GiB": (0, 1, 2, 1, 0xFFFFFFFF, 0, 3, 1, 1, 0, 3, 0, 0),
    "a Read chunk of 4 GiB": (1, 4, 1, 0xFFFFFFFF, 0, 3, 1, 4, 1, 1, 0, 3, 0, 0, 0),
    "no Reply chunk's boolean": (0, 0),
}


@pytest.mark.parametrize("words", LISTS.values(), ids=LISTS)
def test_malformed_lists_are_refused(wire: Wire, words: tuple[int, ...]) -> None:
    message = struct.pack(f">{4 + len(words)}I", 9, 1, 32, 0, *words)
    assert refusal(wire.decode, message) == refusal(rpcrdma.decode, message) == errno.EBADMSG


STARTS = {
    "version 0": (0, 0, errno.EPROTONOSUPPORT),
    "version 2": (2, 0, errno.EPROTONOSUPPORT),
    "MSGP": (1, 2, errno.EPROTO),
    "DONE": (1, 3, errno.EPROTO),
    "a proc nobody knows": (1, 5, errno.EPROTO),
}


@pytest.mark.parametrize(("version", "proc", "number"), STARTS.values(), ids=STARTS)
def test_what_is_not_spoken_can_be_answered(
    wire: Wire, version: int, proc: int, number: int
) -> None:
    message = struct.pack(">7I", 0xFEEDC0DE, version, 32, proc, 0, 0, 0)
    assert refusal(wire.decode, message) == number
    assert wire.start(message) == (0xFEEDC0DE, version, 32, proc)


@pytest.mark.parametrize("proc", (2, 3, 5))
def test_what_is_not_spoken_is_not_written(wire: Wire, proc: int) -> None:
    assert wire.size(Header(1, 1, proc)) == 0
    assert refusal(wire.encode, Header(1, 1, proc), 99) == errno.EINVAL


@pytest.mark.parametrize("number", (0, 3))
def test_errors_nobody_knows(wire: Wire, number: int) -> None:
    assert refusal(wire.encode, Header(1, 1, 4, error=number), 99) == errno.EINVAL
    assert refusal(wire.decode, struct.pack(">5I", 1, 1, 1, 4, number)) == errno.EBADMSG


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_both_read_what_was_captured(wire: Wire, seed: Path) -> None:
    same_header(wire, rpcrdma, seed.read_bytes())


@pytest.mark.parametrize(
    ("message", "is_call"),
    (
        (struct.pack(">3I", 7, 0, 2), True),
        (struct.pack(">3I", 7, 1, 0), False),
        (struct.pack(">2I", 7, 1 << 24), False),
        (struct.pack(">2I", 0, 0)[:7], False),
        (b"", False),
    ),
)
def test_calls_are_distinguished_from_replies(wire: Wire, message: bytes, is_call: bool) -> None:
    assert wire.is_call(message) is is_call


MAGIC = b"\xf6\xab\x0e\x18"
SILENT = Private(False, 1024, 1024, given=False)


@given(st.booleans(), st.integers(1, 256), st.integers(1, 256), st.integers(0, 1023))
def test_private_data_says_sizes_in_kib(
    wire: Wire, invalidates: bool, send: int, receive: int, rest: int
) -> None:
    data = MAGIC + bytes((1, invalidates, send - 1, receive - 1))
    assert wire.encode_private(Private(invalidates, 1024 * send + rest, 1024 * receive)) == data
    # InfiniBand pads it, and the flags that are reserved may come to mean something
    padded = data[:5] + bytes((0xFE | invalidates,)) + data[6:] + bytes(48)
    assert wire.decode_private(padded) == (
        invalidates,
        1024 * send,
        1024 * receive,
        False,
        0,
        0,
        True,
    )


def test_private_data_holds_sizes_within_what_an_octet_says(wire: Wire) -> None:
    data = wire.encode_private(Private(False, 0, 2**32 - 1))
    assert wire.decode_private(data) == Private(False, 1024, 256 * 1024)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=28))
def test_the_extension_follows_the_private_data(
    wire: Wire, capabilities: int, token: int, rest: bytes
) -> None:
    private = Private(True, 4096, 4096, True, capabilities, token)
    fields = capabilities.to_bytes(4, "big") + token.to_bytes(8, "big")
    data = MAGIC + b"\x01\x01\x03\x03" + b"NFRX\x01\0\0\0" + fields
    assert wire.encode_private(private) == data
    assert wire.decode_private(data + rest) == private
    # who knows RFC 8797 only sees its eight bytes
    assert wire.decode_private(data[:8]) == Private(True, 4096, 4096)


@pytest.mark.parametrize(
    "extension",
    (
        *(b"NFRX", b"NFRX\x01" + bytes(14), bytes(20), b"\xff" * 20),
        *(b"NFRX\x00" + bytes(15), b"XRFN\x01" + bytes(15)),
    ),
)
def test_an_extension_that_is_short_or_unknown_is_ignored(wire: Wire, extension: bytes) -> None:
    data = MAGIC + b"\x01\x01\x03\x03" + extension
    assert wire.decode_private(data) == Private(True, 4096, 4096)


def test_a_later_version_of_the_extension_keeps_the_fields(wire: Wire) -> None:
    later = MAGIC + b"\x01\x00\x03\x03" + b"NFRX\x02\0\0\0" + bytes(11) + b"\x07" + b"more"
    assert wire.decode_private(later) == Private(False, 4096, 4096, True, 0, 7)


def test_the_fuzzer_starts_from_private_data_with_and_without_the_extension(wire: Wire) -> None:
    found = {path.name: wire.decode_private(path.read_bytes()) for path in PRIVATE_SEEDS}
    assert found == {
        "made-private.bin": Private(True, 8192, 8192),
        "made-private-extended.bin": Private(True, 8192, 8192, True, 1, 0x0123456789ABCDEF),
        "made-private-later.bin": Private(False, 4096, 4096, True, 0xF, 7),
    }


@pytest.mark.parametrize(
    "data",
    (b"", MAGIC, MAGIC + b"\x01\x01\x03", MAGIC + b"\x02\x01\x03\x03", bytes(56), b"\xf6" * 8),
)
def test_a_peer_that_says_nothing_of_ours_has_the_defaults(wire: Wire, data: bytes) -> None:
    assert wire.decode_private(data) == SILENT
