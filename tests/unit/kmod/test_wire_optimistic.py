# SPDX-License-Identifier: Apache-2.0
"""The module's notices and NFSv3 READ messages against encoders and decoders written apart."""

import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import nfs3, notices
from wire.native import COMPILER, WireOptimistic
from wire.notices import Credit, Grant, Notice, Revoke
from wire.rpcrdma import RefusedError, Segment
from wire.siphash import siphash

SEEDS = Path(__file__).parents[2] / "wire" / "seeds"
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

WORDS = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1), st.just(2**32 - 1))
LENGTHS = st.one_of(st.integers(1, 9), st.integers(1, 2**32 - 1))
LONGS = st.integers(0, 2**64 - 2**32 - 1) | st.integers(0, 9)
HANDLES = st.binary(min_size=1, max_size=64)
GRANTS = st.builds(
    Grant, WORDS, LONGS, st.builds(Segment, WORDS, LENGTHS, LONGS), HANDLES, st.booleans(),
    credential=st.integers(0, 2**64 - 1),
)  # fmt: skip
NOTICES = st.one_of(
    GRANTS,
    st.builds(Revoke, st.lists(WORDS, min_size=1, max_size=16).map(tuple)),
    st.builds(Credit, st.integers(1, 2**32 - 1)),
)
CREDENTIALS = st.builds(
    lambda name, user, groups: nfs3.credential(name, user, 1, *groups),
    st.binary(max_size=40), WORDS, st.lists(WORDS, max_size=16),
)  # fmt: skip
READS = st.builds(nfs3.Read, HANDLES, st.integers(0, 2**64 - 1), WORDS, credential=CREDENTIALS)
CALLS = st.builds(
    nfs3.Call, READS,
    header=st.tuples(WORDS, *map(st.just, (0, 2, 100003, 3, 6))),
)  # fmt: skip
READ = nfs3.Call(nfs3.Read(bytes(range(29)), 1 << 33, 4096))
GRANT = Grant(60, 1 << 20, Segment(0x1234, 1 << 20, 1 << 40), bytes(range(1, 30)))


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> WireOptimistic:
    return WireOptimistic(tmp_path_factory.mktemp("wire"))


def outcome(decode: Callable[[bytes], Notice], message: bytes) -> Notice | int:
    """The notice, or the error's number."""
    try:
        return decode(message)
    except RefusedError as refused:
        return refused.errno


def test_siphash_has_the_digest_of_its_paper() -> None:
    """Appendix A; the digest of the lab's kernels is in tests/lab/optimistic/test_optimistic.py."""
    key = struct.unpack("<2Q", bytes(range(16)))
    assert siphash(bytes(range(15)), key) == 0xA129CA6149BE45E5


