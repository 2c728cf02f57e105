# SPDX-License-Identifier: Apache-2.0
"""The manual pages of libnfsrdma, which come from its header."""

import errno
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from wire.native import COMPILER

from nfsrdma_tools.command import run

LIBRARY = Path(__file__).parents[3] / "lib"
HEADER = LIBRARY / "nfsrdma.h"
_spec = importlib.util.spec_from_file_location("man", LIBRARY / "man.py")
assert _spec and _spec.loader
man = importlib.util.module_from_spec(_spec)
# dataclasses look their module up
sys.modules["man"] = man
_spec.loader.exec_module(man)


def test_each_call_has_a_page_with_its_parameters(tmp_path: Path) -> None:
    man.write(HEADER, tmp_path)
    calls = set(re.findall(r"\b(nfsrdma_\w+)\(", HEADER.read_text()))
    assert len(calls) > 30
    assert {path.name for path in tmp_path.iterdir()} == {
        "libnfsrdma.7",
        *(f"{name}.3" for name in calls),
    }
    page = (tmp_path / "nfsrdma_pread.3").read_text()
    for name in ("file", "buf", "count", "offset"):
        assert f".I {name}\n" in page
    assert ".SH RETURN VALUE\n" in page


def test_a_page_describes_the_members_of_a_struct(tmp_path: Path) -> None:
    man.write(HEADER, tmp_path)
    page = (tmp_path / "nfsrdma_connect.3").read_text()
    assert ".SS struct nfsrdma_options\n" in page
    assert "uint32_t inline_size;" in page
    assert ".I inline_size\n" in page


def test_each_parameter_and_member_is_described() -> None:
    calls, structs = man.entries(HEADER.read_text())
    for call in calls.values():
        inside = call.declaration.split("(", 1)[1].rsplit(")", 1)[0]
        names = [] if inside == "void" else re.findall(r"\**(\w+)(?:,|$)", inside)
        assert [name for name, _ in call.parameters] == names, call.name
    for struct in structs.values():
        names = re.findall(r"(\w+)(?:\[\d+\]|\)\(.*\))?;", struct.declaration)
        assert [name for name, _ in struct.parameters] == names, struct.name


@pytest.mark.parametrize(
    ("comment", "message"),
    (("nfsrdma_null: calls", "expected a name"), ("nfsrdma_other - call", "another call")),
)
def test_a_comment_of_another_form_is_an_error(comment: str, message: str) -> None:
    text = HEADER.read_text().replace("nfsrdma_null - call", comment)
    with pytest.raises(man.HeaderError, match=message):
        man.entries(text)


def test_a_call_without_a_comment_is_an_error(tmp_path: Path) -> None:
    header = tmp_path / "nfsrdma.h"
    header.write_text(f"{HEADER.read_text()}\nint nfsrdma_new(void);\n")
    with pytest.raises(man.HeaderError, match="no comment: nfsrdma_new"):
        man.write(header, tmp_path)


CALLS, _ = man.entries(HEADER.read_text())
ERRORS = man.errors((LIBRARY / "man" / "errors.txt").read_text())
EXAMPLES = man.examples((LIBRARY / "man" / "examples.c").read_text())


@pytest.mark.parametrize("name", CALLS)
def test_a_page_has_errors_and_an_example(name: str, tmp_path: Path) -> None:
    man.write(HEADER, tmp_path)
    page = (tmp_path / f"{name}.3").read_text()
    sections = re.findall(r"^\.SH (.*)$", page, re.MULTILINE)
    assert sections[-3:] == ["ERRORS", "EXAMPLE", "SEE ALSO"]
    # the example of a call has it
    assert f"{name}(" in EXAMPLES[name]
    assert f"{name}(" in page.split(".SH EXAMPLE")[1]
    assert all(hasattr(errno, each) for each in ERRORS[name])
    # what the header says that it returns
    own = {each.removesuffix("()") for each in re.findall(r"-(E[A-Z0-9]+)\b", CALLS[name].result)}
    assert own <= set(ERRORS[name])
    can_fail = "negative errno" in CALLS[name].result or own
    assert bool(ERRORS[name]) == bool(can_fail) or "as nfsrdma_" in CALLS[name].result


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_examples_compile() -> None:
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{LIBRARY}")
    run(COMPILER or "", *flags, "-fsyntax-only", LIBRARY / "man" / "examples.c")


def test_errors_of_another_form_are_an_error() -> None:
    with pytest.raises(man.HeaderError, match="expected a name, a tab and a text"):
        man.errors("call nfsrdma_null\nEIO without a tab\n")


def test_code_is_no_request_to_roff() -> None:
    assert man.code('.x = "\\n";\n') == [".nf", ".RS", '\\&.x = "\\en";', ".RE", ".fi"]
