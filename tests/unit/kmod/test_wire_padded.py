# SPDX-License-Identifier: Apache-2.0
"""The module's messages with padding against an encoder and decoder written from RFC 5666."""

import errno
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import rdma5666
from wire.headers import WORDS, outcome
from wire.native import COMPILER, WirePadded
from wire.rdma5666 import RDMA_MSGP, Padded
from wire.rpcrdma import Header, Read, RefusedError, Segment

SEEDS = sorted((Path(__file__).parents[2] / "wire" / "seeds").glob("*padded*"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

LENGTHS = st.one_of(st.integers(0, 4096), st.integers(0, 2**30 - 1))
SEGMENTS = st.builds(Segment, WORDS, LENGTHS, st.integers(0, 2**64 - 1))
CHUNKS = st.lists(SEGMENTS, min_size=1, max_size=2).map(tuple)
READS = st.tuples(st.integers(0, 2**30 - 1), CHUNKS).map(lambda r: Read(4 * r[0], r[1]))
# no longer than the decoder accepts
HEADERS = st.builds(
    Header, WORDS, WORDS, st.just(RDMA_MSGP),
    st.lists(READS, max_size=1).map(tuple), st.lists(CHUNKS, max_size=2).map(tuple),
    st.none() | CHUNKS,
)  # fmt: skip
DATA = st.binary(min_size=1, max_size=70)
RPC = st.integers(2, 20).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n))


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> WirePadded:
    return WirePadded(tmp_path_factory.mktemp("wire"))


@given(HEADERS, WORDS, WORDS, st.binary(max_size=40))
def test_both_write_and_read_the_same_bytes(
    wire: WirePadded, header: Header, align: int, thresh: int, rpc: bytes
) -> None:
    message = rdma5666.encode(header, align, thresh)
    assert wire.size(header) == len(message) <= 256
    for room in (len(message), len(message) + 5):
        assert wire.write(header, align, thresh, room) == message
    with pytest.raises(RefusedError):
        wire.write(header, align, thresh, len(message) - 1)
    assert wire.is_padded(message + rpc)
    expected = (header, align, thresh, len(message))
    assert wire.read(message + rpc) == rdma5666.decode(message + rpc) == expected


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A Call or a Reply, sound or with words changed and the end cut off or extended."""
    rpc, data = draw(RPC), draw(DATA)
    align = draw(st.sampled_from((144, 148, 160, 256, 1024)))
    position = 4 * draw(st.integers(0, len(rpc) // 4))
    message = bytearray(
        rdma5666.call(7, rpc, position, data, align=align, thresh=draw(st.integers(0, 80)))
        if draw(st.booleans())
        else rdma5666.reply(7, rpc, data, align=align)
    )
    for _ in range(draw(st.integers(0, 2))):
        # not the version, and not the type
        at = 4 * draw(st.integers(4, 15))
        message[at : at + 4] = struct.pack(">I", draw(WORDS | st.integers(0, 200)))
    message += bytes(draw(st.integers(0, 5)))
    return bytes(message[: len(message) - draw(st.integers(0, 5))])


@given(messages())
def test_both_find_the_same_data(wire: WirePadded, message: bytes) -> None:
    assert outcome(wire.read, message) == outcome(rdma5666.decode, message)
    assert outcome(wire.find, message) == outcome(rdma5666.find, message)


def test_the_data_is_where_the_header_says(wire: WirePadded) -> None:
    rpc, data = bytes(range(80)), bytes(61)
    assert wire.find(rdma5666.call(1, rpc, 44, data, thresh=61)) == Padded(44, 1024, 61, 80)
    assert wire.find(rdma5666.reply(1, rpc, data) + bytes(3)) == Padded(0, 1024, 61, 80)


def lies() -> dict[str, bytes]:
    """Messages that contradict themselves in one number each."""
    rpc, data = bytes(80), bytes(64)
    segment = Segment(0, 64, 80)
    head = Header(1, 32, RDMA_MSGP, (Read(44, (segment,)),))

    def call(align: int = 256, thresh: int = 64, more: bytes = b"", **numbers: int) -> bytes:
        reads = (Read(44, (replace(segment, **numbers),)),)
        return rdma5666.whole(replace(head, reads=reads), rpc, data + more, align, thresh)

    def other(**lists: object) -> bytes:
        return rdma5666.whole(replace(head, **lists), rpc, data, 256, 64)  # type: ignore[arg-type]

    sound = call()
    return {
        "a key": call(handle=1),
        "data longer than the message": call(length=65),
        "data much longer": call(length=0xFFFFFFFF),
        "no data": call(length=0, thresh=0),
        "data shorter than the threshold": call(thresh=65),
        "bytes behind the data": call(more=bytes(4)),
        "bytes behind padding": call(length=61, more=bytes(1)),
        "RPC message as long as the padding allows, and one byte": call(offset=256 - 60 + 1),
        "an RPC message of 4 GiB": call(offset=1 << 32),
        "position behind the RPC message": call(offset=40),
        "data before the end of the header": sound[:16] + struct.pack(">I", 56) + sound[20:],
        "data behind the message": sound[:16] + struct.pack(">I", len(sound)) + sound[20:],
        "data far behind": sound[:16] + struct.pack(">I", 0xFFFFFFFC) + sound[20:],
        "two segments": other(reads=(Read(44, (segment, segment)),)),
        "two chunks": other(reads=(Read(40, (segment,)), Read(44, (segment,)))),
        "a chunk in each list": other(writes=((segment,),)),
        "no chunk": other(reads=()),
        "a chunk without segments": other(reads=(), writes=((),)),
        "a Reply chunk": other(reply=(segment,)),
        "a header of 300 bytes": other(writes=((segment,) * 16,)),
    }


@pytest.mark.parametrize("message", lies().values(), ids=lies())
def test_contradictions_are_refused(wire: WirePadded, message: bytes) -> None:
    assert outcome(wire.find, message) == outcome(rdma5666.find, message) == errno.EBADMSG


@pytest.mark.parametrize("start", ((1, 1, 1, 0), (1, 0, 1, 2), (1, 2, 1, 2), (1, 1, 1, 4)))
def test_other_messages_are_told_apart(wire: WirePadded, start: tuple[int, ...]) -> None:
    assert not wire.is_padded(struct.pack(">4I", *start) + bytes(20))
    assert not wire.is_padded(struct.pack(">5I", 1, 1, 1, 2, 1024))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_both_read_the_seeds_of_the_fuzzer(wire: WirePadded, seed: Path) -> None:
    message = seed.read_bytes()
    assert wire.read(message) == rdma5666.decode(message)
    assert wire.find(message) == rdma5666.find(message)
