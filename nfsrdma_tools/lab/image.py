# SPDX-License-Identifier: Apache-2.0
"""The disk images that machines start from: Debian 13 without a kernel, built once per recipe.

The small image has what a sweep needs. The image with extras also has what some tests need:
Kerberos, tshark, perftest, bpftrace, firewalld's packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.resources
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import CommandError, UserError, one_line
from nfsrdma_tools.lab.architecture import AMD64, Architecture
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import sources
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock, try_folder_lock

__all__ = ["Image", "build", "find", "recipe_hash"]

_LAB = Path(str(importlib.resources.files("nfsrdma_tools.lab")))
_RECIPE, _FOREIGN = _LAB / "recipe", _LAB / "foreign.sh"
_PYTHON = "3.13"
_NODE_EXTRAS = ("fsspec", "live", "report")
_GLIBCS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17")
_PROGRAMS = ("mmdebstrap", "mke2fs", "qemu-img", "ssh-keygen", "unshare")
_FOREIGN_PROGRAMS = ("arch-test", "qemu-aarch64-static")
_MINUTES = 60
_VAR_TMP, _WORK = Path("/var/tmp"), "nfsrdma-image-"  # noqa: S108
_EXTRAS = ("extras.txt", "extras.sh")


@dataclass(frozen=True)
class Image:
    """A built image: disk.img and keys/."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The raw disk; machines write to overlays over it."""
        return self.folder / "disk.img"

    @property
    def keys(self) -> Path:
        """The ssh keys of user and host, and known_hosts."""
        return self.folder / "keys"


def recipe_hash(extras: bool, architecture: Architecture = AMD64) -> str:
    """A hash of everything that determines the content of an image."""
    # labs of this host's architecture keep the images that they have
    foreign = (architecture.debian,) if architecture.compiler else ()
    of = (_PYTHON, _requirements(), extras, *foreign)
    digest = hashlib.sha256(repr(of).encode())
    for path in sorted(p for p in _RECIPE.rglob("*") if _counts(p, extras)):
        digest.update(f"{path.relative_to(_RECIPE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _counts(path: Path, extras: bool) -> bool:
    apart = not extras and path.name in _EXTRAS
    return path.is_file() and "__pycache__" not in path.parts and not apart


def find(extras: bool = False, architecture: Architecture = AMD64) -> Image | None:
    """The image of the current recipe; None if it is not built."""
    folder = _folder(extras, architecture)
    return Image(folder) if folder.is_dir() else None


def build(
    extras: bool = False,
    step: Callable[[str], None] = lambda _: None,
    architecture: Architecture = AMD64,
) -> Image:
    """Return the image, building it if it is missing; ``step`` gets progress messages.

    A rename makes the complete image visible: an interrupted build leaves no partial image.
    """
    folder = _folder(extras, architecture)
    folder.parent.mkdir(exist_ok=True)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            _check_programs(architecture)
            with draft_of(folder) as draft:
                _fill(draft, extras, step, architecture)
    return Image(folder)


def _folder(extras: bool, architecture: Architecture) -> Path:
    return cache_dir() / "images" / recipe_hash(extras, architecture)


@contextlib.contextmanager
def _work_folder(draft: Path) -> Iterator[Path]:
    """A folder for mmdebstrap; removes those that killed builds of this user left."""
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory(dir=draft.parent) as name:
            yield Path(name)
        return
    for left in _VAR_TMP.glob(f"{_WORK}*"):
        _remove_left(left)
    # mmdebstrap runs hooks as a subordinate user, who has no access to home folders
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=_VAR_TMP))
    try:
        # other users can neither read nor change it, and so cannot lock it
        with try_folder_lock(work):
            work.chmod(0o711)
            yield work
    finally:
        _remove(work)


def _remove_left(work: Path) -> None:
    # another build may have removed it by now
    with contextlib.suppress(FileNotFoundError, UserError):
        status = work.lstat()
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            return
        with try_folder_lock(work) as free:
            if free:
                _remove(work)


def _remove(work: Path) -> None:
    _as_subordinate_root("rm", "-rf", "--", work)
    shutil.rmtree(work, ignore_errors=True)


def _as_subordinate_root(*argv: str | Path) -> Result:
    """Run a program as a root whose uid 1 is the root of mmdebstrap's hooks.

    Such a root may change and remove files of both.
    """
    return run("unshare", "--map-root-user", "--map-auto", "--", *argv, check=False)


