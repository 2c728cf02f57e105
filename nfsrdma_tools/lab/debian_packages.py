# SPDX-License-Identifier: Apache-2.0
"""Packages of Debian's archive, unpacked into a folder without root and without installing.

The mirror is that of this host's apt, or $NFSRDMA_MIRROR.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.lab.paths import draft_of, lock_of
from nfsrdma_tools.lock import file_lock

__all__ = ["Archive", "opened", "parse_targets", "sources", "unpack_once"]

_SECURITY = "Debian-Security"
_LABELS = ("Debian", _SECURITY)
# apt's words for the architecture of packages without one, and for those that it has lists of
_ARCHITECTURE = ("Architecture", "Architectures")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Archive:
    """Suites of the archive; apt verifies their signatures and keeps its lists in ``work``.

    ``architecture`` is that of the packages, in Debian's words; "": of this host.
    """

    def __init__(
        self, work: Path, suites: Sequence[str], kind: str = "deb", architecture: str = ""
    ) -> None:
        self._work = work
        self._options = _options(work, suites, kind, architecture)
        self._apt("update", "-qq")

    def newest(self, prefix: str, rest: str) -> str:
        """The package ``prefix`` + ``rest`` (a regular expression) of the highest version.

        Compares the versions in package names. UserError if there is none.
        """
        names = run("apt-cache", *self._options, "pkgnames", prefix).stdout.split()
        matches = [name for name in names if re.fullmatch(re.escape(prefix) + rest, name)]
        if not matches:
            raise UserError(
                f"Debian's archive has no package {prefix}*", "try another NFSRDMA_MIRROR"
            )
        return max(matches, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

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
def opened(
    suites: Sequence[str], parent: Path, kind: str = "deb", architecture: str = ""
) -> Iterator[Archive]:
    """Open an archive whose lists are in a temporary folder below ``parent``.

    ``kind`` is deb, or deb-src for source packages.
    Raises UserError if the archive is unreachable.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="archive-") as work:
        yield Archive(Path(work), suites, kind, architecture)


def unpack_once(packages: Sequence[str], suite: str, folder: Path) -> None:
    """Unpack packages of a suite into ``folder``, created atomically; does nothing if it exists.

    Raises UserError if a package is unavailable.
    """
    folder.parent.mkdir(exist_ok=True)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            with draft_of(folder) as draft, opened([suite], draft.parent) as debian:
                debian.unpack(packages, draft)


def _options(work: Path, suites: Sequence[str], kind: str, architecture: str) -> tuple[str, ...]:
    for part in ("lists/partial", "cache/archives/partial"):
        (work / part).mkdir(parents=True)
    lines = work / "sources.list"
    lines.write_text(sources(suites, f"[signed-by={_KEYRING}] ", kind))
    settings = (
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
        *(f"APT::{name}={architecture}" for name in _ARCHITECTURE if architecture),
    )
    return tuple(word for setting in settings for word in ("-o", setting))


def parse_targets(text: str) -> dict[str, str]:
    """The first archive of each kind in lines ``label|URI`` of apt-get indextargets.

    Labels are empty before the first ``apt-get update``; then the end of the URI decides.
    """
    archives: dict[str, str] = {}
    for line in text.splitlines():
        label, _, uri = line.partition("|")
        uri = uri.rstrip("/")
        last = uri.rpartition("/")[2]
        label = label or {"debian": "Debian", "debian-security": "Debian-Security"}.get(last, "")
        if label in _LABELS and uri.startswith(("http://", "https://")):
            archives.setdefault(label, uri)
    return archives


def sources(suites: Iterable[str], options: str = "", kind: str = "deb") -> str:
    """A sources.list with these suites; ``options`` precede each URL.

    ``kind`` is deb, or deb-src for source packages.
    """
    mirrors = _mirrors()
    # every mirror has both archives
    mirrors.setdefault(_SECURITY, f"{mirrors['Debian']}-security")
    label = {True: _SECURITY, False: "Debian"}
    lines = [f"{kind} {options}{mirrors[label[s.endswith('-security')]]} {s} main" for s in suites]
    return "\n".join(lines) + "\n"


def _mirrors() -> dict[str, str]:
    mirror = os.environ.get("NFSRDMA_MIRROR")
    mirrors = _of_apt() if mirror is None else {"Debian": mirror.rstrip("/")}
    if "Debian" not in mirrors:
        hint = "set NFSRDMA_MIRROR to the URL of a mirror, ending in /debian"
        raise UserError("apt has no Debian archive configured", hint)
    return mirrors


def _of_apt() -> dict[str, str]:
    try:
        targets = run("apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", check=False)
    except ProgramMissingError:
        return {}
    return parse_targets(targets.stdout)
