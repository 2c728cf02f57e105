# SPDX-License-Identifier: Apache-2.0
"""The tables of distributions and of other projects' programs, from distributions.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tools/distributions.toml"
PARTS = ("package", "wheel", "image", "zipapp", "module", "probes")
WAYS = {
    "package": "Debian package",
    "wheel": "wheel, with the distribution's Python",
    "newer": "wheel, with a newer Python of the distribution",
    "zipapp": "zipapp: `collect` and `health`",
    "image": "container image only",
}
_PLACES = {"tests/lab": "lab", "tests/distributions": "chroot"}


@dataclass(frozen=True)
class Distribution:
    """A row of the file; the parts of ``PARTS`` are a test, "untested" or "no", and a remark."""

    name: str
    kernel: str
    python: str
    way: str
    package: str
    wheel: str
    image: str
    zipapp: str
    module: str
    probes: str
    source: tuple[str, ...]

    def test(self, part: str) -> str:
        """The test that shows a part, as FILE::TEST; "" if none does."""
        word = _part(self, part)[0]
        return word if word.startswith("tests/") else ""

    @property
    def is_tested(self) -> bool:
        """Whether a test installs it in the way that the table names."""
        return self.way in PARTS and bool(self.test(self.way))


@dataclass(frozen=True)
class Program:
    """A package of another project; ``versions`` has the one of each release of Debian."""

    package: str
    name: str
    reads: str
    versions: dict[str, str]


def distributions() -> list[Distribution]:
    """The rows of distributions, in the order of the file.  TypeError if one lacks a key."""
    rows = tomllib.loads(DATA.read_text())["distribution"]
    return [Distribution(**{**row, "source": tuple(row["source"])}) for row in rows]


def programs() -> list[Program]:
    """The rows of programs, in the order of the file."""
    return [Program(**row) for row in tomllib.loads(DATA.read_text())["program"]]


def short() -> str:
    """The ways to install, and the distributions of each."""
    rows = []
    for way, text in WAYS.items():
        of_way = (row for row in distributions() if row.way == way)
        names = (f"**{row.name}**" if row.is_tested else row.name for row in of_way)
        rows.append((text, "; ".join(names)))
    return table(("install by", "on (**tested**)"), rows)


def full() -> str:
    """What works on each distribution, and where a test shows it."""
    rows = [
        (d.name, d.kernel, d.python, *(_cell(*_part(d, part)) for part in PARTS))
        for d in distributions()
    ]
    head = ("distribution", "kernel", "Python", *PARTS)
    return table(head, rows)


def versions() -> str:
    """The versions of other projects' programs that tests run."""
    rows = [(p.name, *p.versions.values(), p.reads) for p in programs()]
    head = ("program", "Debian 11", "Debian 12", "Debian 13", "unstable", "what is read")
    return table(head, rows)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _part(distribution: Distribution, part: str) -> tuple[str, str]:
    word, _, remark = str(getattr(distribution, part)).partition("; ")
    return word, remark


def _cell(word: str, remark: str) -> str:
    place = next((name for folder, name in _PLACES.items() if word.startswith(folder)), word)
    return f"{place}: {remark}" if remark else place
