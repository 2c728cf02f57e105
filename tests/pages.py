# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/: each ``console`` block, what runs in it, and where.

``$`` begins a command of the host, ``#`` one of root in the lab; other lines are output.
A paragraph before a block names its host if the page needs two: it begins with "On the server",
"On the client" or "On both hosts", and ends with a colon.  Other blocks run in the client.
Comments directly before a block say how to run it::

    <!-- not run: the reason -->
    <!-- before: a command that runs first, where the block runs -->
    <!-- before on the server: a command that runs first, in the server (or client) -->
    <!-- after: a command that runs last, where the block runs -->
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
    r"(?P<comments>(?:^<!-- (?:not run|before|before on the \w+|after|output):[^\n]*-->\n)*)"
    r"^```console\n(?P<body>.*?)^```$",
    re.M | re.S,
)
_COMMENT = re.compile(r"^<!-- (not run|before|after|output)(?: on the (\w+))?: (.*?) -->$", re.M)
_LABEL = re.compile(r"On (?:the (?P<one>server|client)|both hosts)\b.*:", re.S)
_OPERATORS = set("();<>|&")


@dataclass
class Step:
    """A command, whether the host or the lab runs it, and the lines that the page shows."""

    on_host: bool
    command: str
    line: int
    output: list[str] = field(default_factory=list)

    @property
    def fails(self) -> bool:
        """Whether the page shows an error, or a finding with which the command fails."""
        if self.command.startswith("nfsrdma mounts --require"):
            return bool(self.output)
        ends = (
            ("nfsrdma: ", "x error ") if self.command.startswith("nfsrdma doctor") else "nfsrdma: "
        )
        return any(line.startswith(ends) for line in self.output)

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
    nodes: tuple[str, ...]
    """Where the page says that it runs: "server", "client", both, or nothing."""
    before: list[tuple[str, str]]
    """Nodes ("": those of the block) and commands."""
    after: list[str]
    stable: bool


def blocks(page: Path) -> list[Block]:
    """The ``console`` blocks of a page."""
    text = page.read_text()
    return [_block(text, match) for match in _BLOCK.finditer(text)]


def _block(text: str, match: re.Match[str]) -> Block:
    comments = _COMMENT.findall(match["comments"])
    steps: list[Step] = []
    first = text.count("\n", 0, match.start("body")) + 1
    for number, line in enumerate(match["body"].splitlines(), first):
        if line[:2] in ("$ ", "# "):
            steps.append(Step(line[0] == "$", line[2:], number))
        else:
            steps[-1].output.append(line)
    return Block(
        first,
        steps,
        reason=next((word for kind, _, word in comments if kind == "not run"), ""),
        nodes=_nodes(text[: match.start()]),
        before=[(node, word) for kind, node, word in comments if kind == "before"],
        after=[word for kind, _, word in comments if kind == "after"],
        stable=("output", "", "stable") in comments,
    )


def _nodes(text: str) -> tuple[str, ...]:
    """The nodes that the last paragraph of a text names."""
    label = _LABEL.fullmatch(text.rstrip().rpartition("\n\n")[2])
    if not label:
        return ()
    return (label["one"],) if label["one"] else ("server", "client")


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
