# SPDX-License-Identifier: Apache-2.0
"""``python -m wire.fuzz SECONDS``: libFuzzer over kmod/wire/*.c and lib/*.c."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.command import run
from wire import client_seeds, optimistic_seeds
from wire.native import COMPILER, FLAGS, SOURCES

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
CLANG = shutil.which("clang")
_SANITIZERS = "address,undefined"
_OUT = HERE.parents[1] / "out" / "fuzz"
LIBRARY = HERE.parents[1] / "lib"
# the target answers in the place of the system
_STANDING_IN = ("-Dclock_gettime=fuzz_clock", "-Depoll_wait=fuzz_epoll", "-D_GNU_SOURCE")
_LINKED = ("-ltirpc", "-lrdmacm", "-libverbs", "-lpthread", "-lm")


class Target(NamedTuple):
    """A target of libFuzzer: a source, its seeds, and whether it has those of the library, too."""

    source: str
    corpus: str
    seeds: Callable[[Path], list[Path]]
    """Gets a folder, in which it may write the seeds; returns the seeds."""
    library: bool


TARGETS = {
    "wire": Target("fuzz_wire", "corpus", lambda _folder: sorted(SEEDS.iterdir()), False),
    "client": Target("fuzz_client", "client-corpus", client_seeds.write, True),
    "optimistic": Target("fuzz_optimistic", "optimistic-corpus", optimistic_seeds.write, True),
}


def build(name: str, folder: Path, *, libfuzzer: bool) -> Path:
    """A program with a target and libFuzzer, or with drive.c in its place.

    CommandError where clang has no libFuzzer.
    """
    target = TARGETS[name]
    sources: list[Path | str] = [HERE / f"{target.source}.c"]
    path = folder / (target.source if libfuzzer else f"drive-{name}")
    if not libfuzzer:
        sources.append(HERE / "drive.c")
    return _build(sources, path, library=target.library, libfuzzer=libfuzzer)


def build_checks(folder: Path) -> Path:
    """A program that runs one check of the library: see check_client.c."""
    wrapped = "-Wl,--wrap=calloc"
    path = folder / "check_client"
    return _build([HERE / "check_client.c", wrapped], path, library=True, libfuzzer=False)


def _build(sources: list[Path | str], path: Path, *, library: bool, libfuzzer: bool) -> Path:
    compiler = CLANG if libfuzzer else COMPILER
    assert compiler
    sanitizers = f"fuzzer,{_SANITIZERS}" if libfuzzer else _SANITIZERS
    flags = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    more = _library() if library else ()
    # on a busy host
    run(compiler, *FLAGS, *flags, *SOURCES, *sources, *more, "-o", path, timeout=600)
    return path


def _library() -> tuple[str | Path, ...]:
    """The library's own sources, the encoders that rpcgen made, and what they are linked with."""
    run("make", "-s", "-C", LIBRARY)
    tirpc = run("pkg-config", "--cflags", "libtirpc").stdout.split()
    generated = LIBRARY / "build"
    include = (*_STANDING_IN, f"-I{LIBRARY}", f"-I{generated}", *tirpc)
    return (*sorted(LIBRARY.glob("*.c")), generated / "nfs3_xdr.o", *include, *_LINKED)


def main(seconds: str) -> int:
    """The same time for each target; ends at the first that fails."""
    share = int(seconds) // len(TARGETS)
    return next(filter(None, (_fuzz(name, share) for name in TARGETS)), 0)


def _fuzz(name: str, seconds: int) -> int:
    corpus = _OUT / TARGETS[name].corpus
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = {each.parent for each in TARGETS[name].seeds(_OUT / f"{name}-seeds")}
    # an input takes microseconds; the process may wait for a processor for many seconds
    limits = (f"-max_total_time={seconds}", "-max_len=1024", "-timeout=300")
    where: tuple[str | Path, ...] = (f"-artifact_prefix={_OUT}/", corpus, *seeds)
    program = build(name, _OUT, libfuzzer=True)
    return subprocess.run((program, *limits, *where), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
