# SPDX-License-Identifier: Apache-2.0
"""The source of a module: its folder, and a hash of its content.

In a wheel and on a lab node it is part of the package (``data/kmod``), in a checkout it is the
folder ``kmod`` beside the package.  The modelled card is a separate module, in its folder ``card``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import shipped

__all__ = [
    "BUILDS_FOR",
    "CARD",
    "OURS",
    "Source",
    "card_profiles",
    "files_below",
    "find",
    "find_card",
    "is_too_old",
]

OURS = "nfsrdma"
"""The name of the transport module."""
CARD = "nfsrdma_card"
"""The name of the modelled card."""
# compat/ covers the kernels from this one on
_OLDEST = (6, 1)
BUILDS_FOR = f"Linux {'.'.join(map(str, _OLDEST))} or later"
"""The kernels that the transport module builds for."""
_CARD_FOLDER = "card"
_SUFFIXES = {".c", ".h", ".sh"}
_NAMES = {"Kbuild", "Makefile", "dkms.conf"}
# products of a build; a manual build in a checkout leaves them in the source
_PRODUCTS = ("features.h", "whole.c", "*.mod.c")


class Source(NamedTuple):
    """The folder that has the source, and the name of the module."""

    folder: Path
    module: str = OURS

    @property
    def files(self) -> tuple[Path, ...]:
        """The source files, relative to the folder, sorted; build products are left out."""
        return tuple(path for path in files_below(self.folder) if path.parts[0] != _CARD_FOLDER)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that change when a file changes."""
        import hashlib  # few commands need it, and it loads a library

        total = hashlib.sha256()
        for path in self.files:
            text = (self.folder / path).read_bytes()
            total.update(f"{path}\0{len(text)}\0".encode() + text)
        return total.hexdigest()[:16]

    @property
    def version(self) -> str:
        """The version in dkms.conf.  UserError if it has none."""
        text = (self.folder / "dkms.conf").read_text()
        match = re.search(r'^PACKAGE_VERSION="?([0-9A-Za-z.]+)"?$', text, re.MULTILINE)
        if not match:
            raise UserError(f"{self.folder}/dkms.conf has no PACKAGE_VERSION", "restore dkms.conf")
        return match[1]

    def copy(self, folder: Path) -> None:
        """Copy the files into ``folder``, which exists."""
        for path in self.files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / path, folder / path)
            shutil.copymode(self.folder / path, folder / path)


def is_too_old(release: str) -> bool:
    """Whether a kernel's release is before those of BUILDS_FOR.

    A build may succeed all the same, with interfaces that the distribution has backported, as Red
    Hat does.
    """
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < _OLDEST


def find() -> Source:
    """The source that belongs to this program.  UserError if it is not installed."""
    return Source(shipped("kmod/Kbuild").parent)


def find_card() -> Source:
    """The source of the modelled card.  UserError if it is not installed."""
    folder = find().folder / _CARD_FOLDER
    if not (folder / "Kbuild").is_file():
        raise UserError(f"the card's source is missing from {folder}", "reinstall nfsrdma")
    return Source(folder, CARD)


def card_profiles() -> tuple[str, ...]:
    """The names of the card's profiles, the default first.  UserError if it is not installed."""
    text = (find_card().folder / "profile.c").read_text()
    return tuple(re.findall(r'^\t\t\.name = "([a-z0-9-]+)",$', text, re.MULTILINE))


def files_below(folder: Path) -> list[Path]:
    """The source files of all modules below a folder, relative to it, sorted."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    kept = (path for path in paths if path.suffix in _SUFFIXES or path.name in _NAMES)
    return sorted(p for p in kept if not any(p.match(pattern) for pattern in _PRODUCTS))
