# SPDX-License-Identifier: Apache-2.0
"""tools/words.py finds banned phrases in prose, and in prose only."""

from pathlib import Path

import pytest
import words


def found(path: Path, text: str) -> list[str]:
    path.write_text(text)
    lines = words.found(path, words.phrases())
    return [line.removeprefix(f"{path}:").partition(":")[0] for line in lines]


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "One.\n\nThe kernel is\ntold. `is told`\n\n```\nis told\n```\n", ["3"]),
        ("a.md", "| who | what |\n|---|---|\n\nWhat is left\nis waste.\n", ["4"]),
        ("a.md", "What is left?\n", []),
        ("a.md", "A client borrows it.\nBytes in front of it.\n\nThe front has cells.\n",
         ["1", "4"]),
        ("a.md", "Most of it is *wire*.\n\n*wire rxe0/1* is ok.\n", ["1"]),
        ("a.py", '"""It is told."""\ncarrier = "carrier"\nx = 1  # the carrier\n', ["3", "1"]),
        ("a.c", "/*\n * The peer\n * is told.\n */\nint carrier;\n", ["2"]),
        ("a.h", 'pr_err("the peer is told");\nputs("carrier");\n', ["1"]),
        ("a.yml", "# whoever runs\nname: it is asked\n", ["1", "2"]),
    ],
)  # fmt: skip
def test_phrases_are_found_with_their_line(
    tmp_path: Path, name: str, text: str, lines: list[str]
) -> None:
    assert sorted(found(tmp_path / name, text)) == sorted(lines)


def test_each_phrase_names_its_replacement() -> None:
    phrases = words.phrases()
    assert len(phrases) > 10
    assert all(phrase.instead for phrase in phrases)
