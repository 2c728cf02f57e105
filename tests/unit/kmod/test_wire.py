# SPDX-License-Identifier: Apache-2.0
"""The module's header code against encoders and decoders written apart from it.

Those of version 1 are written from RFC 8166, those of 2003 from the paper.
"""

import errno
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import rdma2003, rpcrdma
from wire.headers import (
    READS,
    SEGMENTS,
    WORDS,
    Model,
    mutations,
    outcome,
    refusal,
    refused_when_cut,
    same_bytes,
    same_header,
)
from wire.native import COMPILER, Private, Wire, Wire2003
from wire.rpcrdma import Header

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
ALL = sorted((Path(__file__).parents[2] / "wire" / "seeds").iterdir())
OTHERS = ("2003", "padded", "private", "notice", "nfs3")
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
OF_2003 = st.builds(Header, WORDS, WORDS, st.sampled_from((0, 1)), READS)
DONES = st.builds(Header, WORDS, WORDS, st.just(rdma2003.RDMA_DONE))


class Version(NamedTuple):
    """A version of the header: its number, the module's code, the model, headers to try."""

    number: int
    wire: Wire
    model: Model
    headers: st.SearchStrategy[Header]
    with_lists: st.SearchStrategy[Header]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    return Wire(tmp_path_factory.mktemp("wire"))


@pytest.fixture(scope="module")
def versions(wire: Wire, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Version]:
    of_2003 = Wire2003(tmp_path_factory.mktemp("wire"))
    return {
        "1": Version(1, wire, rpcrdma, st.one_of(WITH_LISTS, WITH_LISTS, ERRORS), WITH_LISTS),
        "2003": Version(0, of_2003, rdma2003, st.one_of(OF_2003, OF_2003, DONES), OF_2003),
    }


@pytest.fixture(scope="module")
def version(request: pytest.FixtureRequest, versions: dict[str, Version]) -> Version:
    return versions[request.param]


BOTH = pytest.mark.parametrize("version", ("1", "2003"), indirect=True)


@BOTH
@given(st.data(), st.binary(max_size=40))
def test_both_write_and_read_the_same_bytes(
    version: Version, data: st.DataObject, rpc: bytes
) -> None:
    same_bytes(version.wire, version.model, data.draw(version.headers), rpc)


@BOTH
@given(st.data())
def test_both_judge_damaged_headers_alike(version: Version, data: st.DataObject) -> None:
    message = data.draw(mutations(version.model, version.headers))
    assert outcome(version.wire.decode, message) == outcome(version.model.decode, message)


@BOTH
@given(st.binary(max_size=200))
def test_both_judge_noise_alike(version: Version, noise: bytes) -> None:
    started = struct.pack(">4I", 1, version.number, 1, 0) + noise
    for message in (noise, started):
        assert outcome(version.wire.decode, message) == outcome(version.model.decode, message)


@BOTH
@given(st.data())
def test_every_header_cut_short_is_refused(version: Version, data: st.DataObject) -> None:
    refused_when_cut(version.wire, version.model, data.draw(version.headers), data)


@BOTH
@given(st.data())
def test_the_caller_s_space_is_enough_when_it_just_is(
    version: Version, data: st.DataObject
) -> None:
    header = data.draw(version.with_lists)
    arrays = [*(read.segments for read in header.reads), *header.writes]
    arrays += [] if header.reply is None else [header.reply]
    chunks, segments = len(arrays), sum(map(len, arrays))
    message = version.model.encode(header)
    assert version.wire.decode(message, (chunks, segments))[0] == header
    if arrays:
        assert refusal(version.wire.decode, message, (chunks - 1, segments)) == errno.E2BIG
    if segments:
        assert refusal(version.wire.decode, message, (chunks, segments - 1)) == errno.E2BIG


