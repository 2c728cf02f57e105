# SPDX-License-Identifier: Apache-2.0
"""The steps of a release: each writes files into a folder of its own.

A step whose folder exists is done: an interrupted release continues with the next one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.command import is_installed, run
from nfsrdma_tools.errors import CommandError, UserError
from release import recorded
from release.archives import compress, normalize

__all__ = ["STEPS", "Build", "NotBuiltError"]

# nfsrdma-tools-VERSION.tar.gz is the collection: Ansible names it so
NAME = "nfsrdma"
SPEC = "tools/release/nfsrdma.spec"
SECONDS = 7200
PIP = ("-m", "pip", "-q", "--disable-pip-version-check")


class NotBuiltError(Exception):
    """The machine cannot build a file; the text says why."""


class Build(NamedTuple):
    """A release that is being built."""

    root: Path
    work: Path
    version: str
    commit: str
    epoch: int
    record: Path | None
    """The recorded packages, to build with these only; None: with the newest."""

    @property
    def tree(self) -> Path:
        """The sources, as the source archive has them."""
        return self.work / "tree" / f"{NAME}-{self.version}"

    @property
    def python(self) -> Path:
        """The Python that builds: that of a venv with the recorded packages."""
        return self.work / "python/venv/bin/python"

    def run(self, *argv: str | Path, folder: Path | None = None, **environment: str) -> str:
        """Run a program in a folder, by default that of the sources; returns its output."""
        known = {
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "PYTHONPATH": str(self.tree),
            # Ansible requires UTF-8
            "LC_ALL": "C.UTF-8",
            # a tool says in colours or columns what is written into files
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONHASHSEED": "0",
        }
        return output(*argv, folder=folder or self.tree, environment=known | environment)


def output(
    *argv: str | Path, folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a program and return its output; if it fails, print all that it printed.

    The reason may be far above the last line, which is all that CommandError has.
    """
    done = run(*argv, timeout=SECONDS, cwd=folder, env=environment, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise CommandError(done.argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


def tree(build: Build, out: Path) -> None:
    """Unpack the commit."""
    tar = out / "source.tar"
    git_archive(build, tar)
    run("tar", "-C", out, "-xf", tar)
    tar.unlink()


def git_archive(build: Build, tar: Path) -> None:
    """The commit as a tar file, with modes that no umask changes."""
    prefix = f"--prefix={NAME}-{build.version}/"
    argv = ("git", "-C", build.root, "-c", "tar.umask=0022", "archive", "--format=tar", prefix)
    run(*argv, f"--output={tar}", build.commit)


def source(build: Build, out: Path) -> None:
    """The source archive."""
    tar = out / "source.tar"
    git_archive(build, tar)
    (out / f"{NAME}-{build.version}.tar.gz").write_bytes(compress(tar.read_bytes()))
    tar.unlink()


def python(build: Build, out: Path) -> None:
    """A venv with what builds the Python packages."""
    output(sys.executable, "-m", "venv", out / "venv")
    pip = (out / "venv/bin/python", *PIP)
    if build.record:
        lines = build.record.read_text().splitlines()
        names = [f"{n}=={v}" for n, v in recorded.versions(lines, "python").items()]
        build.run(*pip, "install", "--no-deps", *names)
    else:
        build.run(*pip, "install", *requirements(build))
    frozen = build.run(*pip, "freeze", "--all", "--exclude=pip", "--exclude=setuptools")
    lines = [f"python {line.replace('==', ' ')}" for line in sorted(frozen.splitlines())]
    if build.record:
        recorded.require(build.record, "python", lines)
        recorded.require(build.record, "host", recorded.host())
    (out / recorded.FILE).write_text("\n".join([*recorded.host(), *lines]) + "\n")


def requirements(build: Build) -> list[str]:
    """What the wheel and its extras, and the tools of a release, need."""
    import tomllib

    project = tomllib.loads((build.tree / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [*project["dependencies"], *extras["release"]]
    known = re.compile(r"nfsrdma-tools\[(.*)\]")
    while any(known.match(name) for name in names):
        name = next(name for name in names if known.match(name))
        names.remove(name)
        match = known.match(name)
        names += [each for extra in match[1].split(",") for each in extras[extra]] if match else []
    return names


def wheel(build: Build, out: Path) -> None:
    """The wheel, with its man pages."""
    build.run(
        *(build.python, "-m", "hatchling", "build", "-t", "wheel", "-d", out),
        HATCH_BUILD_HOOK_ENABLE_CUSTOM="true",
    )


def zipapp(build: Build, out: Path) -> None:
    """The program in one file."""
    build.run(build.python, build.tree / "tools/portable.py", out)


def collection(build: Build, out: Path) -> None:
    """The Ansible collection."""
    galaxy = (build.python, "-m", "ansible", "galaxy", "collection", "build")
    build.run(*galaxy, build.tree / "playbooks", "--output-path", out)
    (archive,) = out.glob("*.tar.gz")
    normalize(archive, build.epoch)


def packages(build: Build, out: Path) -> None:
    """Debian's packages; nfsrdma-dkms is the one for DKMS."""
    if not is_installed("mmdebstrap"):
        raise NotBuiltError("Debian packages: mmdebstrap is not installed")
    output(sys.executable, build.root / "tools/deb.py", out, folder=build.root)
    made = out / recorded.FILE
    if build.record:
        recorded.require(build.record, "debian", made.read_text().splitlines())


def rpm(build: Build, out: Path) -> None:
    """The source package of RPM; rpmlint reads it, and Debian's rpmbuild builds it as a test."""
    for program in ("rpmbuild", "rpmlint"):
        if not is_installed(program):
            raise NotBuiltError(f"source package of RPM: {program} is not installed")
    top = out / "top"
    sources, spec = top / "SOURCES", top / "SPECS" / Path(SPEC).name
    for folder in (sources, spec.parent):
        folder.mkdir(parents=True)
    copy(build, build.tree / SPEC, spec)
    copy(build, next((build.work / "source").glob("*.tar.gz")), sources)
    macros = {
        # the header of a source package has the scripts with their paths
        "_topdir": ".",
        "_buildhost": "release",
        "dist": "%{nil}",
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        # where pip installs for a prefix; Python would name the folder of the venv
        "python3_sitelib": f"/usr/lib/python3.{sys.version_info.minor}/site-packages",
    }
    build.run("rpmlint", "-c", (build.tree / SPEC).with_name("rpmlint.toml"), build.tree / SPEC)
    build.run(*rpmbuild(macros), "-bs", spec, folder=top)
    (package,) = (top / "SRPMS").glob("*.src.rpm")
    macros |= {"_topdir": str(top), "__python3": str(build.python)}
    build.run(*rpmbuild(macros), "-bb", spec)
    shutil.move(package, out)
    shutil.rmtree(top)


def rpmbuild(macros: dict[str, str]) -> list[str]:
    """The words of rpmbuild with macros."""
    defines = [word for key, value in macros.items() for word in ("--define", f"{key} {value}")]
    return ["rpmbuild", *defines, "--nodeps"]


def copy(build: Build, file: Path, place: Path) -> None:
    """Copy a file, with the mode and the time that a package has for it."""
    made = Path(shutil.copyfile(file, place / file.name if place.is_dir() else place))
    made.chmod(0o644)
    os.utime(made, (build.epoch, build.epoch))


def sbom(build: Build, out: Path) -> None:
    """The bill of materials of the wheel with all its extras, in CycloneDX."""
    venv = out / "venv"
    output(sys.executable, "-m", "venv", "--without-pip", venv)
    lines = (build.work / "python" / recorded.FILE).read_text().splitlines()
    constraints = out / "constraints.txt"
    known = recorded.versions(lines, "python")
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in known.items()))
    (made,) = (build.work / "wheel").glob("*.whl")
    pip = (build.python, *PIP, "--python", venv / "bin/python")
    build.run(*pip, "install", "-c", constraints, f"{made}[all]")
    file = out / f"nfsrdma_tools-{build.version}.cdx.json"
    tool = (build.python, "-m", "cyclonedx_py", "environment", "--output-reproducible")
    build.run(*tool, "--pyproject", build.tree / "pyproject.toml", "--of", "JSON", "-o", file, venv)
    document = json.loads(file.read_text())
    # pyproject.toml takes the version from the package
    document["metadata"]["component"]["version"] = build.version
    document["components"].append(chart_library(build))
    file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    shutil.rmtree(venv)
    constraints.unlink()


def chart_library(build: Build) -> dict[str, Any]:
    """The library of the dashboard's charts, which the wheel contains and no index lists."""
    text = (build.tree / "nfsrdma_tools/live/web/page/uplot.js").read_text()
    found = re.search(r"(https\S+) \(v([\d.]+)\)", text)
    if not found:
        raise UserError("uplot.js has no version", "expected it in the first line")
    return {
        "bom-ref": f"uplot-{found[2]}",
        "type": "library",
        "name": "uPlot",
        "version": found[2],
        "licenses": [{"license": {"id": "MIT"}}],
        "externalReferences": [{"type": "vcs", "url": found[1]}],
    }


def container(build: Build, out: Path) -> None:
    """The container image, with Debian's package of the program in it."""
    if not is_installed("buildah"):
        raise NotBuiltError("container image: buildah is not installed")
    package = build.work / f"packages/nfsrdma-tools_{build.version}_all.deb"
    if not package.exists():
        raise NotBuiltError("container image: it needs the Debian package")
    shutil.copy(package, out)
    output(sys.executable, build.root / "tools/container.py", "", out, folder=build.root)
    (out / package.name).unlink()
    (archive,) = out.glob("*.tar")
    normalize(archive, build.epoch)


STEPS: dict[str, Callable[[Build, Path], None]] = {
    step.__name__: step
    for step in (tree, source, python, wheel, zipapp, collection, sbom, rpm, packages, container)
}
