# SPDX-License-Identifier: Apache-2.0
"""Debian packages unpacked into a folder: nothing is installed, and root is not needed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab.mirror import archive
from nfsrdma_tools.lab.places import locked

__all__ = ["unpack"]

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpack(packages: Sequence[str], suite: str, folder: Path) -> None:
    """Put what is in the packages of a suite, without what they depend on, into ``folder``.

    Does nothing where the folder is there. apt checks signatures; it keeps its lists in a folder of
    ours. The folder appears whole, by a rename. Raises UserError when a package cannot be had.
    """
    folder.parent.mkdir(exist_ok=True)
    with locked(folder.parent.with_suffix(".lock")):
        if not folder.is_dir():
            _fill(packages, suite, folder)


def _fill(packages: Sequence[str], suite: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as name:
        work = Path(name)
        options = _options(work, suite)
        run("apt-get", *options, "update", "-qq", timeout=600)
        run("apt-get", *options, "download", "-qq", *packages, timeout=600, cwd=work)
        for package in work.glob("*.deb"):
            run("dpkg-deb", "-x", package, work / "root")
        (work / "root").rename(folder)


def _options(work: Path, suite: str) -> tuple[str, ...]:
    for part in ("lists/partial", "cache/archives/partial"):
        (work / part).mkdir(parents=True)
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {archive()} {suite} main\n")
    # the sandbox's user could not write here
    wanted = (
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={work}/lists",
        f"Dir::Cache={work}/cache",
        "Acquire::Languages=none",
        "APT::Sandbox::User=root",
        "APT::Update::Error-Mode=any",
    )
    return tuple(word for each in wanted for word in ("-o", each))