@given(NOTICES)
def test_both_write_and_read_the_same_notice(wire: WireOptimistic, notice: Notice) -> None:
    message = notices.encode(notice)
    assert wire.write(notice) == message
    assert wire.read(message) == notices.decode(message) == notice


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A message with words changed, left out or doubled, and cut anywhere."""
    message = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        at = 4 * draw(st.integers(0, max(len(message) // 4 - 1, 0)))
        word = struct.pack(">I", draw(WORDS | st.integers(0, 100)))
        patch = draw(st.sampled_from((word, b"", word + message[at : at + 4])))
        message[at : at + 4] = patch
    end = draw(st.integers(0, len(message))) if draw(st.booleans()) else len(message)
    return bytes(message[:end])


@given(damaged(NOTICES.map(notices.encode)) | st.binary(max_size=122))
def test_both_judge_damaged_notices_alike(wire: WireOptimistic, message: bytes) -> None:
    assert outcome(wire.read, message) == outcome(notices.decode, message)


def lies() -> dict[str, bytes]:
    """Messages that are almost a notice."""
    grant, (handle, length, offset) = notices.encode(GRANT), (0x1234, 1 << 20, 1 << 40)
    return {
        "nothing": b"",
        "half a notice": grant[:7],
        "an unknown kind": struct.pack(">2I", 4, 1),
        "kind 0": struct.pack(">2I", 0, 1),
        "a grant of nothing": notices.encode(GRANT._replace(extent=Segment(handle, 0, offset))),
        "a grant behind the largest file": notices.encode(GRANT._replace(position=2**64 - length)),
        "memory behind the address space": notices.encode(
            GRANT._replace(extent=Segment(handle, length, 2**64 - length))
        ),
        "half an end": grant[:32] + struct.pack(">I", 2) + grant[36:],
        "no file handle": notices.encode(GRANT._replace(fh=b"")),
        "a file handle of 65 bytes": notices.encode(GRANT._replace(fh=bytes(65))),
        "a file handle of 4 GiB": grant[:44] + struct.pack(">I", 0xFFFFFFFF) + grant[48:],
        "a grant and 4 bytes": grant + bytes(4),
        "a grant without padding": grant[:-3],
        "no handles": struct.pack(">2I", 2, 0),
        "17 handles": struct.pack(">19I", 2, 17, *range(17)),
        "2^30 handles": struct.pack(">4I", 2, 1 << 30, 1, 2),
        "handles that are missing": struct.pack(">3I", 2, 2, 1),
        "a handle too many": struct.pack(">4I", 2, 1, 1, 2),
        "no credits": struct.pack(">2I", 3, 0),
        "credits and a word": struct.pack(">3I", 3, 1, 1),
    }


@pytest.mark.parametrize("message", lies().values(), ids=lies())
def test_contradictions_are_refused(wire: WireOptimistic, message: bytes) -> None:
    assert outcome(wire.read, message) == outcome(notices.decode, message) == errno.EBADMSG


@given(CALLS, st.binary(max_size=8))
def test_both_find_the_arguments_of_a_read(
    wire: WireOptimistic, call: nfs3.Call, more: bytes
) -> None:
    message = call.encode() + more
    assert wire.arguments(message) == nfs3.arguments(message) == call.read


@given(damaged(CALLS.map(nfs3.Call.encode)) | st.binary(max_size=110))
def test_both_judge_damaged_reads_alike(wire: WireOptimistic, message: bytes) -> None:
    assert wire.arguments(message) == nfs3.arguments(message)


def others() -> dict[str, bytes]:
    """Calls that are almost a READ with AUTH_SYS."""
    xid, *words = READ.header
    changed = {
        "a Reply": (0, 1), "RPC version 3": (1, 3), "another program": (2, 100005),
        "NFSv4": (3, 4), "GETATTR": (4, 1), "WRITE": (4, 7),
    }  # fmt: skip
    headers = {
        name: replace(READ, header=(xid, *words[:at], value, *words[at + 1 :])).encode()
        for name, (at, value) in changed.items()
    }
    return headers | {
        "AUTH_NONE": replace(READ, flavor=0).encode(),
        "RPCSEC_GSS": replace(READ, flavor=6).encode(),
        "a credential of 404 bytes": replace(
            READ, read=replace(READ.read, credential=bytes(404))
        ).encode(),
        "a verifier of 404 bytes": replace(READ, verifier=(0, bytes(404))).encode(),
        "no file handle": replace(READ, read=nfs3.Read(b"", 0, 1)).encode(),
        "a file handle of 65 bytes": replace(READ, read=nfs3.Read(bytes(65), 0, 1)).encode(),
        "a Call without its count": READ.encode()[:-1],
    }


@pytest.mark.parametrize("message", others().values(), ids=others())
def test_other_calls_are_told_apart(wire: WireOptimistic, message: bytes) -> None:
    assert wire.arguments(message) is nfs3.arguments(message) is None


@given(WORDS, WORDS, st.booleans())
def test_both_write_the_same_reply(wire: WireOptimistic, xid: int, count: int, eof: bool) -> None:
    assert wire.reply(xid, count, eof) == nfs3.reply(xid, count, eof)


ATTRIBUTES = st.binary(min_size=84, max_size=84)
ANSWERS = st.builds(nfs3.answer, WORDS, ATTRIBUTES, WORDS, st.booleans())


@given(ANSWERS, WORDS, WORDS, st.booleans())
def test_both_repeat_the_attributes_of_a_reply(
    wire: WireOptimistic, message: bytes, xid: int, count: int, eof: bool
) -> None:
    assert wire.is_answer(message)
    assert wire.answer(message, xid, count, eof) == nfs3.answer(xid, message[32:116], count, eof)


@given(damaged(ANSWERS) | st.binary(max_size=140))
def test_both_judge_damaged_replies_alike(wire: WireOptimistic, message: bytes) -> None:
    assert wire.is_answer(message) == nfs3.is_answer(message)


def test_the_seeds_of_the_fuzzer_are_messages(wire: WireOptimistic) -> None:
    for name in ("grant", "revoke", "credit"):
        message = (SEEDS / f"made-notice-{name}.bin").read_bytes()
        assert wire.read(message) == notices.decode(message)
    message = (SEEDS / "made-nfs3-read.bin").read_bytes()
    arguments = nfs3.arguments(message)
    assert arguments
    assert wire.arguments(message) == arguments
    assert (SEEDS / "made-nfs3-read-reply.bin").read_bytes() == wire.reply(
        7, arguments.count, False
    )
