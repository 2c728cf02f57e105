# SPDX-License-Identifier: Apache-2.0
"""``python -m wire.hostile_replies MESSAGES SEED``: mutated replies to the calls of libnfsrdma.

The library runs under ASan and UBSan in fuzz_client.c, with the replies of client_seeds.py and
the mutations of testbed/peers/mutate.py, for NFSv3 and NFSv4.1 apart.  Exit status 1 after a crash
or a hang.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.peers.mutate import mutated
from wire import client_seeds, fuzz

__all__ = ["Found", "count", "make", "run"]

MOST = 1024
"""Bytes of the longest message to the session of fuzz_client.c."""
_TOGETHER = 1000
_HUNG = 3
"""Exit status of drive.c."""
_VERSIONS = {"NFSv3": 0, "NFSv4.1": client_seeds.NFS4}


class Found(NamedTuple):
    """Numbers of inputs."""

    replies: int
    crashes: list[Path]
    hangs: list[Path]


def make(folder: Path, version: str, messages: int, seed: str) -> list[Path]:
    """Write mutated replies of a version, each with the call of the library that gets it."""
    seeds = [path.read_bytes() for path in client_seeds.write(folder / "seeds")]
    seeds = [each for each in seeds if each[1] & client_seeds.NFS4 == _VERSIONS[version]]
    others = [each[2:] for each in seeds]
    chance = random.Random(f"{seed} {version}")  # noqa: S311 - no secret
    paths = []
    for number in range(messages):
        chosen = chance.choice(seeds)
        # one of four replies is that to another call
        bases = others if number % 4 == 0 else [chosen[2:]]
        reply = mutated(f"{seed} {version}", number, bases)[:MOST]
        paths.append(folder / f"{version}-{number}")
        paths[-1].write_bytes(chosen[:2] + reply)
    return paths


def count(driver: Path, crash: Path, inputs: Sequence[Path]) -> Found:
    """Run the driver over the inputs, and those of a failed run one by one."""
    crashes: list[Path] = []
    hangs: list[Path] = []
    for first in range(0, len(inputs), _TOGETHER):
        together = inputs[first : first + _TOGETHER]
        if not _status(driver, crash, *together):
            continue
        for each in together:
            status = _status(driver, crash, each)
            if status:
                (hangs if status == _HUNG else crashes).append(each)
    return Found(len(inputs), crashes, hangs)


def _status(driver: Path, crash: Path, *inputs: Path) -> int:
    argv: list[str | Path] = [driver, "0", crash, *inputs]
    return subprocess.run(argv, check=False, stderr=subprocess.DEVNULL).returncode


def run(messages: int, seed: str, keep: Path) -> int:
    """Print a line for each version; keeps inputs that crash or hang in a folder."""
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        driver = fuzz.build("client", folder, libfuzzer=False)
        for version in _VERSIONS:
            counts = count(driver, folder / "crash", make(folder, version, messages, seed))
            numbers = f"{len(counts.crashes)} crashes, {len(counts.hangs)} hangs"
            print(f"{version}: {counts.replies} mutated replies, {numbers}", flush=True)
            for path in (*counts.crashes, *counts.hangs):
                keep.mkdir(parents=True, exist_ok=True)
                path.rename(keep / path.name)
                failed = 1
    if failed:
        print(f"the inputs are in {keep}")
    return failed


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], fuzz._OUT / "hostile-replies"))
