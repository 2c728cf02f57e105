#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the Debian packages of this checkout and check them with lintian.

They are built in a Debian 13 that is made for it, so this machine needs mmdebstrap and git only,
and no root. Usage: .venv/bin/python tools/deb.py [FOLDER [ARCHITECTURE]], by default dist.
With an architecture, such as arm64, Debian's cross compiler makes the packages that differ by it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contained import CONTAINED

from nfsrdma_tools import __version__
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import sources

ROOT = Path(__file__).parents[1]
SUITES = ("trixie", "trixie-updates", "trixie-security")
SECONDS = 7200
# in the new Debian, whose root is $1
HOOKS = (
    'mkdir "$1/build"',
    "copy-in {work}/source /build",
    'chroot "$1" apt-get -qq -y --no-install-recommends build-dep {depends} /build/source',
    # what the packages depend on for the same bytes: tools/release
    'chroot "$1" dpkg-query -W --showformat "debian \\${{Package}} \\${{Version}}\\n"'
    ' | sort -u > "$1/srv/build-packages.txt"',
    'chroot "$1" env -C /build/source dpkg-buildpackage -us -uc {packages}',
    'chroot "$1" sh -c "lintian --display-info --fail-on error,warning,info /build/*.changes"',
    'mv "$1"/build/*.deb "$1/srv"',
    "sync-out /srv {work}/out",
)


# for another architecture; {architecture} is its name
FOREIGN = (
    'chroot "$1" dpkg --add-architecture {architecture}',
    'chroot "$1" apt-get -qq update',
    'chroot "$1" apt-get -qq -y install --no-install-recommends'
    " crossbuild-essential-{architecture}",
)


def main(out: Path, architecture: str = "") -> None:
    """Build the packages and put them into ``out``."""
    # without root, mmdebstrap works as a subordinate user, who cannot enter a home folder
    with tempfile.TemporaryDirectory(
        prefix="nfsrdma-deb-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        work.chmod(0o755)
        copy_source(work / "source")
        (work / "source/debian/changelog").write_text(changelog())
        (work / "sources.list").write_text(sources(SUITES))
        (work / "out").mkdir()
        build(work, architecture)
        out.mkdir(parents=True, exist_ok=True)
        for package in sorted((work / "out").glob("*.deb")):
            print(shutil.copy(package, out))
        shutil.copy(work / "out/build-packages.txt", out)


def copy_source(folder: Path) -> None:
    """Copy what git knows or would add: the working tree without what was built in it."""
    listed = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for path in filter(None, listed.stdout.split("\0")):
        if (ROOT / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)


def changelog() -> str:
    """Debian's changelog: the version, and the commit's date, so that a build can be repeated."""
    control = (ROOT / "debian/control").read_text()
    maintainer = re.search(r"^Maintainer: (.*)", control, re.MULTILINE)
    assert maintainer  # noqa: S101 - dpkg-buildpackage would refuse it
    date = run("git", "-C", ROOT, "log", "-1", "--format=%cD").stdout.strip()
    head = f"nfsrdma-tools ({__version__}) trixie; urgency=medium"
    return f"{head}\n\n  * The changes are in CHANGELOG.md.\n\n -- {maintainer[1]}  {date}\n"


def included() -> Iterator[str]:
    """The packages that the new Debian has before those that the source depends on."""
    yield from ("build-essential", "lintian")
    # programs run there at another time, too: the test of make release-check
    if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
        yield "libfaketime"


def build(work: Path, architecture: str) -> None:
    """Build ``work/source`` into ``work/out``; UserError with the end of the log if it fails."""
    words = {"work": work, "architecture": architecture, "depends": "", "packages": "-b"}
    if architecture:
        words |= {"depends": f"-a{architecture}", "packages": f"-B -a{architecture}"}
    hooks = (each.format(**words) for each in (*(FOREIGN if architecture else ()), *HOOKS))
    argv = (
        *(*CONTAINED, "mmdebstrap", "--quiet", "--variant=apt", "--format=null"),
        *(f"--include={','.join(included())}", "--aptopt=Acquire::Languages none"),
        *("--dpkgopt=force-unsafe-io", *(f"--customize-hook={hook}" for hook in hooks)),
        *("trixie", "-", work / "sources.list"),
    )
    done = run(*argv, env={"TMPDIR": str(work)}, timeout=SECONDS, check=False)
    log = f"{done.stdout}{done.stderr}"
    print(log, file=sys.stderr)
    if done.returncode:
        raise UserError("the packages were not built", "the reason is above")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist"), *sys.argv[2:3])
    except UserError as error:
        sys.exit(f"deb: {error}")
