# SPDX-License-Identifier: Apache-2.0
"""The manual pages of libnfsrdma, which come from its header."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "lib"
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
        names = re.findall(r"(\w+)(?:\[\d+\])?;", struct.declaration)
        assert [name for name, _ in struct.parameters] == names, struct.name


@pytest.mark.parametrize(
    ("comment", "found"),
    (("nfsrdma_null: calls", "expected a name"), ("nfsrdma_other - call", "another call")),
)
def test_a_comment_of_another_form_is_an_error(comment: str, found: str) -> None:
    text = HEADER.read_text().replace("nfsrdma_null - call", comment)
    with pytest.raises(man.HeaderError, match=found):
        man.entries(text)


def test_a_call_without_a_comment_is_an_error(tmp_path: Path) -> None:
    header = tmp_path / "nfsrdma.h"
    header.write_text(f"{HEADER.read_text()}\nint nfsrdma_new(void);\n")
    with pytest.raises(man.HeaderError, match="no comment: nfsrdma_new"):
        man.write(header, tmp_path)
