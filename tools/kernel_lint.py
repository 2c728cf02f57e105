#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check kmod/ with checkpatch --strict and sparse; name the tools that are missing.

checkpatch.pl is part of the kernel's source: $CHECKPATCH, or Debian's package linux-source.
sparse needs root and the lab's image and kernel, whose compiler and headers it uses.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.config import KERNELS

ROOT = Path(__file__).parents[1]
SOURCE = Path("/usr/src")
SCRIPTS = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")
# macros of trace events, which checkpatch takes for functions; types that user space lacks;
# macros that define a parameter, and name it more than once
EXPECTED = {
    "trace.h": ("OPEN_ENDED_LINE", "PARENTHESIS_ALIGNMENT"),
    "trace_server.h": (
        *("OPEN_ENDED_LINE", "PARENTHESIS_ALIGNMENT", "COMPLEX_MACRO"),
        *("MULTISTATEMENT_MACRO_USE_DO_WHILE", "MACRO_ARG_REUSE"),
    ),
    "wire.h": ("PREFER_KERNEL_TYPES",),
    "params.c": ("MACRO_ARG_REUSE",),
}


def main() -> int:
    """Run both tools; the number of those that found something."""
    with tempfile.TemporaryDirectory() as name:
        return sum((checkpatch(Path(name)), sparse(Path(name))))


def checkpatch(folder: Path) -> bool:
    """Whether checkpatch found something in the transport module's source."""
    script = _script(folder)
    if not script:
        print("missed: checkpatch --strict (apt install linux-source, or set CHECKPATCH)")
        return False
    options = ("--strict", "--no-tree", "--terse", "--show-types", "--no-summary", "-f")
    has_findings = False
    for path in _files():
        ignored = ",".join(EXPECTED.get(path.name, ()))
        more = (f"--ignore={ignored}",) if ignored else ()
        result = run(script, *more, *options, path, check=False, timeout=300)
        has_findings |= bool(result.returncode)
        print(result.stdout, end="")
    return has_findings


def sparse(folder: Path) -> bool:
    """Whether sparse found something; it sees the headers of the lab's first kernel."""
    base, booted = image.find(True), _kernel()
    needs = {
        "the program sparse": shutil.which("sparse"),
        "the image of `make image`": base and booted,
    }
    missing = [need for need, there in needs.items() if not there]
    if missing or not base or not booted:
        print(f"missed: sparse, which needs {', '.join(missing)}")
        return False
    copy = shutil.copytree(ROOT / "kmod", folder / "kmod", ignore=shutil.ignore_patterns("card"))
    result = kernels.compile_module(copy, booted, base, folder / "built.ko", "C=2")
    lines = (result.stdout + result.stderr).splitlines()
    # the kernel's headers have warnings of their own
    ours = [line for line in lines if "/opt/kmod/" in line]
    print("\n".join(ours), end="\n" if ours else "")
    return bool(ours)


def _kernel() -> kernels.Kernel | None:
    try:
        return kernels.find(KERNELS[0])
    except UserError:
        return None


def _files() -> list[Path]:
    # the model of a card, and its provider for user space, are no part of the module
    card = ROOT / "kmod" / "card"
    files = (path for path in (ROOT / "kmod").rglob("*.[ch]") if card not in path.parents)
    made = ("features.h",)
    return sorted(p for p in files if p.name not in made and not p.name.endswith(".mod.c"))


def _script(folder: Path) -> Path | None:
    named = os.environ.get("CHECKPATCH")
    if named:
        return Path(named)
    unpacked = sorted(SOURCE.glob("linux-source-*/scripts/checkpatch.pl"))
    if unpacked:
        return unpacked[-1]
    packed = sorted(SOURCE.glob("linux-source-*.tar.xz"))
    return _unpacked(packed[-1], folder) if packed else None


def _unpacked(archive: Path, folder: Path) -> Path | None:
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = Path(entry.name).name
            # the first Python 3.11 of Debian 12 has no filters for extract()
            wanted = entry.name.split("/")[1:] == ["scripts", name] and name in SCRIPTS
            file = tar.extractfile(entry) if wanted else None
            if file:
                (folder / name).write_bytes(file.read())
                (folder / name).chmod(0o755)
    script = folder / SCRIPTS[0]
    return script if script.exists() else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandError as error:
        sys.exit(f"{error}")
