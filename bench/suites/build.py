# SPDX-License-Identifier: Apache-2.0
"""Builds a test suite from the user's clone, in a root of the lab's Debian, without a lab.

mmdebstrap makes the root and removes it; the result is a tar of /opt/suite, for nodes.  It holds
the suite as built, and in debs/ the packages that it needs at run time, as Debian's archive has
them: a node installs those that it lacks.  Nodes have no network, and no compilers that are fast
enough.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from pathlib import Path

from bench.cells import OUT
from bench.suites.formats import PLACE, Suite
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import sources
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["built", "install", "version"]

# the tools of all suites: few packages, and one list is easier to keep right than four
_TOOLS = (
    *("autoconf", "automake", "gcc", "libc6-dev", "libtool", "libtool-bin", "make", "pkg-config"),
    *("bc", "e2fsprogs", "gettext", "libacl1-dev", "libaio-dev", "libattr1-dev", "libcap-dev"),
    *("libgdbm-dev", "liburing-dev", "uuid-dev", "xfslibs-dev"),
)
_APT = "apt-get -qq -y --no-install-recommends"
_MINUTES = 60
# in the root: the packages for nodes first, with all that Debian's smallest root lacks
_FETCH = f"""
{_APT} --download-only install $2
mkdir -p {PLACE}/debs
mv /var/cache/apt/archives/*.deb {PLACE}/debs
"""
# in a node
_INSTALL = f"""
mkdir -p {PLACE}
tar -x -C {PLACE} --strip-components=1
for deb in {PLACE}/debs/*.deb; do
	test -e "$deb" || continue
	name=${{deb##*/}}
	dpkg-query --show "${{name%%_*}}" >/dev/null 2>&1 || dpkg-deb --extract "$deb" /
done
ldconfig
"""


def version(source: Path) -> str:
    """The commit of a clone, or a hash of its files."""
    argv = ("git", "-C", source, "describe", "--always", "--dirty")
    result = run(*argv, check=False) if (source / ".git").exists() else None
    return result.stdout.strip() if result and not result.returncode else _hash(source)[:8]


def _hash(source: Path) -> str:
    """Of the files below a folder, but those of git."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and ".git" not in name.parts:
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def built(suite: Suite, source: Path) -> Path:
    """The tar of a suite, built if there is none of this source and this recipe."""
    recipe = repr((_TOOLS, suite.packages, suite.build, _FETCH))
    key = hashlib.sha256((recipe + _hash(source)).encode()).hexdigest()[:16]
    file = OUT / "suites" / "built" / f"{suite.name}-{key}.tar"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        print(f"building {suite.name} (about ten minutes on a busy host)", flush=True)
        # subordinate users, whom mmdebstrap runs as without root, have no access to home folders
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="nfsrdma-suite-") as name:
            work = Path(name)
            work.chmod(0o711)
            _bootstrap(suite, source, work)
            draft = file.with_suffix(".draft")
            run("cp", work / "suite.tar", draft, timeout=600)
            draft.rename(file)
    return file


def _bootstrap(suite: Suite, source: Path, work: Path) -> None:
    with tarfile.open(work / "source.tar", "w") as tar:
        tar.add(source, "source", filter=_without_git)
    (work / "sources.list").write_text(sources(SUITES[KERNELS[0]]))
    done = run(
        *("mmdebstrap", "--quiet", "--variant=minbase", "--format=null"),
        *("--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io"),
        *(f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "doc", "locale", "info")),
        _hook(_FETCH, " ".join(suite.packages)) if suite.packages else _hook(f"mkdir -p {PLACE}"),
        _hook(f"{_APT} install $2 >/dev/null", " ".join(_TOOLS)),
        "--customize-hook=tar-in source.tar /opt",
        _hook(f"cd /opt/source\n{suite.build}"),
        f"--customize-hook=tar-out {PLACE} suite.tar",
        *("trixie", "-", "sources.list"),
        env={"TMPDIR": str(work), "SUITE": PLACE},
        timeout=_MINUTES * 60,
        check=False,
        cwd=work,
    )
    if done.returncode:
        log = OUT / "suites" / "build.log"
        log.write_text(f"{done.stdout}\n{done.stderr}")
        raise UserError(f"{suite.name} was not built", f"see {log}")


def _hook(script: str, words: str = "") -> str:
    """Run a script in the root, with words as its $2."""
    quoted = script.replace("'", "'\\''")
    return f"--customize-hook=chroot \"$1\" sh -ec '{quoted}' sh . '{words}'"


def _without_git(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if ".git" in Path(entry.name).parts:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def install(lab: Nodes, node: str, file: Path) -> None:
    """Unpack a built suite in a node, with the packages that the node lacks."""
    lab.run(node, "sh", "-ec", _INSTALL, stdin=file.read_bytes(), timeout=1800)
