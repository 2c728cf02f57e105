# SPDX-License-Identifier: Apache-2.0
"""Packages name what they need and have the sources, and nothing that was built."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]
CONTROL = (ROOT / "debian/control").read_text()
COPYRIGHT = (ROOT / "debian/copyright").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_maintainer_is_the_author_and_has_an_address_that_promises_nothing() -> None:
    """Debian requires an address, and the project has none: RFC 2606 reserves .invalid for it."""
    maintainer = re.search(r"^Maintainer: (.*) <[\w.-]+@[\w-]+\.invalid>$", CONTROL, re.MULTILINE)
    assert maintainer
    assert PROJECT["authors"] == [{"name": maintainer[1]}]
    assert f"authors: [{maintainer[1]}]" in (ROOT / "playbooks/galaxy.yml").read_text()
    assert f"Copyright: 2026 {maintainer[1]}\n" in COPYRIGHT


def test_debians_package_depends_on_the_versions_of_the_core() -> None:
    """dh_python3 names the packages without versions, and a host with older ones takes them."""
    (depends,) = re.findall(r"^Depends:\n((?: .*\n)+?) \$\{misc", CONTROL, re.MULTILINE)[:1]
    named = re.findall(r"^ (python3-.*),$", depends, re.MULTILINE)
    needed = (re.match(r"(\w+)>=([\d.]+)", each) for each in PROJECT["dependencies"])
    assert sorted(named) == sorted(f"python3-{n[1]} (>= {n[2]})" for n in needed if n)
    assert len(named) == len(PROJECT["dependencies"])


# dh_python3 names those of the core
@pytest.mark.parametrize("extra", ["report", "live"])
def test_debians_package_recommends_the_libraries_of_an_extra(extra: str) -> None:
    recommended = re.search(r"^Recommends:\n((?: .*\n)+)", CONTROL, re.MULTILINE)
    assert recommended
    named = set(re.findall(r"[\w.-]+", recommended[1]))
    # Debian's name of PyYAML is python3-yaml
    libraries = {re.split("[<>=]", each)[0].removeprefix("py") for each in EXTRAS[extra]}
    assert {f"python3-{each}" for each in libraries} <= named


# what debian/rules calls for the library, as a target
LIBRARY = """
include debian/rules
show: ; +$(LIB) -n BUILD={folder} all
"""


@pytest.mark.skipif(
    not (shutil.which("dpkg-architecture") and shutil.which("make")),
    reason="no dpkg-dev or no make; missed: the programs of a build for another architecture",
)
def test_a_package_for_another_architecture_has_a_library_of_it(tmp_path: Path) -> None:
    """A native compiler would fill the package of arm64 with code of this machine, unnoticed."""
    argv = ("dpkg-architecture", "-aarm64", "-f", "-c", "make", "-s", "-f", "-", "show")
    text = LIBRARY.format(folder=tmp_path / "build")
    done = subprocess.run(argv, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.split()]
    programs = {words[0] for words in lines if re.search(r"(cc|ld|ar|objcopy)$", words[0])}
    assert programs == {f"aarch64-linux-gnu-{name}" for name in ("gcc", "ld", "ar", "objcopy")}


def tracked() -> list[str]:
    """The files of the working tree without what was built in it."""
    words = ("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "pattern",
    [
        word
        for line in re.findall(r"^Files: (.*)$", COPYRIGHT, re.MULTILINE)
        for word in line.split()
    ],
)
def test_each_path_of_debians_copyright_exists(pattern: str) -> None:
    # a "*" matches "/", too
    known = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    assert [name for name in tracked() if known.fullmatch(name)]


PRODUCTS = (
    *("kmod/nfsrdma.ko", "kmod/.nfsrdma.ko.cmd", "kmod/Module.symvers", "kmod/modules.order"),
    *("kmod/wire/header.o", "kmod/nfsrdma.mod.c", "kmod/nfsrdma.mod", "kmod/features.h"),
    *("kmod/card/nfsrdma_card.ko", "kmod/card/whole.c", "bpf/chunks.o"),
    *("nfsrdma_tools/__pycache__/x.cpython-311.pyc", "playbooks/.ansible/x"),
)


def test_a_wheel_has_the_sources_and_nothing_that_was_built(tmp_path: Path) -> None:
    wanted = set()
    for name in tracked():
        top = name.partition("/")[0]
        if top in ("nfsrdma_tools", "bpf", "kmod", "playbooks"):
            wanted.add(name if top == "nfsrdma_tools" else f"nfsrdma_tools/data/{name}")
        elif "/" in name:
            continue
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in PRODUCTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    included = {
        each.distribution_path for each in WheelBuilder(str(tmp_path)).recurse_included_files()
    }
    assert included == wanted
