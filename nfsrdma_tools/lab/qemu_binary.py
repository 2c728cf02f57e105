# SPDX-License-Identifier: Apache-2.0
"""The QEMU of all labs: 10.0 or newer, the system's or one in the cache.

All clocks use the same QEMU, so that counted results agree across hosts. Debian 12 has 7.2, in
which processes start three times as slowly; ``fetch`` gets 10.0 from its backports.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["fetch", "qemu", "version"]

_PROGRAM = "qemu-system-x86_64"
_WANTED = (10, 0)
_SUITES = {"bookworm": "bookworm-backports"}
# they need libraries of Debian 12's QEMU packages
_PACKAGES = ("qemu-system-x86", "qemu-system-data", "seabios")


def qemu() -> tuple[str, ...]:
    """The command: the program, and the option for its firmware path."""
    usr = _folder() / "usr"
    if not usr.is_dir():
        return (_PROGRAM,)
    share = usr / "share"
    return (f"{usr}/bin/{_PROGRAM}", "-L", f"{share}/qemu", "-L", f"{share}/seabios")


def version() -> str:
    """Its version, such as ``10.0.11 (Debian 1:10.0.11+ds-0+deb13u1)``."""
    return _version(qemu()[0])


def fetch(step: Callable[[str], None]) -> None:
    """Put a newer QEMU into the cache if the system's is old and Debian's backports have one.

    Reports to ``step``. On failure labs use the system's QEMU, and are slower.
    """
    suite = _SUITES.get(_codename())
    if not suite or _folder().is_dir():
        return
    found = version()
    if _number(found) >= _WANTED:
        return
    step(f"fetching QEMU from {suite}: found {found.split()[0]}, expected 10.0 (15 s, 80 MB)")
    try:
        unpack_once(_PACKAGES, suite, _folder())
    except UserError as error:
        step(f"labs use QEMU {found.split()[0]}; results differ from other versions: {error}")


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
