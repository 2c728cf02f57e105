# SPDX-License-Identifier: Apache-2.0
"""The kernels of a lab: those of the image, and those that check themselves, built when asked for.

One that checks itself is Debian's own source with KASAN, lockdep and more (``kernel_recipe``). It
is kept under <cache>/kernels, apart from the image: vmlinuz, and a disk with its modules and the
headers to build more of them. What it boots from is built in, so it needs no initrd.
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
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.lab import image
from nfsrdma_tools.lab.config import CHECKING, KERNELS
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.places import cache_dir, locked

__all__ = ["Kernel", "build", "find", "present"]

_RECIPE = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe"))
_PARTS = ("build.sh", "make.sh", "small.config", "lab.config", "check.config")
_HOURS = 4
_GIB = 8
_DRAFT = "building-"


@dataclass(frozen=True)
class Kernel:
    """What a machine boots: an image's kernel of a series, or one that checks itself."""

    name: str
    folder: Path

    @property
    def release(self) -> str:
        """As ``uname -r`` says it."""
        return (self.folder / "version").read_text().strip()

    @property
    def vmlinuz(self) -> Path:
        """The kernel itself."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path | None:
        """The initial file system; None for a kernel that has all it boots from built in."""
        return None if self.name in CHECKING else self.folder / "initrd"

    @property
    def modules(self) -> Path | None:
        """A disk with what is in /lib/modules/RELEASE; None where the image has it."""
        return self.folder / "modules.img" if self.name in CHECKING else None

    @property
    def mark(self) -> tuple[str, ...]:
        """What tells this build from another of that name; nothing for one of the image's."""
        return (self.folder.name,) if self.name in CHECKING else ()


def find(name: str, base: Image) -> Kernel:
    """The kernel of a series or flavour; UserError when it has to be built first."""
    if name not in CHECKING:
        return Kernel(name, base.boot(name))
    place = _place(name, base)
    if not place.is_dir():
        hint = f"nfsrdma lab build --kernel {name} (about 15 minutes)"
        raise UserError(f"the kernel {name} is not built", hint)
    return Kernel(name, place)


def build(name: str, step: Callable[[str], None] = lambda _: None) -> Kernel:
    """Return a kernel that checks itself, building it first where it is missing; needs root.

    It appears by a rename when it is whole: an interrupted build leaves nothing half done.
    """
    if name not in CHECKING:
        raise UserError(f"no kernel {name!r} can be built", f"there are {', '.join(CHECKING)}")
    base = image.build(step)
    place = _place(name, base)
    place.parent.mkdir(exist_ok=True)
    with locked(place.parent / "lock"):
        if not place.is_dir():
            _check(place.parent)
            step(f"the kernel {name}, from Debian's source (about 15 minutes on 2 cores)")
            _build(name, base, place)
    return Kernel(name, place)


def present() -> set[str]:
    """The folders' names of what the present recipe makes."""
    base = image.find()
    return {_place(name, base).name for name in CHECKING} if base else set()


def _place(name: str, base: Image) -> Path:
    # the source is of the image's own version, as far as the archive still has it
    digest = hashlib.sha256((base.boot(KERNELS[0]) / "version").read_bytes())
    for part in (*_PARTS, f"{name}.config"):
        digest.update(f"{part}\0".encode() + (_RECIPE / part).read_bytes())
    return cache_dir() / "kernels" / f"{name}-{digest.hexdigest()[:16]}"


def _check(folder: Path) -> None:
    if os.geteuid():
        raise UserError("a kernel is built in the image's root, which root alone can mount", "sudo")
    free = shutil.disk_usage(folder).free >> 30
    if free < _GIB:
        raise UserError(f"{free} GiB are free in {folder}, {_GIB} are needed", "make room")
    for left in folder.glob(f"{_DRAFT}*"):
        # of a build that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)


def _build(name: str, base: Image, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=place.parent) as work:
        out = Path(work) / "out"
        argv = ("unshare", "-m", "sh", _RECIPE / "build.sh", base.disk, name, work, out)
        done = run(*argv, timeout=_HOURS * 3600, check=False)
        if done.returncode:
            log = cache_dir() / "kernel-build.log"
            log.write_text(f"{done.stdout}\n{done.stderr}")
            said = one_line(done.stderr or done.stdout) or "it said nothing"
            raise UserError(f"the kernel {name} does not build: {said}", f"the whole is in {log}")
        out.rename(place)
