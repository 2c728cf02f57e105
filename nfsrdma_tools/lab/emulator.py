# SPDX-License-Identifier: Apache-2.0
"""Which QEMU a lab runs in: the system's, or by the wall clock a newer one in the cache.

Debian 12 has 7.2: processes start three times as slowly in it as in 10.0, and until 8.1 it could
run code that was patched meanwhile. Counted figures stay with the system's, and so comparable.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.places import cache_dir
from nfsrdma_tools.lab.unpacked import unpack

__all__ = ["fetch", "qemu", "version"]

_PROGRAM = "qemu-system-x86_64"
_NEW = (8, 1)
_SUITES = {"bookworm": "bookworm-backports"}
# they want the libraries that Debian 12's own packages bring
_PACKAGES = ("qemu-system-x86", "qemu-system-data", "seabios")


def qemu(clock: str = "wall") -> tuple[str, ...]:
    """The program for a clock, and where it finds its firmware."""
    usr = _folder() / "usr"
    if clock != "wall" or not usr.is_dir():
        return (_PROGRAM,)
    share = usr / "share"
    return (f"{usr}/bin/{_PROGRAM}", "-L", f"{share}/qemu", "-L", f"{share}/seabios")


def version(clock: str = "wall") -> str:
    """Its version, such as ``7.2.22 (Debian 1:7.2+dfsg-7)``."""
    return _version(qemu(clock)[0])


def fetch(step: Callable[[str], None]) -> None:
    """Get a newer QEMU where the system's is old and Debian's backports have one.

    Without it labs are slower, so ``step`` hears why there is none.
    """
    suite = _SUITES.get(_codename())
    if not suite or _folder().is_dir():
        return
    found = version("counted")
    if _number(found) >= _NEW:
        return
    step(f"QEMU of {suite}, because {found.split()[0]} is slow (into the cache)")
    try:
        unpack([f"{name}/{suite}" for name in _PACKAGES], suite, _folder())
    except UserError as error:
        step(f"labs go on with QEMU {found.split()[0]}: {error}")


@functools.cache
def _version(program: str) -> str:
    said = run(program, "--version").stdout
    return said.splitlines()[0].removeprefix("QEMU emulator version ")


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text)[:2])


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _folder() -> Path:
    return cache_dir() / "programs" / "qemu"
