# SPDX-License-Identifier: Apache-2.0
"""The papers' own values, of published.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

__all__ = ["point", "points"]

FILE = Path(__file__).with_name("published.toml")


def points() -> list[dict[str, Any]]:
    """The papers' values, each with its paper."""
    papers = tomllib.loads(FILE.read_text())["paper"]
    return [point | {"paper": paper["title"]} for paper in papers for point in paper["point"]]


def point(figure: str, curve: str) -> dict[str, Any]:
    """A value of a paper."""
    (value,) = (each for each in points() if (each["figure"], each["curve"]) == (figure, curve))
    return value
