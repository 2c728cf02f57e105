# SPDX-License-Identifier: Apache-2.0
"""``python -m wire.fuzz SECONDS``: libFuzzer over kmod/wire/*.c, for `make fuzz`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from nfsrdma_tools.command import run
from wire.native import COMPILER, FLAGS, SOURCES

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
CLANG = shutil.which("clang")
_SANITIZERS = "address,undefined"
_OUT = HERE.parents[1] / "out" / "fuzz"


def build_driver(folder: Path) -> Path:
    """A program that runs the target without libFuzzer: see drive.c."""
    assert COMPILER
    target = (HERE / "fuzz_wire.c", HERE / "drive.c")
    return _build(COMPILER, _SANITIZERS, target, folder / "drive")


def build_fuzzer(folder: Path) -> Path:
    """A libFuzzer program; CommandError where clang has no libFuzzer."""
    assert CLANG
    target = (HERE / "fuzz_wire.c",)
    return _build(CLANG, f"fuzzer,{_SANITIZERS}", target, folder / "fuzz_wire")


def _build(compiler: str, sanitizers: str, target: tuple[Path, ...], path: Path) -> Path:
    sanitize = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    run(compiler, *FLAGS, *sanitize, *SOURCES, *target, "-o", path)
    return path


def main(seconds: str) -> int:
    corpus = _OUT / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    # an input takes microseconds; the process may wait for a processor for many seconds
    limits = (f"-max_total_time={seconds}", "-max_len=1024", "-timeout=300")
    where = (f"-artifact_prefix={_OUT}/", corpus, SEEDS)
    return subprocess.run((build_fuzzer(_OUT), *limits, *where), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
