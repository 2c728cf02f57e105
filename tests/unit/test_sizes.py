# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sizes import format_size, parse_counts, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("32k", (32768,)), ("4k..32k", (4096, 8192, 16384, 32768)),
        ("3k..12K", (3072, 4096, 8192, 12288)), ("1MiB,8k,8k", (8192, 1 << 20)),
        ("512,1k..2k", (512, 1024, 2048)), ("1G", (1 << 30,)),
    ],
)  # fmt: skip
def test_parse_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("parse", [parse_size, parse_sizes])
@pytest.mark.parametrize(
    "text",
    ["", "k", "-1", "-4k", "4k..", "..4k", "0", "1M..4k", "4kk", "1e3", "1.5M", "4k;reboot",
     "4096,ro", "4096\n", "٤k", "9" * 40],
)  # fmt: skip
def test_parse_size_refuses_what_is_none(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(UserError, match=r"is (not a size|descending)"):
        parse(text)


@given(st.integers(1, 1 << 40))
def test_format_size_is_read_by_parse_size(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "counts"),
    [("0..16", (0, 1, 2, 4, 8, 16)), ("4,0", (0, 4)), ("0..10", (0, 1, 2, 4, 8, 10)), ("7", (7,))],
)
def test_parse_counts(text: str, counts: tuple[int, ...]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "-1", "4k", "1..0", "1.5", "٤", "1,,2"])
def test_parse_counts_refuses_what_is_none(text: str) -> None:
    with pytest.raises(UserError):
        parse_counts(text)
