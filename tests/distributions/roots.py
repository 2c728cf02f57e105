# SPDX-License-Identifier: Apache-2.0
"""The root folders of Debian's releases: made by mmdebstrap once, then cached; entered by chroot.

A program that runs in one has the release's files and programs, and the kernel of this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from contained import NAMESPACES

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import CommandError
from nfsrdma_tools.lab.debian_packages import sources
from nfsrdma_tools.lab.paths import cache_dir, draft_of, lock_of
from nfsrdma_tools.lock import file_lock

ROOT = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST = "host"
"""The folder of a root in which this machine's files are."""
PYTHON = "/usr/local/bin/python-of-the-host"
PROGRAMS = (
    "dkms", "ibverbs-providers", "ibverbs-utils", "iproute2", "kmod", "nfs-common",
    "nfs-kernel-server", "nftables", "procps", "python3", "python3-venv", "rdma-core", "systemd",
)  # fmt: skip
SECONDS = 1800
# in the namespaces of the process: $1 is the root, what follows is the command
ENTER = f"""
set -e
root=$1
shift
mount --rbind --make-rslave / "$root/{HOST}"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind --make-rslave /dev "$root/dev"
exec chroot "$root" "$@"
"""


class Release(NamedTuple):
    """A release of Debian, or of unstable."""

    name: str
    suites: tuple[str, ...]
    packages: tuple[str, ...] = PROGRAMS

    @property
    def suite(self) -> str:
        """The name of its first suite."""
        return self.suites[0]


def stable(number: int, suite: str) -> Release:
    """A release with its updates."""
    return Release(f"Debian {number}", (suite, f"{suite}-updates", f"{suite}-security"))


RELEASES = {
    "11": stable(11, "bullseye"),
    "12": stable(12, "bookworm"),
    "13": stable(13, "trixie"),
    "sid": Release("Debian unstable", ("sid",)),
}


class Root:
    """The root folder of a release."""

    def __init__(self, release: Release, folder: Path) -> None:
        self.release = release
        self.folder = folder

    def run(self, *argv: str | Path, check: bool = True, **environment: str) -> Result:
        """Run a program there, with the PATH of a root login; CommandError if it fails."""
        given = (f"{key}={value}" for key, value in environment.items())
        words = ("env", "-i", f"PATH={PATH}", "LC_ALL=C", "HOME=/root", *given, *argv)
        done = run(*NAMESPACES, "sh", "-c", ENTER, "sh", self.folder, *words, check=False,
                   timeout=SECONDS)  # fmt: skip
        if check and done.returncode:
            output = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise CommandError(tuple(map(str, argv)), done.returncode, output)
        return done

    def sh(self, script: str, check: bool = True) -> Result:
        """Run a script of sh(1) there; it ends with the first command that fails."""
        return self.run("sh", "-e", "-c", script, check=check, DEBIAN_FRONTEND="noninteractive")

    def ours(self, *argv: str | Path, check: bool = True) -> Result:
        """Run Python of this machine, with this checkout, among the release's files and programs.

        So a release whose own Python is too old has the program, too.
        """
        return self.run(PYTHON, *argv, check=check, PYTHONDONTWRITEBYTECODE="1")

    def version(self, package: str) -> str:
        """The upstream version of an installed package."""
        version = self.run("dpkg-query", "--show", "--showformat=${Version}", package).stdout
        return version.partition(":")[2].rpartition("-")[0] or version.rpartition("-")[0]

    def packages(self, *names: str | Path) -> Result:
        """Install packages by apt-get; the result, whatever its status."""
        words = ("install", "--yes", "--no-install-recommends", *names)
        self.run("apt-get", "-qq", "update")
        return self.run("apt-get", "-q", *words, check=False, DEBIAN_FRONTEND="noninteractive")


def missing() -> str:
    """What a root folder needs and this machine lacks; "" if it has all."""
    if os.geteuid():
        return "root, for chroot(8)"
    return "" if shutil.which("mmdebstrap") else "mmdebstrap"


def cached(release: Release) -> Root:
    """The root of a release with its programs, made if it is missing.  UserError if it fails."""
    key = repr((release.suites, _command(release)))
    name = f"{release.suite}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    folder = cache_dir() / "distributions" / name
    folder.parent.mkdir(exist_ok=True)
    with file_lock(lock_of(folder)):
        if not folder.is_dir():
            with draft_of(folder) as draft:
                _make(release, draft)
    return Root(release, folder)


def _command(release: Release) -> tuple[str, ...]:
    settings = ("Acquire::Languages none", *_of_apt())
    return (
        *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(release.packages)}"),
        *(f"--aptopt={setting}" for setting in settings),
        *(f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "locale", "info")),
        "--dpkgopt=force-unsafe-io",
    )


def _of_apt() -> list[str]:
    """This machine's settings for an archive whose lists are old, as a copy of it may be."""
    settings = run("apt-config", "dump", "Acquire").stdout.splitlines()
    return [line for line in settings if line.startswith("Acquire::Check-")]


def _make(release: Release, draft: Path) -> None:
    lists = draft.with_name("sources.list")
    lists.write_text(sources(release.suites))
    run(*NAMESPACES, *_command(release), release.suite, draft, lists, timeout=SECONDS,
        env={"TMPDIR": str(draft.parent)})  # fmt: skip


def _launcher() -> str:
    """A script that starts this machine's Python in a root, with this machine's libraries."""
    triplet = sysconfig.get_config_var("MULTIARCH")
    libraries = ":".join(f"/{HOST}/{lib}/{triplet}" for lib in ("usr/lib", "lib"))
    paths = (str(ROOT), *(path for path in sys.path if path.endswith("-packages")))
    places = ":".join(f"/{HOST}{Path(path).resolve()}" for path in paths)
    loader = Path("/lib64/ld-linux-x86-64.so.2").resolve()
    return f"""#!/bin/sh
PYTHONHOME=/{HOST}{sys.base_prefix} PYTHONPATH={places}
export PYTHONHOME PYTHONPATH
exec /{HOST}{loader} --argv0 {PYTHON} --library-path {libraries} \\
	/{HOST}{Path(sys.executable).resolve()} "$@"
"""


@contextlib.contextmanager
def copy_of(root: Root, folder: Path) -> Iterator[Root]:
    """A copy of a root that tests may change; it is removed."""
    name = folder / root.release.suite
    subprocess.run(("cp", "-a", "--reflink=auto", root.folder, name), check=True)
    try:
        (name / HOST).mkdir()
        (name / PYTHON[1:]).write_text(_launcher())
        (name / PYTHON[1:]).chmod(0o755)
        # mmdebstrap leaves none; apt in the root needs the address of its archive
        shutil.copy("/etc/resolv.conf", name / "etc/resolv.conf")
        yield Root(root.release, name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
