#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the container image from the Debian package in a folder, into its *-container.tar.

Usage: .venv/bin/python tools/container.py [BASE [FOLDER]], by default of dist.  BASE is an image
such as debian:trixie-slim; without it or with "", mmdebstrap makes the base, with the files left
out that Debian's slim images lack.  All files have the time of the commit.
Needs buildah; works without root.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from contained import CONTAINED

from nfsrdma_tools import __version__
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import sources

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "playbooks/monitoring/Containerfile"
SUITES = ("trixie", "trixie-updates", "trixie-security")
NAME = "localhost/nfsrdma-tools"
SECONDS = 3600
LEAST_LAYER = 1 << 20
LEFT_OUT = ("doc", "info", "linda", "lintian", "locale", "man")
"""Folders of /usr/share that Debian's slim images lack; copyright files stay."""


def main(base: str = "", folder: str = "") -> None:
    """Build the image, and print the file with it and its sizes."""
    dist = Path(folder or ROOT / "dist")
    if not (dist / f"nfsrdma-tools_{__version__}_all.deb").exists():
        raise UserError(f"{dist} has no Debian package of {__version__}", "run: make deb")
    with tempfile.TemporaryDirectory(prefix="nfsrdma-container-", dir="/var/tmp") as name:
        work = Path(name)
        work.chmod(0o755)
        image = build(base or made_base(work), dist)
    archive = dist / f"nfsrdma-tools-{__version__}-container.tar"
    archive.unlink(missing_ok=True)
    buildah("push", "--quiet", image, f"oci-archive:{archive}:{image}")
    packed = archive.stat().st_size
    print(f"{archive}: {unpacked(archive) / 1e6:.0f} MB unpacked, {packed / 1e6:.0f} MB packed")


def build(base: str, dist: Path) -> str:
    """Build the image on ``base``; returns its name."""
    image = f"{NAME}:{__version__}"
    buildah(
        *("build", "--isolation=chroot", "--pull=missing", "--quiet", f"--file={RECIPE}"),
        f"--timestamp={epoch()}",
        *(f"--build-arg=BASE={base}", f"--build-arg=VERSION={__version__}", f"--tag={image}", dist),
    )
    return image


def made_base(work: Path) -> str:
    """Make Debian 13 as slim as Debian's own images; returns the name of its image."""
    (work / "sources.list").write_text(sources(SUITES))
    (work / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
    slim = (f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in LEFT_OUT)
    run(
        *(*CONTAINED, "mmdebstrap", "--quiet", "--variant=minbase", *slim),
        *("--dpkgopt=path-include=/usr/share/doc/*/copyright", "--dpkgopt=force-unsafe-io"),
        *("--aptopt=Acquire::Languages none", "trixie", work / "base.tar", work / "sources.list"),
        env={"TMPDIR": str(work), "SOURCE_DATE_EPOCH": epoch()},
        timeout=SECONDS,
    )
    image = f"{NAME}-base:trixie-slim"
    buildah("build", "--quiet", f"--timestamp={epoch()}", f"--tag={image}", work)
    return image


def epoch() -> str:
    """The time of the commit, which each file of the image has."""
    return run("git", "-C", ROOT, "log", "-1", "--format=%ct").stdout.strip()


def unpacked(archive: Path) -> int:
    """The bytes of the files in the layers of an OCI archive."""
    total = 0
    with tarfile.open(archive) as image:
        for blob in image:
            # the other blobs are the manifest and the configuration (OCI image layout)
            layer = image.extractfile(blob) if blob.size > LEAST_LAYER else None
            if layer is not None:
                with tarfile.open(fileobj=layer, mode="r|gz") as files:
                    total += sum(file.size for file in files)
    return total


def buildah(*words: str | Path) -> str:
    """The output of a command of buildah."""
    return run("buildah", *words, timeout=SECONDS).stdout.strip()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except UserError as error:
        sys.exit(f"container: {error}")
