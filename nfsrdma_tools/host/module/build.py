# SPDX-License-Identifier: Apache-2.0
"""Builds a module for a kernel: from a copy of the source, into a cache.

The cache is <cache>/modules/<kernel release>/<source hash>/<module>.ko.  A build never writes into
the source tree, which may be read-only or belong to another user.  ``load_card`` also loads the
module of the modelled card, and ``card_profile`` sets its parameter.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files, module_source
from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import UsageError, UserError, one_line
from nfsrdma_tools.host import kernel_modules, packages
from nfsrdma_tools.lock import file_lock
from nfsrdma_tools.module_source import BUILDS_FOR, CARD, OURS, Source, is_too_old
from nfsrdma_tools.undo import Journal, Run, Write

__all__ = [
    "Build",
    "all_cached",
    "build",
    "cached",
    "card_profile",
    "checked_release",
    "first_error",
    "load_card",
]

_TIMEOUT = 3600  # in seconds; an emulated machine is slow
_KEPT = 4  # builds kept per kernel, 10 MB each: the journal may reload an older one
_PROFILE = Path("/sys/module", CARD, "parameters/profile")
_RELEASE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+~-]*")
# lines that name the cause, best first: the compiler, modpost, the shell, make
_ERRORS = (
    r"^.*\berror: .*",
    r"^ERROR: modpost: .*",
    r"^.*: (?:not found|command not found|No such file or directory)$",
    r"^.*\*\*\* .*",
)


@dataclass(frozen=True)
class Build:
    """A module built for the kernel ``release``; ``fresh`` if this call built it."""

    release: str
    path: Path
    fresh: bool


def build(
    release: str = "",
    force: bool = False,
    watch: Callable[[str], None] = lambda release: None,
    source: Source | None = None,
) -> Build:
    """Build for a kernel (default: the running one), unless the cache has this source's build.

    ``watch`` is called a few times a second meanwhile.  Raises UserError if the kernel headers
    are missing, or with the compiler's first error and the path of the log.
    """
    release = checked_release(release)
    source = source or module_source.find()
    known = cached(release, source)
    if known and not force:
        return Build(release, known, fresh=False)
    headers = _headers(release)
    with (
        file_lock(_made(_place(release, source).parent) / "lock"),
        _draft(release, source) as draft,
    ):
        # another process may have built it while this one waited for the lock
        if force or not cached(release, source):
            source.copy(draft)
            _make(headers, draft, source.module, release, watch)
            _keep(draft, path_of(release, source))
    return Build(release, path_of(release, source), fresh=True)


def cached(release: str, source: Source) -> Path | None:
    """The cached build of this source for a kernel; None if there is none."""
    path = path_of(release, source)
    return path if path.is_file() else None


def path_of(release: str, source: Source) -> Path:
    """Where the cache has, or would have, the build of this source for a kernel."""
    return _place(release, source) / f"{source.module}.ko"


def all_cached(release: str, module: str = OURS) -> list[Path]:
    """All cached builds of a module for a kernel, of any source, newest first."""
    builds = (_cache() / release).glob(f"*/{module}.ko")
    return sorted(builds, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def checked_release(release: str) -> str:
    """Check a kernel release; "" means the running one.  UsageError if it cannot be a release."""
    if release and not _RELEASE.fullmatch(release):
        raise UsageError(f"{release!r} is not a kernel release", "write it as `uname -r` prints it")
    return release or platform.release()


def first_error(log: str) -> str:
    """The line of a build log that names the error."""
    matches = (re.search(pattern, log, re.MULTILINE) for pattern in _ERRORS)
    return one_line(next((match[0] for match in matches if match), log)) or "it printed no error"


def _cache() -> Path:
    named = os.environ.get("NFSRDMA_CACHE")
    if named:
        return Path(named) / "modules"
    if os.geteuid() == 0:
        return Path("/var/cache/nfsrdma/modules")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nfsrdma", "modules")


def _place(release: str, source: Source) -> Path:
    return _cache() / release / source.hash


def _headers(release: str) -> Path:
    folder = Path("/lib/modules", release, "build")
    if not (folder / "Makefile").is_file():
        message = f"no headers of kernel {release}: {folder} is missing"
        raise UserError(message, packages.install("headers", release))
    return folder


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: {error.strerror}", "set NFSRDMA_CACHE to a writable directory"
        ) from error
    return folder


@contextlib.contextmanager
def _draft(release: str, source: Source) -> Iterator[Path]:
    folder = _place(release, source).parent
    for left in folder.glob(".draft-*"):
        # left by a killed build: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".draft-") as draft:
        yield Path(draft)


def _make(
    headers: Path, draft: Path, module: str, release: str, watch: Callable[[str], None]
) -> None:
    jobs = f"-j{os.cpu_count() or 1}"
    argv = ("make", "-C", str(headers), f"M={draft}", jobs, "modules")
    result = run(*argv, timeout=_TIMEOUT, check=False, watch=lambda: watch(release))
    if result.returncode or not (draft / f"{module}.ko").is_file():
        raise _failure(result, draft, module, release)


def _failure(result: Result, draft: Path, module: str, release: str) -> UserError:
    log = draft.parent / "failed.log"
    log.write_text(result.stdout + result.stderr)
    cause = first_error(result.stderr or result.stdout).replace(f"{draft}/", "")
    if is_too_old(release):
        message = f"{module} does not build for {release}, it needs {BUILDS_FOR}: {cause}"
        return UserError(message, f"use the kernel's module rpcrdma, transport rdma; see {log}")
    return UserError(f"the module build failed: {cause}", f"see {log}")


def _keep(draft: Path, file: Path) -> None:
    place = file.parent
    place.mkdir(exist_ok=True)
    (draft / file.name).replace(file)
    (place.parent / "failed.log").unlink(missing_ok=True)
    for old in all_cached(place.parent.name, file.stem)[_KEPT:]:
        shutil.rmtree(old.parent, ignore_errors=True)


def load_card(journal: Journal, watch: Callable[[str], None] = lambda release: None) -> bool:
    """Build the card's module for the running kernel and load it; False if it is loaded already.

    ``watch`` is called a few times a second during the build.  ``journal`` gets the undo.
    UserError if the build fails, CommandError with the kernel's message if the module does not
    load.
    """
    if CARD in kernel_modules.loaded():
        return False
    built = build(source=module_source.find_card(), watch=watch)
    for name in kernel_modules.in_file(built.path).depends:
        kernel_modules.load(name, journal)
    journal.add(Run(("rmmod", "--", CARD), when=f"/sys/module/{CARD}"))
    run("insmod", str(built.path))
    return True


@contextlib.contextmanager
def card_profile(name: str, journal: Journal) -> Iterator[None]:
    """Cards that are added in the block have this profile; "": that of the module's parameter.

    The module is loaded.  The end of the block restores the parameter, and so does ``journal``.
    UserError if an older module is loaded.
    """
    if not name:
        yield
        return
    if not _PROFILE.exists():
        raise UserError(f"the loaded module {CARD} has no profiles", f"run: rmmod {CARD}")
    undo = Write(str(_PROFILE), files.read(_PROFILE))
    journal.add(undo)
    try:
        files.overwrite(_PROFILE, name)
        yield
    finally:
        undo.undo()
        journal.drop(undo)
