# SPDX-License-Identifier: Apache-2.0
"""``python -m wire.fuzz SECONDS``: libFuzzer over kmod/wire/*.c and lib/*.c, for `make fuzz`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import run
from wire import client_seeds
from wire.native import COMPILER, FLAGS, SOURCES

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
CLANG = shutil.which("clang")
_SANITIZERS = "address,undefined"
_OUT = HERE.parents[1] / "out" / "fuzz"
LIBRARY = HERE.parents[1] / "lib"
# the target answers in the place of the system
_STANDING_IN = ("-Dclock_gettime=fuzz_clock", "-Depoll_wait=fuzz_epoll", "-D_GNU_SOURCE")
_LINKED = ("-ltirpc", "-lrdmacm", "-libverbs", "-lpthread")


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


def build_client_driver(folder: Path) -> Path:
    """The same with the replies to a user-level client: see fuzz_client.c."""
    assert COMPILER
    target = (HERE / "fuzz_client.c", HERE / "drive.c")
    return _build_client(COMPILER, _SANITIZERS, target, folder / "drive-client")


def build_client_fuzzer(folder: Path) -> Path:
    """The same with libFuzzer; CommandError where clang has none."""
    assert CLANG
    target = (HERE / "fuzz_client.c",)
    return _build_client(CLANG, f"fuzzer,{_SANITIZERS}", target, folder / "fuzz_client")


def _build_client(compiler: str, sanitizers: str, target: tuple[Path, ...], path: Path) -> Path:
    """The library's own sources, and the encoders that rpcgen made."""
    run("make", "-s", "-C", LIBRARY)
    tirpc = run("pkg-config", "--cflags", "libtirpc").stdout.split()
    generated = LIBRARY / "build"
    include = (*_STANDING_IN, f"-I{LIBRARY}", f"-I{generated}", *tirpc)
    sources = (*sorted(LIBRARY.glob("*.c")), generated / "nfs3_xdr.o", *target)
    return _build(compiler, sanitizers, (*sources, *include, *_LINKED), path)


def _build(compiler: str, sanitizers: str, target: tuple[str | Path, ...], path: Path) -> Path:
    sanitize = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    run(compiler, *FLAGS, *sanitize, *SOURCES, *target, "-o", path)
    return path


def main(seconds: str) -> int:
    """Half of the time for each target."""
    half = int(seconds) // 2
    client_seeds.write(_OUT / "client-seeds")
    return _fuzz(build_fuzzer, "corpus", SEEDS, half) or _fuzz(
        build_client_fuzzer, "client-corpus", _OUT / "client-seeds", half
    )


def _fuzz(build: Callable[[Path], Path], name: str, seeds: Path, seconds: int) -> int:
    corpus = _OUT / name
    corpus.mkdir(parents=True, exist_ok=True)
    # an input takes microseconds; the process may wait for a processor for many seconds
    limits = (f"-max_total_time={seconds}", "-max_len=1024", "-timeout=300")
    where = (f"-artifact_prefix={_OUT}/", corpus, seeds)
    return subprocess.run((build(_OUT), *limits, *where), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
