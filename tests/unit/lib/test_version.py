# SPDX-License-Identifier: Apache-2.0
"""The binary interface of libnfsrdma: its versions, and programs of other versions.

``data/nfsrdma-0.1.0.h`` is the header of the oldest version that the library supports, without its
comments; it never changes.  A release whose header differs adds its own copy.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from wire.native import COMPILER

from nfsrdma_tools.client import library
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError

ROOT = Path(__file__).parents[3]
LIB = ROOT / "lib"
HERE = Path(__file__).parent
HEADERS = sorted((HERE.parent / "data").glob("nfsrdma-*.h"))
PROGRAM = HERE / "old_program.c"
STRUCT = re.compile(r"^struct (nfsrdma_\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"\b(nfsrdma_\w+)\(")
pytestmark = pytest.mark.skipif(
    COMPILER is None or not shutil.which("rpcgen"), reason="no C compiler or no rpcgen"
)


def bare(header: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)


def members(header: Path) -> dict[str, list[str]]:
    """The declarations of each struct, in their order."""
    return {
        name: [line.strip() for line in body.splitlines() if line.strip()]
        for name, body in STRUCT.findall(bare(header))
    }


@pytest.fixture(scope="module")
def built() -> Path:
    run("make", "-s", "-C", LIB, timeout=300)
    return LIB / "build" / "libnfsrdma.so.0"


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_a_program_of_an_old_header_runs_with_todays_library(
    header: Path, built: Path, tmp_path: Path
) -> None:
    assert COMPILER
    shutil.copy(header, tmp_path / "nfsrdma.h")
    program = tmp_path / "program"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}")
    run(COMPILER, *flags, PROGRAM, built, f"-Wl,-rpath,{built.parent}", "-o", program)
    # no device, no server: what needs neither
    assert run(program).stdout.split() == ["ok", header.stem.removeprefix("nfsrdma-")]


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_a_program_of_an_old_header_uses_a_session(header: Path, tmp_path: Path) -> None:
    reason = "no tests/device; missed: structs that the library fills for an old program"
    device = pytest.importorskip("device", reason=reason)
    assert COMPILER
    library = device.build()
    shutil.copy(header, tmp_path / "nfsrdma.h")
    program = tmp_path / "program"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-DDEVICE", f"-I{tmp_path}")
    run(COMPILER, *flags, PROGRAM, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    assert run(program).stdout.split() == ["ok", header.stem.removeprefix("nfsrdma-")]


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_structs_only_grow_at_their_end(header: Path) -> None:
    old, new = members(header), members(LIB / "nfsrdma.h")
    for name, before in old.items():
        after = new[name]
        assert after[: len(before)] == before, name
        # an array of them has a stride: those have reserved members
        if before[0] != "size_t size;":
            assert after == before, name
    assert set(CALL.findall(bare(header))) <= set(CALL.findall(bare(LIB / "nfsrdma.h")))


def test_the_oldest_header_is_that_of_the_first_version() -> None:
    assert HEADERS[0].name == "nfsrdma-0.1.0.h"
    assert "#define NFSRDMA_VERSION_MINOR	1\n" in HEADERS[0].read_text()


def test_the_library_exports_the_calls_of_its_headers_and_nothing_else(built: Path) -> None:
    listed = run("nm", "-D", "--defined-only", "--with-symbol-versions", built).stdout.split("\n")
    versions = dict(line.split()[2].split("@@") for line in listed if "@@" in line)
    exported = {name for name in versions if name.startswith("nfsrdma_")}
    mapped = (LIB / "libnfsrdma.map").read_text()
    public, private = (set(CALL.findall(bare(LIB / name))) for name in ("nfsrdma.h", "load.h"))
    assert exported == public | private
    # a list for each version: a wildcard would export what a later one adds under the same name
    assert mapped.count("*") == 1
    assert exported == set(re.findall(r"(nfsrdma_\w+);", mapped))
    assert {versions[name] for name in public} == {"NFSRDMA_0.1"}
    assert {versions[name] for name in private} == {"NFSRDMA_PRIVATE"}
    assert not {name for name in versions if not name.startswith(("nfsrdma_", "NFSRDMA_"))}


def test_debians_symbols_name_the_version_of_the_map() -> None:
    symbols = (ROOT / "debian" / "libnfsrdma0.symbols").read_text()
    versions = re.findall(r"^(NFSRDMA_\S+) \{", (LIB / "libnfsrdma.map").read_text(), re.MULTILINE)
    *public, private = versions
    # what no other package uses; a change of it needs no other name of the library
    assert private == "NFSRDMA_PRIVATE"
    assert re.findall(r"\(symver\)(\S+) (\S+)", symbols) == [
        *((name, f"{name.removeprefix('NFSRDMA_')}.0") for name in public),
        (private, "0.1.0"),
    ]


def test_pkg_config_has_the_version_of_the_header(built: Path) -> None:
    text = (built.parent / "libnfsrdma.pc").read_text()
    assert f"Version: {library._text_of(library._header_version())}\n" in text


@pytest.mark.parametrize(
    ("user", "staged", "calls"), (("0", "", 1), ("0", "stage", 0), ("1000", "", 0))
)
def test_the_loader_knows_an_installed_library(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, staged: str, calls: int
) -> None:
    """A user who is not root installs elsewhere, and may not change the loader's cache."""
    del built
    called = tmp_path / "called"
    for name, line in (("id", f"echo {user}"), ("ldconfig", f"echo >> {called}; test {user} = 0")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    where = (f"PREFIX={tmp_path}/usr", f"DESTDIR={tmp_path / staged if staged else ''}")
    run("make", "-s", "-C", LIB, "install", *where, timeout=300)
    assert (called.read_text().count("\n") if called.exists() else 0) == calls


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """What Python says about a library that is another one."""
    assert COMPILER
    path = tmp_path / "libnfsrdma.so.0"
    argv = (COMPILER, "-shared", "-fPIC", "-xc", "-", "-o", path)
    subprocess.run(argv, input=source, text=True, check=True, timeout=60)
    library.load.cache_clear()
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(path))
    with pytest.raises(UserError) as caught:
        library.load()
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "version"),
    (
        ("unsigned nfsrdma_version(void) { return 0x000200; }", "0.2.0"),
        ("unsigned nfsrdma_version(void) { return 0x010100; }", "1.1.0"),
        ("int nothing;", "before 0.1.0"),
    ),
)
def test_python_refuses_a_library_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, version: str
) -> None:
    message = refusal(tmp_path, monkeypatch, source)
    assert f"found version {version}, expected 0.1.0 or a later 0.1" in message


def test_python_takes_the_library_of_this_tree(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.load.cache_clear()
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(built))
    assert library.load().functions.nfsrdma_version() == library._header_version()
    library.load.cache_clear()


@pytest.mark.parametrize("level", ("-O1", "-O3"))
def test_the_library_compiles_without_a_warning(level: str, tmp_path: Path) -> None:
    words = (f"BUILD={tmp_path}", f"CFLAGS={level}", "WERROR=-Werror")
    # seconds, and minutes on a busy host
    run("make", "-s", "-C", LIB, *words, tmp_path / "libnfsrdma.so.0", timeout=1800)
