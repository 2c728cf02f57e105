# SPDX-License-Identifier: Apache-2.0
"""The picture of the rooms shows the imports, and what it leaves out is implied."""

import pytest
from layout import imports, levels, needed, shown, text


def test_the_picture_shows_the_imports() -> None:
    assert shown() == text(imports()), "run tools/layout.py"


def test_implied_arrows_are_left_out() -> None:
    rooms = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert needed(rooms) == {("a", "b"), ("b", "c")}
    assert levels(rooms) == {"c": 0, "b": 1, "a": 2}


def test_a_circle_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"in a circle: \['a', 'b'\]"):
        levels({"a": {"b"}, "b": {"a"}, "c": set()})