LISTS = {
    "1: a boolean of 2": (0, 0, 2, 1, 1, 2, 0, 3),
    "1: a count that no message could hold": (0, 1, 0xFFFFFFFF, 1, 2, 0, 3, 0, 0),
    "1: a count whose bytes wrap": (0, 1, 0x10000001, 1, 2, 0, 3, 0, 0),
    "1: a position inside a word": (1, 6, 1, 2, 0, 3, 0, 0, 0),
    "1: positions that go down": (1, 8, 1, 2, 0, 3, 1, 4, 1, 2, 0, 3, 0, 0, 0),
    "1: a chunk of 4 GiB": (0, 1, 2, 1, 0xFFFFFFFF, 0, 3, 1, 1, 0, 3, 0, 0),
    "1: a Read chunk of 4 GiB": (1, 4, 1, 0xFFFFFFFF, 0, 3, 1, 4, 1, 1, 0, 3, 0, 0, 0),
    "1: no Reply chunk's boolean": (0, 0),
    "2003: a boolean of 2": (2, 4, 1, 2, 0, 3, 0),
    "2003: a position inside a word": (1, 6, 2, 1, 0, 3, 0),
    "2003: positions that go down": (1, 8, 2, 1, 0, 3, 1, 4, 2, 1, 0, 3, 0),
    "2003: a chunk of 4 GiB": (1, 4, 0xFFFFFFFF, 1, 0, 3, 1, 4, 1, 1, 0, 3, 0),
    "2003: no end": (1, 4, 2, 1, 0, 3),
    "2003: no list": (),
}


@pytest.mark.parametrize("name", LISTS)
def test_malformed_lists_are_refused(versions: dict[str, Version], name: str) -> None:
    version, words = versions[name.partition(":")[0]], LISTS[name]
    message = struct.pack(f">{4 + len(words)}I", 9, version.number, 32, 0, *words)
    assert refusal(version.wire.decode, message) == errno.EBADMSG
    assert refusal(version.model.decode, message) == errno.EBADMSG


STARTS = {
    "1: version 0": (0, 0, errno.EPROTONOSUPPORT),
    "1: version 2": (2, 0, errno.EPROTONOSUPPORT),
    "1: MSGP": (1, 2, errno.EPROTO),
    "1: DONE": (1, 3, errno.EPROTO),
    "1: a proc nobody knows": (1, 5, errno.EPROTO),
    "2003: version 1": (1, 0, errno.EPROTONOSUPPORT),
    "2003: MSGP": (0, 2, errno.EPROTO),
    "2003: ERROR": (0, 4, errno.EPROTO),
}


@pytest.mark.parametrize("name", STARTS)
def test_what_is_not_spoken_can_be_answered(versions: dict[str, Version], name: str) -> None:
    version, (number, proc, error) = versions[name.partition(":")[0]], STARTS[name]
    message = struct.pack(">7I", 0xFEEDC0DE, number, 32, proc, 0, 0, 0)
    assert refusal(version.wire.decode, message) == error
    assert version.wire.start(message) == (0xFEEDC0DE, number, 32, proc)


@pytest.mark.parametrize(
    ("version", "proc"),
    [*(("1", proc) for proc in (2, 3, 5)), *(("2003", proc) for proc in (2, 4, 5))],
    indirect=["version"],
)
def test_what_is_not_spoken_is_not_written(version: Version, proc: int) -> None:
    assert version.wire.size(Header(1, 1, proc)) == 0
    assert refusal(version.wire.encode, Header(1, 1, proc), 99) == errno.EINVAL


@pytest.mark.parametrize("number", (0, 3))
def test_errors_nobody_knows(wire: Wire, number: int) -> None:
    assert refusal(wire.encode, Header(1, 1, 4, error=number), 99) == errno.EINVAL
    assert refusal(wire.decode, struct.pack(">5I", 1, 1, 1, 4, number)) == errno.EBADMSG


SEEDS = [
    *(("1", path) for path in ALL if not any(name in path.name for name in OTHERS)),
    *(("2003", path) for path in ALL if "2003" in path.name),
]


@pytest.mark.parametrize(
    ("version", "seed"), SEEDS, indirect=["version"], ids=[path.name for _, path in SEEDS]
)
def test_both_read_what_was_captured(version: Version, seed: Path) -> None:
    same_header(version.wire, version.model, seed.read_bytes())


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
    decoded = {path.name: wire.decode_private(path.read_bytes()) for path in PRIVATE_SEEDS}
    assert decoded == {
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
