# SPDX-License-Identifier: Apache-2.0
"""libnfsrdma for the nodes: compiled once, kept, removed; failures in one line.

The recipe's scripts run for real, below a folder with a hostile name; the programs that need an
image, a mount namespace or the archive are stand-ins.
"""

import contextlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from unit.files_made import write

from nfsrdma_tools import module_source
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import client_library, lab
from nfsrdma_tools.lab.architecture import AMD64, ARM64, Architecture
from nfsrdma_tools.lab.image import Image

HOSTILE = "a $(touch hostile) `touch hostile` 'b\" ; touch hostile;\x1b[2J\n*"
SOURCE = (
    *("lib/Makefile", "lib/session.c", "lib/nfsrdma.h", "lib/nfs3.x", "lib/libnfsrdma.map"),
    *("kmod/Kbuild", "kmod/wire/header.c", "kmod/wire/wire.h", "kmod/card/abi.h"),
    *("kmod/card/provider/provider.c", "kmod/card/provider/build.sh"),
)
# no part of the library
OTHERS = ("lib/build/session.o", "lib/fio/engine.c", "kmod/client/main.c")
PROGRAMS = {
    "unshare": 'while test "$1" != sh; do shift; done; exec "$@"',
    "mount": "",
    "debugfs": "cat > /dev/null",
    # in place of the tmpfs that ends with the namespace
    "umount": 'rm -rf "$2"; mkdir "$2"',
    # the "library" names the files of its source
    "chroot": """
        root=$1; shift
        case "$*" in
        make*)
            echo compiled >> "$COMPILED"
            test ! -e "$FAILS" || { cat "$FAILS" >&2; exit 2; }
            mkdir "$root/opt/build"
            (cd "$root/opt/source"; find . -type f | sort) > "$root/opt/build/libnfsrdma.so.0" ;;
        sh\\ /opt/source/*/build.sh*) echo card > "$root/opt/out/libnfsrdma_card-rdmav34.so" ;;
        esac
    """,
}


