# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/: each ``console`` block, what runs in it, and where.

``$`` begins a command of the host, ``#`` one of root in the lab's client; other lines are output.
Comments directly before a block say how to run it::

    <!-- not run: the reason -->
    <!-- before: a command that runs in the client first -->
    <!-- output: stable -->       the command prints these lines; ... stands for anything
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "Step", "blocks", "calls", "spans"]

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- (?:not run|before|output):[^\n]*-->\n)*)"
    r"^```console\n(?P<body>.*?)^```$",
    re.M | re.S,
)
_COMMENT = re.compile(r"^<!-- (not run|before|output): (.*?) -->$", re.M)
_OPERATORS = set("();<>|&")


@dataclass
class Step:
    """A command, whether the host or the client runs it, and the lines that the page shows."""

    on_host: bool
    command: str
    line: int
    output: list[str] = field(default_factory=list)

    @property
    def fails(self) -> bool:
        """Whether the page shows an error."""
        return any(line.startswith("nfsrdma: ") for line in self.output)

    def matches(self, printed: str) -> bool:
        """Whether ``printed`` has the page's lines, in their order."""
        parts = (re.escape(line).replace(re.escape("..."), ".*") for line in self.output)
        return bool(re.search("(?:.*\n)*?".join(f"{part}\n" for part in parts), f"{printed}\n"))


@dataclass
class Block:
    """A block, with the reason if it does not run."""

    line: int
    steps: list[Step]
    reason: str
    before: list[str]
    stable: bool


def blocks(page: Path) -> list[Block]:
    """The ``console`` blocks of a page."""
    text = page.read_text()
    return [_block(text, found) for found in _BLOCK.finditer(text)]


def _block(text: str, found: re.Match[str]) -> Block:
    comments = _COMMENT.findall(found["comments"])
    steps: list[Step] = []
    first = text.count("\n", 0, found.start("body")) + 1
    for number, line in enumerate(found["body"].splitlines(), first):
        if line[:2] in ("$ ", "# "):
            steps.append(Step(line[0] == "$", line[2:], number))
        else:
            steps[-1].output.append(line)
    return Block(
        first,
        steps,
        reason=next((word for kind, word in comments if kind == "not run"), ""),
        before=[word for kind, word in comments if kind == "before"],
        stable=("output", "stable") in comments,
    )


def spans(page: Path) -> Iterator[str]:
    """The spans of code in a page's text that are calls of the program."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for span in re.findall(r"`([^`]+)`", text):
        if re.match(r"nfsrdma\s", span):
            yield " ".join(span.split())


def calls(command: str) -> Iterator[list[str]]:
    """The words of each call of ``nfsrdma`` in a shell command, without the program's name."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] | None = None
    for word in [*lexer, ";"]:
        if word == "--" or set(word) <= _OPERATORS:
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)
        elif word == "nfsrdma":
            words = []
