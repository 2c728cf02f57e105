# SPDX-License-Identifier: Apache-2.0
"""The kernels of labs, and the modules that this host compiles for them.

Kernels are Debian's, and kernels built on demand from Debian's source (``kernel_recipe``): with
run-time checks, as KASAN and lockdep, and for arm64 with pages of 64 KiB.  Each kernel is under
<cache>/kernels, separate from the image: vmlinuz, initrd, and a disk with its modules and the
headers to build more of them.  There are also the modules that Debian's packages do not have, each
compiled once for each state of its source: ours, the modelled card, and soft-iWARP.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import module_source
from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import UsageError, UserError, one_line
from nfsrdma_tools.lab import debian_kernel, image
from nfsrdma_tools.lab.architecture import ARM64, Architecture, of_kernel
from nfsrdma_tools.lab.config import BUILT, CHECKING, FOREIGN, KERNELS
from nfsrdma_tools.lab.cross import compiler
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = [
    "Kernel",
    "build",
    "compile_module",
    "find",
    "module",
    "present",
    "siw_module",
    "unpack_source",
]

_RECIPE = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe"))
_SCRIPTS = ("build.sh", "make.sh", "init")
_HOURS = 4
_MODULE_SECONDS = 1800
_GIB = 8
_SIW = "drivers/infiniband/sw/siw"
_CARD_OPTION, _SIW_OPTION = "WHOLE=1", "CONFIG_RDMA_SIW=m"
# states of a module's source that are kept for each kernel, 1 MiB each
_KEPT = 8


@dataclass(frozen=True)
class Kernel:
    """A kernel that machines boot: Debian's, or one built from its source."""

    name: str
    folder: Path

    @property
    def release(self) -> str:
        """The release that ``uname -r`` prints."""
        return (self.folder / "version").read_text().strip()

    @property
    def vmlinuz(self) -> Path:
        """The kernel image."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initial RAM disk."""
        return self.folder / "initrd"

    @property
    def modules(self) -> Path:
        """A disk with /usr/lib/modules/RELEASE, and the headers if they are separate."""
        return self.folder / "modules.img"

    @property
    def architecture(self) -> Architecture:
        """The architecture of its machines."""
        return of_kernel(self.name)


def find(name: str) -> Kernel:
    """The kernel of a series or flavour; UserError if it is not built."""
    # the name of one that is built has the release of Debian's
    stock = _stock(name) if name in BUILT else name
    if not (_folder(stock).is_dir() and _folder(name).is_dir()):
        minutes = "about 15 minutes" if name in BUILT else "half a minute"
        hint = f"run: nfsrdma lab build --kernel {name} ({minutes})"
        raise UserError(f"the kernel {name} is not built", hint)
    return Kernel(name, _folder(name))


def build(name: str, step: Callable[[str], None] = lambda _: None) -> Kernel:
    """Return a kernel, building it if it is missing.

    A rename makes the complete kernel visible: an interrupted build leaves no partial kernel.
    Building a kernel from source needs root.
    """
    if name not in KERNELS + CHECKING + FOREIGN:
        known = ", ".join(KERNELS + CHECKING + FOREIGN)
        raise UsageError(f"unknown kernel {name!r}", f"the kernels are {known}")
    if name in BUILT:
        # built with the image's compiler, which is Debian's, and booted by Debian's busybox
        base, plain = image.build(step=step), build(_stock(name), step)
    kernels = cache_dir() / "kernels"
    kernels.mkdir(exist_ok=True)
    folder = _folder(name)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            if name in BUILT:
                _check_build(kernels)
                step(
                    f"building the kernel {name} from Debian's source (about 15 minutes on 2 cores)"
                )
                _build(name, base, plain, folder)
            else:
                step(f"unpacking Debian's kernel {name} (about 20 s)")
                with draft_of(folder) as draft:
                    debian_kernel.make(name, draft)
    return Kernel(name, folder)


def present() -> set[str]:
    """The names of the folders of the current recipes."""
    known = (*KERNELS, *CHECKING, *FOREIGN)
    names = (n for n in known if n not in BUILT or _folder(_stock(n)).is_dir())
    return {_folder(name).name for name in names}


def _stock(name: str) -> str:
    """Debian's kernel of the series and architecture of one that is built."""
    return FOREIGN[0] if name in FOREIGN else KERNELS[0]


def _parts(name: str) -> tuple[str, ...]:
    """The configuration files of a kernel that is built, without ``.config``."""
    return ("small", "lab", "check", name) if name in CHECKING else ("lab", ARM64.make)


def _folder(name: str) -> Path:
    return cache_dir() / "kernels" / f"{name}-{_digest(name)[:16]}"


