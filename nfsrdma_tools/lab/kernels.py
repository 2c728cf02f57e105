# SPDX-License-Identifier: Apache-2.0
"""The kernels of labs: Debian's, and kernels with run-time checks, built on demand.

A checking kernel is Debian's source with KASAN, lockdep and more (``kernel_recipe``).  Each kernel
is under <cache>/kernels, separate from the image: vmlinuz, initrd, and a disk with its modules and
the headers to build more of them.
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

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UsageError, UserError, one_line
from nfsrdma_tools.lab import debian_kernel, image, initrd
from nfsrdma_tools.lab.config import CHECKING, KERNELS
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = ["Kernel", "build", "find", "present"]

_RECIPE = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe"))
_PARTS = ("build.sh", "make.sh", "small.config", "lab.config", "check.config", "init")
_HOURS = 4
_GIB = 8


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
    place = _place(name)
    if not place.is_dir():
        minutes = "about 15 minutes" if name in CHECKING else "half a minute"
        hint = f"run: nfsrdma lab build --kernel {name} ({minutes})"
        raise UserError(f"the kernel {name} is not built", hint)
    return Kernel(name, place)


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
    place = _place(name)
    with file_lock(lock_of(place)):
        if not place.is_dir():
            if name in CHECKING:
                _check(kernels)
                step(
                    f"building the kernel {name} from Debian's source (about 15 minutes on 2 cores)"
                )
                _build(name, base, plain, place)
            else:
                step(f"unpacking Debian's kernel {name} (about 20 s)")
                with draft_of(place) as draft:
                    debian_kernel.make(name, draft)
    return Kernel(name, place)


def present() -> set[str]:
    """The names of the folders of the current recipes."""
    known = KERNELS + CHECKING if _place(KERNELS[0]).is_dir() else KERNELS
    return {_place(name).name for name in known}


def _place(name: str) -> Path:
    return cache_dir() / "kernels" / f"{name}-{_digest(name)[:16]}"


def _digest(name: str) -> str:
    recipe = Path(debian_kernel.__file__), Path(initrd.__file__), initrd.SCRIPT
    parts = [path.read_bytes() for path in recipe]
    if name in CHECKING:
        # the source has the version of Debian's kernel, if the archive still has it
        parts = [find(KERNELS[0]).release.encode()]
        parts += [(_RECIPE / part).read_bytes() for part in (*_PARTS, f"{name}.config")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _check(folder: Path) -> None:
    if os.geteuid():
        raise UserError("only root may mount the image to build this kernel", "run this as root")
    free = shutil.disk_usage(folder).free >> 30
    if free < _GIB:
        raise UserError(f"{free} GiB are free in {folder}, expected {_GIB} GiB", "free some space")


def _build(name: str, base: image.Image, plain: Kernel, place: Path) -> None:
    with (
        draft_of(place) as out,
        tempfile.TemporaryDirectory(dir=out.parent) as work,
    ):
        argv = ("unshare", "-m", "sh", _RECIPE / "build.sh", base.disk, name, work, out)
        done = run(*argv, timeout=_HOURS * 3600, check=False)
        if done.returncode:
            log = cache_dir() / "kernel-build.log"
            log.write_text(f"{done.stdout}\n{done.stderr}")
            said = one_line(done.stderr or done.stdout) or "it printed no error"
            raise UserError(f"building the kernel {name} failed: {said}", f"see {log}")
        release = (out / "version").read_text().strip()
        initrd.make(out / "initrd", plain.folder / "busybox", release)