class Archive:
    """An archive whose packages have the providers, and whose source has one header."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture

    def unpack(self, packages: Sequence[str], folder: Path) -> None:
        # programs are this host's, libraries are the machine's
        assert ("rpcsvc-proto" in packages) == (self.architecture == "")
        assert ("libibverbs-dev" in packages) == (self.architecture != "")
        assert ("libibverbs1" in packages) == (self.architecture == "arm64")
        if not self.architecture:
            return
        providers = folder / f"usr/lib/of-{self.architecture}/libibverbs"
        providers.mkdir(parents=True)
        for device in ("rxe", "siw", "mlx5"):
            (providers / f"lib{device}-rdmav34.so").write_text(device)

    def source(self, package: str, file: Path) -> None:
        assert package == "rdma-core"
        made = file.with_name("rdma-core-1")
        for part in ("ccan/list.h", "util/util.h", "kernel-headers/a.h", "buildlib/b.py",
                     "libibverbs/driver.h", "CMakeLists.txt"):  # fmt: skip
            write(made, part, "")
        with tarfile.open(file, "w:gz") as tar:
            tar.add(made, made.name)


class World:
    """A source, an empty cache, and what the steps reported."""

    def __init__(self, folder: Path) -> None:
        self.source, self.cache = folder / "source", folder / "cache" / "nfsrdma"
        self.fails, self.compiled = folder / "fails", folder / "compiled"
        self.steps: list[str] = []
        for name in (*SOURCE, *OTHERS):
            self.write(name, name)

    def write(self, name: str, text: str) -> None:
        write(self.source, name, text)

    def build(self, architecture: Architecture = AMD64) -> Path | None:
        return client_library.build(Image(self.source / "image"), self.steps.append, architecture)

    @property
    def builds(self) -> int:
        return self.compiled.read_text().count("compiled") if self.compiled.exists() else 0

    @property
    def kept(self) -> set[str]:
        """The folders in the cache."""
        return {path.name for path in (self.cache / "client").iterdir() if path.is_dir()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\nset -e\n{script}\n")
        (programs / name).chmod(0o755)
    world = World(tmp_path / HOSTILE)
    (tmp_path / "run").mkdir(mode=0o700)
    for variable, value in (
        ("PATH", f"{programs}:{os.environ['PATH']}"),
        ("XDG_CACHE_HOME", world.cache.parent),
        ("XDG_RUNTIME_DIR", tmp_path / "run"),
        ("FAILS", world.fails),
        ("COMPILED", world.compiled),
    ):
        monkeypatch.setenv(variable, str(value))
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def opened(
        suites: Sequence[str], parent: Path, kind: str = "deb", architecture: str = ""
    ) -> Iterator[Archive]:
        assert parent.is_dir()
        yield Archive(architecture)

    monkeypatch.setattr(client_library, "opened", opened)
    source = module_source.Source(world.source / "kmod")
    monkeypatch.setattr(module_source, "find", lambda: source)
    return world


def test_the_library_and_the_providers_of_a_labs_devices(world: World, tmp_path: Path) -> None:
    folder = world.build()
    assert folder is not None
    assert {file.name for file in folder.iterdir()} == {
        "libnfsrdma.so.0", "libnfsrdma_card-rdmav34.so", "librxe-rdmav34.so", "libsiw-rdmav34.so",
    }  # fmt: skip
    assert (folder / "librxe-rdmav34.so").read_text() == "rxe"
    # what the compiler saw is what the name of the folder depends on
    seen = (folder / "libnfsrdma.so.0").read_text().split()
    assert set(seen) == {f"./{name}" for name in SOURCE if name != "kmod/Kbuild"}
    assert len(world.steps) == 2
    # no shell took a path for a command
    assert not list(tmp_path.rglob("hostile"))


def test_machines_of_another_architecture_have_a_library_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = world.source.parent / "compilers"
    (compilers / "usr/bin").mkdir(parents=True)
    monkeypatch.setattr(client_library, "compiler", lambda *_: compilers)
    own, other = world.build(), world.build(ARM64)
    assert own and other and own != other
    assert {own.name, other.name} <= client_library.current()


def test_each_state_of_the_source_is_compiled_once(world: World) -> None:
    first = world.build()
    assert world.build() == first
    world.write("kmod/wire/wire.h", "other")
    second = world.build()
    world.write("kmod/wire/wire.h", "kmod/wire/wire.h")
    assert world.build() == first != second
    # a change beside the source is none
    world.write("lib/build/session.o", "other")
    assert world.build() == first
    assert world.builds == 2
    assert [step.split(",")[0] for step in world.steps] == [
        "fetching headers for libnfsrdma (10 s", *["compiling libnfsrdma"] * 2
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            "chroot: failed to run command 'make': No such file or directory\n",
            "chroot: failed to run command 'make': No such file or directory",
        ),
        (
            "session.c:1:1: error: unknown type name 'x'\nsession.c:2:1: error: more\n"
            "make: *** [Makefile:41: /opt/build/session.o] Error 1\n",
            "session.c:1:1: error: unknown type name 'x'",
        ),
        ("", "the build printed no error"),
    ],
)
def test_a_build_that_fails_is_one_line_and_leaves_nothing(
    world: World, printed: str, reason: str
) -> None:
    world.fails.write_text(printed)
    assert world.build() is None
    line = world.steps[-1]
    assert line.startswith(f"the nodes get no libnfsrdma: {reason} (see ")
    assert line.endswith("client-build.log)")
    assert line.isprintable()
    assert printed in (world.cache / "client-build.log").read_text()
    assert [name.partition("-")[0] for name in world.kept] == ["packages"]
    # the next lab tries again
    world.fails.unlink()
    assert world.build() is not None


def test_without_an_archive_labs_have_no_library(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise UserError("apt has no Debian archive configured", "set NFSRDMA_MIRROR")

    built = world.build()
    monkeypatch.setattr(client_library, "opened", opened)
    # the packages are in the cache: another source needs no archive
    world.write("lib/session.c", "other")
    assert world.build() not in (None, built)
    for path in (world.cache / "client").glob("packages-*"):
        path.rename(world.cache / path.name)
    world.write("lib/session.c", "a third one")
    assert world.build() is None
    assert world.steps[-1] == (
        "the nodes get no libnfsrdma: apt has no Debian archive configured (set NFSRDMA_MIRROR)"
    )


def test_a_package_without_the_source_says_so(world: World) -> None:
    (world.source / "lib/Makefile").unlink()
    assert world.build() is None
    (line,) = world.steps
    assert "the library's source is missing from " in line and line.endswith("(reinstall nfsrdma)")


def test_the_builds_of_other_sources_are_removed(world: World) -> None:
    old = world.build()
    world.write("lib/session.c", "other")
    new = world.build()
    assert old and new
    (world.cache / "client" / "packages-0123").mkdir()
    lab.clean()
    # none of another architecture was built
    assert world.kept <= client_library.current()
    assert len(world.kept) == 2
    assert new.is_dir()
    assert not old.exists()
