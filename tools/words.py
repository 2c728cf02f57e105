#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""List the phrases of tools/words.txt in pages, comments, docstrings and messages.

Usage: tools/words.py [FILE...]    without files: all files of the repository
Exit status 1 if any is found.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".txt")
SKIPPED = (
    "LICENSES/",
    "nfsrdma_tools/live/web/page/uplot",
    "tests/unit/project/test_words.py",
    "tools/words.py",
)
# a line of the source, and the prose that begins there
Prose = tuple[int, str]


class Phrase(NamedTuple):
    """A phrase that the project does not use."""

    pattern: re.Pattern[str]
    instead: str
    pages_only: bool


def phrases() -> list[Phrase]:
    """The patterns, the replacement, and whether only pages are searched."""
    lines = (line for line in LIST.read_text().splitlines() if not line.startswith("#"))
    rows = (line.split("\t") for line in lines)
    return [Phrase(re.compile(row[0], re.M), row[1], row[2:] == ["pages"]) for row in rows]


def prose(path: Path) -> Iterator[Prose]:
    """The prose of a file, piece by piece."""
    text = path.read_text()
    if text.startswith("<!-- generated"):
        return
    if path.suffix == ".md":
        yield 1, _without_code(text)
    elif path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        yield from _python(text)
    elif path.suffix in (".c", ".h"):
        yield from _c(text)
    else:
        yield 1, text


def _without_code(text: str) -> str:
    """A page with blanks for blocks and spans of code and the targets of links."""
    code = r"^```.*?^```|^ {4}.*?$|`[^`]*`|\]\([^)]*\)|<!--.*?-->"
    return re.sub(code, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.M | re.S)


def _python(text: str) -> Iterator[Prose]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value.split()) >= 3
        ):
            yield node.lineno, node.value


def _c(text: str) -> Iterator[Prose]:
    for match in re.finditer(
        r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)* (?:[^"\\\n]|\\.)*"', text, re.S
    ):
        words = re.sub(
            r"^\s*\*", lambda star: " " * len(star[0]), match[0].strip('"/*'), flags=re.M
        )
        yield text.count("\n", 0, match.start()) + 1, words


def found(path: Path, banned: list[Phrase]) -> Iterator[str]:
    """A line for each banned phrase of a file."""
    for line, text in prose(path):
        # a sentence may go on in the next line, but not beyond an empty one
        joined = re.sub(r"(?<=\S)[ \t]*\n[ \t]*(?=[^\s|*#-])", _blanks, text)
        for phrase in banned:
            if phrase.pages_only and path.suffix != ".md":
                continue
            for each in phrase.pattern.finditer(joined):
                at = line + text.count("\n", 0, each.start())
                yield f"{path}:{at}: {' '.join(each[0].split())!r}: {phrase.instead}"


def _blanks(gap: re.Match[str]) -> str:
    return " " * len(gap[0])


def files() -> list[Path]:
    """The files of the repository that hold prose."""
    listed = subprocess.run(("git", "ls-files"), cwd=ROOT, check=True, capture_output=True)
    kinds = (".md", ".py", ".c", ".h", ".sh", ".yml", ".js", ".html", "")
    return [
        Path(name)
        for name in listed.stdout.decode().splitlines()
        if Path(name).suffix in kinds and not name.startswith(SKIPPED)
    ]


def main() -> None:
    """Print what was found."""
    banned = phrases()
    paths = [Path(name) for name in sys.argv[1:]] or files()
    lines = [line for path in paths if (ROOT / path).is_file() for line in found(path, banned)]
    for line in lines:
        print(line)
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
