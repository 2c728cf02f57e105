# SPDX-License-Identifier: Apache-2.0
"""The reader of XDR against a plain one, which unpacks a word at a time."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsrdma_tools.capture.xdr import Reader

STEPS = st.lists(st.tuples(st.sampled_from(("words", "skip", "opaque")), st.integers(0, 90)))


class WithCount(Reader):
    """All steps have a number, which one ignores."""

    def opaque(self, _: int = 0) -> None:
        super().opaque()


class Plain:
    def __init__(self, message: bytes, at: int) -> None:
        self.message, self.at = message, at

    def words(self, count: int) -> tuple[int, ...]:
        if self.at + 4 * count > len(self.message):
            raise ValueError
        self.at += 4 * count
        return struct.unpack_from(f">{count}I", self.message, self.at - 4 * count)

    def skip(self, size: int) -> None:
        self.at += size + -size % 4
        if self.at > len(self.message):
            raise ValueError

    def opaque(self, _: int) -> None:
        self.skip(self.words(1)[0])


@given(st.lists(st.integers(0, 70) | st.integers(0, 2**32 - 1)), st.binary(max_size=3), STEPS)
def test_a_message_is_read_as_word_by_word(
    words: list[int], end: bytes, steps: list[tuple[str, int]]
) -> None:
    message = struct.pack(f">{len(words)}I", *words) + end
    at = 4 * (len(words) // 3)
    plain, reader = Plain(message, at), WithCount(message, at)
    for step, number in steps:
        try:
            expected = getattr(plain, step)(number)
        except ValueError:
            with pytest.raises(ValueError, match="the message is cut"):
                getattr(reader, step)(number)
            return
        value = getattr(reader, step)(number)
        assert (value, reader.at) == (expected, plain.at)


def test_data_that_is_skipped_is_not_unpacked() -> None:
    message = struct.pack(">I", 1 << 20) + bytes(1 << 20) + struct.pack(">I", 7)
    tracemalloc.start()
    try:
        reader = Reader(message)
        reader.opaque()
        assert reader.word() == 7
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10
