# SPDX-License-Identifier: Apache-2.0
"""Cells of a benchmark, with a file for the result of each: an interrupted run continues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["KIB", "MIB", "OUT", "RATE", "BasePart", "BaseStore", "Cell", "CellResult", "both_ends",
           "named", "own_work", "with_progress"]  # fmt: skip

OUT = Path(__file__).parents[1] / "out"
KIB, MIB = 1 << 10, 1 << 20
# samples per second of the CPU: a prime, so that operations do not run in step with them
RATE = 3989
Cell = dict[str, Any]
# as the store has it: JSON
CellResult = dict[str, Any]
_Cell = TypeVar("_Cell")


@dataclass(frozen=True)
class BasePart(Generic[_Cell]):
    """The cells of a table or figure: the same for all its curves."""

    name: str
    curves: Sequence[str]
    cells: Sequence[_Cell]


_Part = TypeVar("_Part", bound=BasePart[Any])
_Job = TypeVar("_Job")


def named(parts: Sequence[_Part], name: str) -> _Part:
    """The part with a name."""
    (part,) = (each for each in parts if each.name == name)
    return part


class BaseStore(Generic[_Cell]):
    """A JSON file for each result of a cell, and one for the conditions of the measurement."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, part: str, curve: str, cell: _Cell, number: int = 0) -> Path:
        """The file of a result; ``number`` is that of a round."""
        raise NotImplementedError

    def missing(self, part: BasePart[_Cell], curve: str, number: int = 0) -> list[_Cell]:
        """The cells of a curve without a result."""
        return [c for c in part.cells if not self.path(part.name, curve, c, number).exists()]

    def put(self, part: str, curve: str, cell: _Cell, result: CellResult, number: int = 0) -> None:
        path = self.path(part, curve, cell, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        # a file is whole or absent
        path.with_suffix(".new").write_text(json.dumps(result))
        path.with_suffix(".new").rename(path)

    def describe(self, about: str) -> None:
        """Keep the conditions of the measurement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.json").write_text(json.dumps(about))

    @property
    def about(self) -> str:
        return str(json.loads((self.folder / "about.json").read_text()))

    @property
    def small_print(self) -> str:
        """The conditions, for a figure."""
        return self.about.replace("`", "")


def with_progress(jobs: Sequence[_Job]) -> Iterator[_Job]:
    """The jobs, with a line for each before it begins."""
    for done, job in enumerate(jobs):
        print(f"{time.strftime('%H:%M:%S')} {done} of {len(jobs)}: {job}", flush=True)
        yield job


def both_ends(result: CellResult) -> float:
    """The share of client and server in the busy time: all but the modelled card's work."""
    sides = result["sides"]
    card = sides.get("card", 0)
    whole = sides["client"] + sides["server"] + sides["neither"] + card
    return float(1 - card / whole)


def own_work(result: CellResult, side: str) -> float:
    """The share of a side in the busy time, without the modelled card's work.

    Time that belongs to neither side (thread switches, interrupts) counts for both, in proportion.
    """
    sides = result["sides"]
    return both_ends(result) * float(sides[side] / (sides["client"] + sides["server"]))