def _give(folder: Path, owner: str) -> None:
    if os.geteuid() == 0:
        return
    done = _as_subordinate_root("chown", "-R", f"{owner}:{owner}", "--", folder)
    if done.returncode:
        hint = "add a range to /etc/subuid and /etc/subgid, see subuid(5)"
        raise CommandError(done.argv, done.returncode, done.stderr, hint)


def _check_programs(architecture: Architecture) -> None:
    programs = (*_PROGRAMS, *(_FOREIGN_PROGRAMS if architecture.compiler else ()))
    missing = [p for p in programs if not shutil.which(p, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    if missing:
        packages = "mmdebstrap e2fsprogs qemu-utils openssh-client util-linux"
        packages += " arch-test qemu-user-static" if architecture.compiler else ""
        raise UserError(f"not installed: {', '.join(missing)}", f"apt-get install {packages}")


def _fill(
    draft: Path, extras: bool, step: Callable[[str], None], architecture: Architecture = AMD64
) -> None:
    _make_keys(draft / "keys")
    with _work_folder(draft) as work:
        # only the hooks have access: they run the recipe, and write the disk
        files = work / "files"
        files.mkdir(mode=0o700)
        step("downloading Python libraries for the nodes (about 10 s)")
        _fetch_libraries(files / "site", architecture)
        contents = (
            "Debian 13 with extras (about two minutes)" if extras else "Debian 13 (about a minute)"
        )
        # its packages' scripts run in an emulated processor
        where = f" for {architecture.debian}, in 7 times that" if architecture.compiler else ""
        step(f"installing {contents}{where}")
        _bootstrap(work, files, draft / "keys", extras, architecture)
        for item in (files / "out").iterdir():
            # cp keeps the holes of a sparse file if the folders are on different file systems
            run("cp", "-r", "--sparse=always", "--reflink=auto", item, draft, timeout=600)


def _make_keys(folder: Path) -> None:
    folder.mkdir()
    for name in ("user", "host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {name}", "-f", folder / name)
    (folder / "known_hosts").write_text("lab " + (folder / "host.pub").read_text())


def _requirements() -> tuple[str, ...]:
    """The libraries of the core and of the extras that a node needs."""
    required = importlib.metadata.requires("nfsrdma-tools") or []
    of_extra = rf"(.*?) *; *extra == ['\"](?:{'|'.join(_NODE_EXTRAS)})['\"]"
    core = [line for line in required if "extra ==" not in line]
    more = [match[1] for line in required if (match := re.fullmatch(of_extra, line))]
    return tuple(sorted((*core, *more)))


def _fetch_libraries(site: Path, architecture: Architecture) -> None:
    platforms = [f"--platform={glibc}_{architecture.machine}" for glibc in _GLIBCS]
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", site),
        *("--python-version", _PYTHON, "--implementation", "cp", "--only-binary=:all:"),
        *platforms,
        *_requirements(),
        timeout=900,
    )


def _bootstrap(
    work: Path, files: Path, keys: Path, extras: bool, architecture: Architecture
) -> None:
    (files / "out").mkdir()
    shutil.copytree(_RECIPE, files / "recipe")
    shutil.copytree(keys, files / "keys")
    (work / "sources.list").write_text(sources(SUITES[KERNELS[0]]))
    lists = ("packages.txt", *(("extras.txt",) if extras else ()))
    packages = ",".join(p for name in lists for p in (_RECIPE / name).read_text().split())
    more = ('--customize-hook=chroot "$1" sh -s < "$RECIPE/extras.sh"',) if extras else ()
    foreign = ("sh", _FOREIGN) if architecture.compiler else ()
    folders = {"RECIPE": "recipe", "SITE": "site", "KEYS": "keys", "OUT": "out"}
    _give(files, "1")
    done = run(
        *foreign,
        *("mmdebstrap", "--quiet", "--variant=minbase", "--format=null", f"--include={packages}"),
        f"--architectures={architecture.debian}",
        *("--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io"),
        *(f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "doc", "locale", "info")),
        *more,
        '--customize-hook=sh "$RECIPE/customize.sh" "$1"',
        *("trixie", "-", work / "sources.list"),
        env={"TMPDIR": str(work), **{key: str(files / value) for key, value in folders.items()}},
        timeout=_MINUTES * 60,
        check=False,
    )
    _give(files, "0")
    if done.returncode:
        log = cache_dir() / "image-build.log"
        log.write_text(f"{done.stdout}\n{done.stderr}")
        # the last two lines only say that a hook failed; the one before says why
        lines = [x for x in done.stderr.splitlines() if x.strip() and not x.startswith("E: setup")]
        reason = one_line("\n".join(lines[:-1])) or "it printed no error"
        raise UserError(f"mmdebstrap failed to build the image: {reason}", f"see {log}")
