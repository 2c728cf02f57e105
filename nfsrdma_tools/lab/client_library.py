# SPDX-License-Identifier: Apache-2.0
"""libnfsrdma for the nodes, compiled once for each state of its source.

The image's compiler compiles it, with headers from Debian's archive: the host may have another C
library, and no headers or compiler.  With it are the providers by which libibverbs uses a lab's
devices, because the small image has none.  The folder <cache>/client has the packages and the
builds.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from nfsrdma_tools import module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError, one_line, printable
from nfsrdma_tools.lab.architecture import AMD64, ARM64, Architecture
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.cross import compiler
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = ["build", "current"]

_LAB = Path(str(importlib.resources.files("nfsrdma_tools.lab")))
_SCRIPT = _LAB / "client_recipe" / "build.sh"
_SCRIPTS = (_SCRIPT, _LAB / "kernel_recipe" / "root.sh")
_SUITE = SUITES[KERNELS[0]][0]
_LIBRARIES = ("libibverbs-dev", "librdmacm-dev", "libtirpc-dev", "ibverbs-providers")
# an image of another architecture does not have them for this one
_FOREIGN = ("libibverbs1", "librdmacm1t64", "libtirpc3t64")
_PROGRAMS = ("rpcsvc-proto", "pkgconf", "pkgconf-bin", "libpkgconf3")
# the parts of rdma-core's source that the card's provider needs
_RDMA_CORE = (
    *("*/libibverbs/*.h", "*/ccan", "*/util", "*/kernel-headers", "*/buildlib"),
    "*/CMakeLists.txt",
)
_PATTERNS = ("lib/*.[chx]", "lib/*.map", "lib/Makefile", "kmod/wire/*.[ch]")
_CARD = ("kmod/card/abi.h", "kmod/card/provider/*.c", "kmod/card/provider/build.sh")
_SECONDS = 1800


def build(
    base: Image,
    step: Callable[[str], None] = lambda _: None,
    architecture: Architecture = AMD64,
) -> Path | None:
    """The folder with the library and the providers, compiled if this source has none yet.

    ``base`` is an image of this host's architecture.  None, with the reason to ``step``, if they do
    not compile or the archive is not reachable.
    """
    try:
        return _build(base, step, architecture)
    except UserError as error:
        # most labs do without it
        step(f"the nodes get no libnfsrdma: {printable(str(error))}")
        return None


def current() -> set[str]:
    """The names in <cache>/client of the build and the packages of this source."""
    packages = {_packages(each).name for each in (AMD64, ARM64)}
    try:
        return packages | {_folder(each).name for each in (AMD64, ARM64)}
    except UserError:
        return packages


def _build(base: Image, step: Callable[[str], None], architecture: Architecture) -> Path:
    folder = _folder(architecture)
    folder.parent.mkdir(exist_ok=True)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            packages = _fetch(step, architecture)
            env = {"PREFIX": architecture.compiler}
            if architecture.compiler:
                env["COMPILER"] = str(compiler(architecture, step))
            step("compiling libnfsrdma, once (about 20 s)")
            with draft_of(folder) as draft:
                source = draft.parent / "source"
                _copy_source(source)
                _compile(base, packages, source, draft, env)
    return folder


def _fetch(step: Callable[[str], None], architecture: Architecture) -> Path:
    folder = _packages(architecture)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            step("fetching headers for libnfsrdma (10 s, 4 MB)")
            with draft_of(folder) as draft:
                _unpack(draft, architecture)
    return folder


def _unpack(folder: Path, architecture: Architecture) -> None:
    work = folder.parent
    with opened([_SUITE], work) as debian:
        debian.unpack(_PROGRAMS, folder)
    with opened([_SUITE], work, architecture=architecture.debian) as debian:
        debian.unpack(_libraries(architecture), folder)
    with opened([_SUITE], work, kind="deb-src") as debian:
        debian.source("rdma-core", work / "rdma-core.tar")
    source = folder / "rdma-core"
    source.mkdir()
    words = ("--wildcards", "--strip-components=1", "-C", source)
    run("tar", "-xf", work / "rdma-core.tar", *words, *_RDMA_CORE)


def _compile(base: Image, packages: Path, source: Path, out: Path, env: dict[str, str]) -> None:
    as_root = ("--map-root-user",) if os.geteuid() else ()
    argv = ("unshare", "-m", *as_root, "sh", _SCRIPT, base.disk, packages, source, out)
    done = run(*argv, env=env, timeout=_SECONDS, check=False)
    if done.returncode:
        log = cache_dir() / "client-build.log"
        log.write_text(f"{done.stdout}\n{done.stderr}")
        # the last line is make's, and says only that the compiler failed
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        reason = one_line("".join(errors[:1]) or done.stderr) or "the build printed no error"
        raise UserError(reason, f"see {log}")


def _libraries(architecture: Architecture) -> tuple[str, ...]:
    return (*_LIBRARIES, *(_FOREIGN if architecture.compiler else ()))


def _folder(architecture: Architecture) -> Path:
    digest = hashlib.sha256(_packages(architecture).name.encode())
    for name, path in (*_source(), *((script.name, script) for script in _SCRIPTS)):
        text = path.read_bytes()
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return cache_dir() / "client" / f"libnfsrdma-{digest.hexdigest()[:16]}"


def _packages(architecture: Architecture) -> Path:
    of = (_SUITE, architecture.debian, _libraries(architecture), _PROGRAMS, _RDMA_CORE)
    digest = hashlib.sha256(repr(of).encode())
    return cache_dir() / "client" / f"packages-{digest.hexdigest()[:16]}"


def _source() -> Iterator[tuple[str, Path]]:
    """The files that the build reads, by their names below the source."""
    # a checkout and a wheel have lib/ beside kmod/
    top = module_source.find().folder.parent
    if not (top / "lib" / "Makefile").is_file():
        raise UserError(f"the library's source is missing from {top}/lib", "reinstall nfsrdma")
    for pattern in (*_PATTERNS, *_CARD):
        for path in sorted(top.glob(pattern)):
            yield str(path.relative_to(top)), path


def _copy_source(folder: Path) -> None:
    for name, path in _source():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
