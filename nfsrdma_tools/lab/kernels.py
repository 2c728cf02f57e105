# SPDX-License-Identifier: Apache-2.0
"""The kernels of labs, and the modules that nodes compile for them.

Kernels are Debian's, and kernels with run-time checks, built on demand: Debian's source with KASAN,
lockdep and more (``kernel_recipe``).  Each kernel is under <cache>/kernels, separate from the
image: vmlinuz, initrd, and a disk with its modules and the headers to build more of them.  There
are also the modules of RDMA devices that Debian's packages do not have: soft-iWARP and the modelled
card.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UsageError, UserError, one_line
from nfsrdma_tools.lab import debian_kernel, image
from nfsrdma_tools.lab.config import CHECKING, KERNELS
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = ["Kernel", "build", "card_file", "card_module", "find", "present", "siw_module"]

_RECIPE = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe"))
_PARTS = ("build.sh", "make.sh", "small.config", "lab.config", "check.config", "init")
_HOURS = 4
_GIB = 8
_SIW = "drivers/infiniband/sw/siw"
_MAKE = """
name=$1
shift
mkdir "/run/$name"
tar -xC "/run/$name"
make -s -C "/lib/modules/$(uname -r)/build" M="/run/$name" "$@" modules >&2
strip --strip-debug "/run/$name/$name.ko"
base64 "/run/$name/$name.ko"
rm -r "/run/$name"
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel that machines boot: Debian's, or one with run-time checks."""

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


def find(name: str) -> Kernel:
    """The kernel of a series or flavour; UserError if it is not built."""
    folder = _folder(name)
    if not folder.is_dir():
        minutes = "about 15 minutes" if name in CHECKING else "half a minute"
        hint = f"run: nfsrdma lab build --kernel {name} ({minutes})"
        raise UserError(f"the kernel {name} is not built", hint)
    return Kernel(name, folder)


def build(name: str, step: Callable[[str], None] = lambda _: None) -> Kernel:
    """Return a kernel, building it if it is missing.

    A rename makes the complete kernel visible: an interrupted build leaves no partial kernel.
    Building a checking kernel needs root.
    """
    if name not in KERNELS + CHECKING:
        known = ", ".join(KERNELS + CHECKING)
        raise UsageError(f"unknown kernel {name!r}", f"the kernels are {known}")
    if name in CHECKING:
        # built with the image's compiler, which is Debian's, and booted by its busybox
        base, plain = image.build(step=step), build(KERNELS[0], step)
    kernels = cache_dir() / "kernels"
    kernels.mkdir(exist_ok=True)
    folder = _folder(name)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            if name in CHECKING:
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
    known = KERNELS + CHECKING if _folder(KERNELS[0]).is_dir() else KERNELS
    return {_folder(name).name for name in known}


def _folder(name: str) -> Path:
    return cache_dir() / "kernels" / f"{name}-{_digest(name)[:16]}"


def _digest(name: str) -> str:
    parts = [path.read_bytes() for path in (Path(debian_kernel.__file__), debian_kernel.INIT)]
    if name in CHECKING:
        # the source has the version of Debian's kernel, if the archive still has it
        parts = [find(KERNELS[0]).release.encode()]
        parts += [(_RECIPE / part).read_bytes() for part in (*_PARTS, f"{name}.config")]
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
        argv = ("unshare", "-m", "sh", _RECIPE / "build.sh", base.disk, name, work, out)
        done = run(*argv, timeout=_HOURS * 3600, check=False)
        if done.returncode:
            log = cache_dir() / "kernel-build.log"
            log.write_text(f"{done.stdout}\n{done.stderr}")
            reason = one_line(done.stderr or done.stdout) or "it printed no error"
            raise UserError(f"building the kernel {name} failed: {reason}", f"see {log}")
        release = (out / "version").read_text().strip()
        debian_kernel.make_initrd(out / "initrd", plain.folder / "busybox", release)


def siw_module(lab: Nodes, node: str, kernel: Kernel, step: Callable[[str], None]) -> bytes:
    """The file siw.ko for a Debian kernel, compiled in a node that runs it.

    Raises UserError if the archive no longer has the kernel's source.
    """
    file = kernel.folder / "siw.ko"
    if not file.exists():
        step("compiling soft-iWARP for this kernel, once (about two minutes)")
    return _compiled(lab, node, "siw", file, lambda: _siw_source(kernel), "CONFIG_RDMA_SIW=m")


def _siw_source(kernel: Kernel) -> bytes:
    with tempfile.TemporaryDirectory(dir=kernel.folder) as work, \
            opened(debian_kernel.SUITES[kernel.name], Path(work)) as debian:  # fmt: skip
        root = Path(work) / "root"
        debian.unpack([f"linux-source-{kernel.name}"], root)
        (source,) = root.glob("usr/src/linux-source-*.tar.xz")
        words = ("--wildcards", "--strip-components=1", "-C", root, f"*/{_SIW}")
        run("tar", "-xf", source, *words, timeout=600)
        run("tar", "-cf", root / "siw.tar", "-C", root / _SIW, ".")
        return (root / "siw.tar").read_bytes()


def card_module(lab: Nodes, node: str, kernel: Kernel, step: Callable[[str], None]) -> bytes:
    """The file nfsrdma_card.ko for a kernel, compiled in a node that runs it."""
    file = card_file(kernel)
    if not file.exists():
        step("compiling the modelled card for this kernel, once (about a minute)")
    return _compiled(lab, node, module_source.CARD, file, _card_source, "WHOLE=1")


def card_file(kernel: Kernel) -> Path:
    """The path of the card's module for a kernel, which may not exist yet."""
    card = module_source.find_card()
    return kernel.folder / f"{card.module}-{card.hash}.ko"


def _card_source() -> bytes:
    card, buffer = module_source.find_card(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in card.files:
            tar.add(card.folder / path, path)
    return buffer.getvalue()


def _compiled(
    lab: Nodes, node: str, name: str, file: Path, source: Callable[[], bytes], *options: str
) -> bytes:
    """The module ``name``: from ``file`` if that exists, else compiled from the tar ``source``.

    ``options`` are arguments of make.  Of several processes, one compiles and the others wait.
    """
    with file_lock(file.with_suffix(".lock")):
        if not file.exists():
            argv = ("sh", "-ec", _MAKE, "sh", name, *options)
            text = lab.run(node, *argv, stdin=source(), timeout=1800).stdout
            draft = file.with_suffix(".draft")
            draft.write_bytes(base64.b64decode(text))
            draft.rename(file)
    return file.read_bytes()
