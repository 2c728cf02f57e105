# SPDX-License-Identifier: Apache-2.0
"""Text archives of a host's files keep each path, link, mode and byte."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import field_archive
import pytest
from field_archive import CASES, FIELD, File, Files, Link, json_rows, pack, parse, render, unpack
from hypothesis import given
from hypothesis import strategies as st

MARKS = ("@@ file a", "\\ base64", "\\ No newline at end of file", "", " ", "\t", "\r", "\x85")
LINES = st.lists(st.one_of(st.sampled_from(MARKS), st.text(max_size=9)), max_size=4).map("\n".join)
CONTENTS = st.one_of(LINES.map(lambda text: text.encode(errors="replace")), st.binary(max_size=90))
# of any byte but NUL, as names in a folder are
WORDS = st.one_of(
    st.sampled_from(
        (" -> ", '"', "a -> b = c", " a ", "opt-ci\\x2dcache.mount", "0:53", "a\nb", "é")
    ),
    st.binary(min_size=1, max_size=9).map(os.fsdecode),
).map(lambda word: word.replace("\0", "0").replace("/", "1"))
NAMES = WORDS.filter(lambda word: word not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ENTRIES = st.one_of(st.builds(File, CONTENTS, st.booleans()), st.builds(Link, WORDS))


@given(st.dictionaries(PATHS, ENTRIES, min_size=1, max_size=4))
def test_any_files_are_the_same_after_a_round_trip(files: Files) -> None:
    text = render(files)
    assert parse(text) == files
    assert render(parse(text)) == text
    assert all(line.replace("\t", "").isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("case", CASES)
def test_an_archive_is_as_pack_writes_it(case: str, tmp_path: Path) -> None:
    archive = FIELD / f"{case}.txt"
    files = field_archive.read(archive)
    assert field_archive.EXPECTED in files
    unpack(files, tmp_path)
    assert pack(tmp_path) == files
    same = render(files).encode() == archive.read_bytes()
    assert same, f"unpack {archive} and pack it: field_archive.py writes another form"


def test_pack_and_unpack_keep_links_modes_and_odd_names(tmp_path: Path) -> None:
    files: Files = {
        "usr/bin/start": File(b"#!/bin/sh", program=True), "etc/empty": File(b""),
        "etc/line": File(b"\n"), "proc/config.gz": File(bytes(range(256))),
        "etc/a -> b": File(b"-- x\n\\ y\n"), "etc/\udcff\n": File(b"\xff\n"),
        "sys/loop": Link("../sys"), "etc/mask": Link("/dev/null"),
    }  # fmt: skip
    script = (sys.executable, field_archive.__file__)
    for name in ("one", "two"):
        unpack(files, tmp_path / "from")
        archive = tmp_path / f"{name}.txt"
        subprocess.run((*script, "pack", tmp_path / "from", archive), check=True)
        subprocess.run((*script, "unpack", archive, tmp_path / name), check=True)
        files = pack(tmp_path / name)
        (tmp_path / "from").rename(tmp_path / f"from-{name}")
    assert (tmp_path / "one.txt").read_bytes() == (tmp_path / "two.txt").read_bytes()
    assert files == pack(tmp_path / "from-one")
    assert (tmp_path / "two/usr/bin/start").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "two/etc/line").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "two/etc/mask").readlink() == Path("/dev/null")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    )
)
def test_json_rows_have_the_same_value_and_are_stable(value: object) -> None:
    text = json_rows(json.dumps(value, indent=3).encode())
    assert json.loads(text) == value
    assert json_rows(text) == text


def test_json_rows_leave_what_is_no_json() -> None:
    for data in (b"", b"{", b"\xff", b"[1] x\n"):
        assert json_rows(data) == data


def test_the_example_is_an_archive() -> None:
    assert field_archive.__doc__
    example = "@@ file" + field_archive.__doc__.partition("@@ file")[2].rpartition("\n\nA line")[0]
    files = parse(textwrap.dedent(f"    {example}\n"))
    assert [type(entry) for entry in files.values()] == [File, File, File, Link, File, File]
    assert files["run/systemd/container"] == File(b"lxc")
    assert files["proc/sys/kernel/osrelease"] == File(b"6.12.48+deb13-amd64\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected '@@ '"),
        ("x\n", "line 1: expected '@@ '"),
        ("@@ file a\nx", "line 2: the archive ends without a newline"),
        ("@@ file a\n@@ file a\n", "line 2: a is in the archive already"),
        ("@@ file a\n@@ folder b\n", "line 2: expected file, line, program or link, found"),
        ("@@ file\n", "line 1: expected a path"),
        ("@@ file ../a\n", "line 1: expected a path below the folder, found '../a'"),
        ("@@ file /etc/passwd\n", "line 1: expected a path below the folder"),
        ("@@ link a/../../b -> c\n", "line 1: expected a path below the folder"),
        ("@@ link a\n", "line 1: expected 'link PATH -> TARGET' and no content"),
        ("@@ link a -> b\nc\n", "line 1: expected 'link PATH -> TARGET' and no content"),
        ("@@ line a\n", "line 1: expected 'line PATH = TEXT' and no content"),
        ("@@ line a = b\nc\n", "line 1: expected 'line PATH = TEXT' and no content"),
        ("@@ line ../a = b\n", "line 1: expected a path below the folder"),
        ('@@ file "a\n', "line 1: Unterminated string"),
        ("@@ file a\n\\ base64\n%\n", "line 1: "),
    ],
)
def test_what_is_no_archive_is_named_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text)
    assert str(error.value).startswith(message)


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        unpack({"a": Link(str(tmp_path / "outside")), "a/b": File(b"x")}, tmp_path / "host")
    assert not (tmp_path / "outside").exists()


def test_a_fifo_is_not_packed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="neither a file nor a link"):
        pack(tmp_path)
