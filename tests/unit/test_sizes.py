# SPDX-License-Identifier: Apache-2.0
import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("64k", 65536), ("64K", 65536), ("1M", 1 << 20), ("4KiB", 4096)],
)
def test_sizes_as_users_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5M", "4096,ro", "١", "4096\n"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        parse_size(text)
