# SPDX-License-Identifier: Apache-2.0
"""The part of a module that a function needs: enough of it, and no more."""

import sys
from pathlib import Path

import pytest

from testbed.source import modules_of, remote_functions

MODULE = '''\
"""A test."""
import json
import os, re
from dataclasses import dataclass
from pathlib import Path as Folder
from typing import TYPE_CHECKING

import pytest
from testbed.faults import AGAIN, FAULTS
from testbed.mounts import HERE, mounted
from testbed.remote import on
from testbed import labs

LIMIT: float = 2.0
TWICE = 2 * LIMIT
first, (second, *rest) = 1, (2, 3, 4)
if os.sep == "/":
    KIND = "unix"
else:
    KIND = "other"
ROWS = [1]
ROWS += [first]
NEVER = pytest.mark.skip


@dataclass
class Row:
    """A row."""

    name: str
    lab: "pytest.FixtureRequest | None" = None

    def limit(self, folder: pytest.FixtureRequest) -> labs.ModulePair:
        return TWICE


@pytest.fixture
def fixture():
    return 1


@on("client")
def all_of_it(value: pytest.FixtureRequest) -> labs.ModulePair:
    HERE = "local"
    inner: pytest.Mark = [NEVER for NEVER in ROWS]
    return Row("r").limit(0), second, rest, KIND, HERE, inner, str(Folder("/")), AGAIN[:1]


@on(
    "server",
    timeout=3,
)
def counts():
    global COUNT
    COUNT = json.loads("1")
    return COUNT

COUNT = 0


@on("client")
def takes_a_fixture():
    return fixture()


@on("client")
def takes_a_module():
    return labs.OURS


@on("client")
def takes_what_nobody_binds():
    return NOWHERE
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test_made.py"
    path.write_text(MODULE)
    return path


def kept(source: str) -> list[str]:
    return [line for line in source.splitlines() if line]


def test_it_has_what_the_function_names(file: Path) -> None:
    modules = modules_of(file, "test_made", "all_of_it")
    assert list(modules) == ["test_made", "testbed.faults"]
    path, source = modules["test_made"]
    assert path == str(file)
    # each line is where it was, with fewer names in an import
    changed = {
        (line, original)
        for line, original in zip(source.splitlines(), MODULE.splitlines(), strict=False)
        if line not in ("", original)
    }
    assert changed == {
        ("import os", "import os, re"),
        ("from testbed.faults import AGAIN", "from testbed.faults import AGAIN, FAULTS"),
    }
    assert not {"pytest", "json", "mounted", "on", "fixture", "counts"} & {
        word for line in kept(source) if line.startswith(("import", "from", "@", "def"))
        for word in line.replace("(", " ").replace(",", " ").split()
    }  # fmt: skip
    assert "AGAIN = " in modules["testbed.faults"][1]
    assert "CUT_OFF" not in modules["testbed.faults"][1]


def test_a_name_that_a_function_binds_globally(file: Path) -> None:
    source = modules_of(file, "test_made", "counts")["test_made"][1]
    assert kept(source) == [
        "import json",
        "def counts():",
        "    global COUNT",
        '    COUNT = json.loads("1")',
        "    return COUNT",
        "COUNT = 0",
    ]
    place: dict[str, object] = {}
    exec(source, place)  # noqa: S102 - the module above
    assert eval("counts()", place) == 1  # noqa: S307 - the same


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("takes_a_fixture", r"test_made\.py:8: no node has pytest, which a function needs for"),
        ("takes_a_module", r"test_made\.py:12: no node has testbed, which a function needs for"),
        ("takes_what_nobody_binds", r"test_made\.py: no node knows NOWHERE: bind it"),
    ),
)
def test_what_no_node_has(file: Path, name: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        modules_of(file, "test_made", name)


def test_a_function_may_have_the_name_of_a_symbol_table(tmp_path: Path) -> None:
    file = tmp_path / "test_top.py"
    file.write_text("def top():\n    before = 1\n    return before\n")
    assert "before" in modules_of(file, "test_top", "top")["test_top"][1]


@pytest.mark.parametrize(
    ("line", "result"),
    (
        ("VALUE = {}\nVALUE[1] = 2", {1: 2}),
        ("VALUE = [1]\nfor number in (2, 3):\n    VALUE.append(number)", [1, 2, 3]),
        ("VALUE = {}\nVALUE.setdefault(1, []).append(2)", {1: [2]}),
        ("VALUE = [1, 2]\ndel VALUE[0]", [2]),
        ("class Box: ...\nBox.size = 1\nVALUE = Box.size", 1),
        ("import sys\nsys.path.insert(0, __file__)\nVALUE = sys.byteorder", sys.byteorder),
        ("try:\n    from json import loads as max\nexcept ImportError: ...\nVALUE = max('3')", 3),
        ("if True:\n    def sum(_): return 9\nVALUE = sum([1])", 9),
        ("VALUE = 'a\f\u2028b'", "a\f\u2028b"),
    ),
)  # fmt: skip
def test_lines_that_bind_or_change_what_it_names(tmp_path: Path, line: str, result: object) -> None:
    file = tmp_path / "test_changes.py"
    file.write_text(f"import pytest\n\n{line}\n\ndef function():\n    return VALUE\n")
    source = modules_of(file, "test_changes", "function")["test_changes"][1]
    place: dict[str, object] = {}
    exec(source, place)  # noqa: S102 - the module above
    assert eval("function()", place) == result  # noqa: S307 - the same


def test_a_decorator_above_on_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "test_above.py"
    start = "from testbed.remote import on\n\n@print\n@on('client')\n"
    file.write_text(f"{start}def function(): ...\n")
    with pytest.raises(TypeError, match=r"above\.py:5: .* expected @on above all others"):
        modules_of(file, "test_above", "function")


def test_functions_for_nodes_are_listed(file: Path) -> None:
    assert remote_functions(file)[:2] == ["all_of_it", "counts"]
    assert len(remote_functions(file)) == 5