def _digest(name: str) -> str:
    parts = [path.read_bytes() for path in (Path(debian_kernel.__file__), debian_kernel.INIT)]
    if name in BUILT:
        # the source has the version of Debian's kernel, if the archive still has it
        parts = [find(_stock(name)).release.encode(), of_kernel(name).defaults.encode()]
        files = (*_SCRIPTS, *(f"{part}.config" for part in _parts(name)))
        parts += [(_RECIPE / file).read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _check_build(folder: Path) -> None:
    if os.geteuid():
        raise UserError("only root may mount the image to build this kernel", "run this as root")
    free = shutil.disk_usage(folder).free >> 30
    if free < _GIB:
        raise UserError(f"{free} GiB are free in {folder}, expected {_GIB} GiB", "free some space")


def _build(name: str, base: image.Image, plain: Kernel, folder: Path) -> None:
    with (
        draft_of(folder) as out,
        tempfile.TemporaryDirectory(dir=out.parent) as work,
    ):
        argv = ("unshare", "-m", "sh", _RECIPE / "build.sh", base.disk, work, out)
        env = _environment(of_kernel(name))
        done = run(*argv, *_parts(name), env=env, timeout=_HOURS * 3600, check=False)
        if done.returncode:
            log = cache_dir() / "kernel-build.log"
            log.write_text(f"{done.stdout}\n{done.stderr}")
            reason = one_line(done.stderr or done.stdout) or "it printed no error"
            raise UserError(f"building the kernel {name} failed: {reason}", f"see {log}")
        release = (out / "version").read_text().strip()
        debian_kernel.make_initrd(out / "initrd", plain.folder / "busybox", release)


def _environment(architecture: Architecture) -> dict[str, str]:
    """The variables of build.sh and make.sh."""
    prefix = architecture.compiler
    return {
        "ARCH": architecture.make,
        "DEFAULTS": architecture.defaults,
        "CROSS_COMPILE": prefix,
        "COMPILER": str(compiler(architecture)) if prefix else "",
    }


def module(
    source: module_source.Source, kernel: Kernel, base: image.Image, step: Callable[[str], None]
) -> Path:
    """The file of our module or of the card for a kernel, compiled if this source has none yet.

    Raises CommandError with the compiler's messages if it does not compile.
    """
    file = kernel.folder / f"{source.module}-{source.hash}.ko"
    options = (_CARD_OPTION,) if source.module == module_source.CARD else ()
    # builds of other states, from other checkouts, take minutes on a busy host
    with file_lock(file.with_suffix(".lock")):
        if not file.exists():
            step(f"compiling {source.module} for kernel {kernel.name}, once (about 20 s)")
            _compile_into(file, source.folder, kernel, base, *options)
            builds = kernel.folder.glob(f"{source.module}-*.ko")
            for older in sorted(builds, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
                older.unlink(missing_ok=True)
    return file


def siw_module(kernel: Kernel, base: image.Image, step: Callable[[str], None]) -> Path:
    """The file siw.ko for a Debian kernel, compiled if it does not exist yet.

    Raises UserError as unpack_source() does.
    """
    file = kernel.folder / "siw.ko"
    with file_lock(file.with_suffix(".lock")):
        if not file.exists():
            step(f"compiling soft-iWARP for kernel {kernel.name}, once (about half a minute)")
            with tempfile.TemporaryDirectory(dir=kernel.folder, prefix="siw-") as work:
                unpack_source(kernel, Path(work), _SIW)
                _compile_into(file, Path(work) / _SIW, kernel, base, _SIW_OPTION)
    return file


def unpack_source(kernel: Kernel, folder: Path, *paths: str) -> None:
    """Unpack files and folders of the source of a Debian kernel into ``folder``, by their paths.

    Raises UserError if the archive no longer has the kernel's source.
    """
    with tempfile.TemporaryDirectory(dir=kernel.folder, prefix="linux-") as name:
        root = Path(name)
        with opened(debian_kernel.SUITES[kernel.name], root) as debian:
            debian.unpack([f"linux-source-{kernel.name}"], root)
        (source,) = root.glob("usr/src/linux-source-*.tar.xz")
        members = (f"{source.name.removesuffix('.tar.xz')}/{path}" for path in paths)
        run("tar", "-xf", source, "--strip-components=1", "-C", folder, *members, timeout=600)


def _compile_into(
    file: Path, source: Path, kernel: Kernel, base: image.Image, *options: str
) -> None:
    draft = file.with_suffix(".draft")
    compile_module(source, kernel, base, draft, *options)
    draft.rename(file)


def compile_module(
    source: Path, kernel: Kernel, base: image.Image, file: Path, *options: str
) -> Result:
    """Compile the one module of a folder with the compiler of an image; ``options`` go to make.

    For a kernel of another architecture the image is one of this host's, and lends its libraries to
    a cross compiler.  Raises CommandError with the compiler's messages if it does not compile.
    """
    as_root = ("--map-root-user",) if os.geteuid() else ()
    argv = ("unshare", "-m", *as_root, "sh", _RECIPE / "module.sh", base.disk, kernel.modules)
    prefix = kernel.architecture.compiler
    env = {"PREFIX": prefix}
    if prefix:
        env["COMPILER"] = str(compiler(kernel.architecture))
        env["KBUILD"] = str(kernel.folder / "kbuild")
        options = (*options, f"ARCH={kernel.architecture.make}", f"CROSS_COMPILE={prefix}")
    end = (kernel.release, source, file)
    return run(*argv, *end, *options, env=env, timeout=_MODULE_SECONDS)
