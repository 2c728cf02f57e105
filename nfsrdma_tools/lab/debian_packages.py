# SPDX-License-Identifier: Apache-2.0
"""Unpacks packages of Debian's archive into a folder, without root and without installing."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.mirror import sources
from nfsrdma_tools.lab.paths import draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = ["Archive", "opened", "unpack_once"]

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Archive:
    """Suites of the archive; apt verifies their signatures and keeps its lists in ``work``."""

    def __init__(self, work: Path, suites: Sequence[str], kind: str = "deb") -> None:
        self._work = work
        self._options = _options(work, suites, kind)
        self._apt("update", "-qq")

    def newest(self, prefix: str, rest: str) -> str:
        """The package ``prefix`` + ``rest`` (a regular expression) of the highest version.

        Compares the versions in package names. UserError if there is none.
        """
        names = run("apt-cache", *self._options, "pkgnames", prefix).stdout.split()
        found = [name for name in names if re.fullmatch(re.escape(prefix) + rest, name)]
        if not found:
            raise UserError(
                f"Debian's archive has no package {prefix}*", "try another NFSRDMA_MIRROR"
            )
        return max(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def depends(self, package: str, prefix: str) -> list[str]:
        """The packages that ``package`` depends on whose names begin with ``prefix``."""
        argv = ("apt-cache", *self._options, "depends", "--important", package)
        return re.findall(rf"^ +Depends: ({re.escape(prefix)}\S+)", run(*argv).stdout, re.MULTILINE)

    def unpack(self, packages: Sequence[str], folder: Path) -> None:
        """Unpack the packages, without their dependencies, into ``folder``."""
        with tempfile.TemporaryDirectory(dir=self._work) as name:
            self._apt("download", "-qq", *packages, cwd=Path(name))
            for package in Path(name).glob("*.deb"):
                run("dpkg-deb", "-x", package, folder, timeout=600)

    def source(self, package: str, file: Path) -> None:
        """Write the upstream tar of a source package to ``file``; the archive's kind is deb-src."""
        with tempfile.TemporaryDirectory(dir=self._work) as name:
            self._apt("source", "-qq", "--download-only", "--tar-only", package, cwd=Path(name))
            (tar,) = Path(name).glob("*.orig.tar.?z*")
            shutil.move(tar, file)

    def _apt(self, *words: str, cwd: Path | None = None) -> None:
        run("apt-get", *self._options, *words, timeout=600, cwd=cwd)


@contextlib.contextmanager
def opened(suites: Sequence[str], parent: Path, kind: str = "deb") -> Iterator[Archive]:
    """Open an archive whose lists are in a temporary folder below ``parent``.

    ``kind`` is deb, or deb-src for source packages.
    Raises UserError if the archive is unreachable.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="archive-") as work:
        yield Archive(Path(work), suites, kind)


def unpack_once(packages: Sequence[str], suite: str, folder: Path) -> None:
    """Unpack packages of a suite into ``folder``, created atomically; does nothing if it exists.

    Raises UserError if a package is unavailable.
    """
    folder.parent.mkdir(exist_ok=True)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            with draft_of(folder) as draft, opened([suite], draft.parent) as debian:
                debian.unpack(packages, draft)


def _options(work: Path, suites: Sequence[str], kind: str) -> tuple[str, ...]:
    for part in ("lists/partial", "cache/archives/partial"):
        (work / part).mkdir(parents=True)
    lines = work / "sources.list"
    lines.write_text(sources(suites, f"[signed-by={_KEYRING}] ", kind))
    wanted = (
        f"Dir::Etc::SourceList={lines}",
        "Dir::Etc::SourceParts=/dev/null",
        # the host's pins apply only to the host's packages
        "Dir::Etc::Preferences=/dev/null",
        "Dir::Etc::PreferencesParts=/dev/null",
        f"Dir::State::Lists={work}/lists",
        f"Dir::Cache={work}/cache",
        "Acquire::Languages=none",
        # apt's sandbox user could not write here
        "APT::Sandbox::User=root",
        "APT::Update::Error-Mode=any",
    )
    return tuple(word for each in wanted for word in ("-o", each))
