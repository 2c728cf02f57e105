# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks with the kernel's server: what it answers to their calls, and its restart."""

import contextlib
import random
import shutil
import subprocess
import sys
from typing import Any

import pytest

from nfsrdma_tools.client import connect
from nfsrdma_tools.client.blocks import blocks
from nfsrdma_tools.lab.lab import Lab
from testbed.client_files import HERE, TARGET
from testbed.remote import on

pytestmark = [pytest.mark.lab, pytest.mark.nightly]

SIZES = (0, 1, 4096, 262_144, 1_048_577, 3_000_001)


@on("client", timeout=900)
def put_and_get(vers: str) -> list[str]:
    """Blocks of all sizes, their replacement by another store, and a restart of the server.

    With NFSv4.1, puts wait for the end of the server's grace period.
    """
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    options: dict[str, Any] = {"vers": vers, "timeout": 300}
    chance = random.Random(41)  # noqa: S311 - no secret
    versions = [[chance.randbytes(size) for size in SIZES] for _ in range(3)]
    names = [f"kv/{number % 2}/{size}" for number, size in enumerate(SIZES)]
    room = [bytearray(size + 9) for size in SIZES]
    try:
        with contextlib.ExitStack() as stack:
            one = stack.enter_context(blocks(TARGET, sessions=2, **options))
            two = stack.enter_context(blocks(TARGET, **options))
            checked = stack.enter_context(blocks(TARGET, checksum=True, **options))
            for number, version in enumerate(versions):
                for store in (one, two):
                    assert store.put(zip(names, version, strict=True)) == [True] * len(SIZES)
                    for name, data in zip(names, version, strict=True):
                        assert (HERE / name).read_bytes() == data
                    # the file handles of the other one are gone
                    for each in (one, two, one):
                        found = each.get(zip(names, room, strict=True))
                        assert found == list(SIZES), (number, found)
                        for data, memory in zip(version, room, strict=True):
                            assert memory[: len(data)] == data
                if number == 1:
                    subprocess.run(["systemctl", "restart", "nfs-server"], check=True)
            assert one.exists([*names, "none"]) == [*SIZES, None]
            before = sum(each.stats.calls for each in one._sessions)
            one.get(zip(names, room, strict=True))
            # the arena has room for eight copies
            part = min(one._sessions[0].terms.read_max, 524_288)
            reads = sum(max(1, -(-size // part)) for size in SIZES)
            assert sum(each.stats.calls for each in one._sessions) - before == reads
            # the server keeps the old file, whose file handle stays good
            with connect(TARGET, vers="4.1") as other, other.open(names[3], "r+") as kept:
                assert two.put([(names[3], versions[0][3])]) == [True]
                assert one.get([(names[3], room[3])]) == [SIZES[3]]
                assert room[3][: SIZES[3]] == versions[0][3]
                assert kept.read() == versions[2][3]
            left = [path.name for path in HERE.rglob(".nfsrdma-*")]
            assert two.remove(names) == [True] * len(SIZES)
            assert one.get(zip(names, room, strict=True)) == [None] * len(SIZES)
            (session,) = checked._sessions
            checked.exists(["none"])
            calls = [session.stats.calls]
            assert checked.put([("block", versions[0][3])]) == [True]
            calls.append(session.stats.calls)
            assert checked.get([("block", room[3])]) == [SIZES[3]]
            assert room[3][: SIZES[3]] == versions[0][3]
            # CREATE, two WRITEs and RENAME
            assert calls[1] - calls[0] == 4
            damaged = bytearray((HERE / "block").read_bytes())
            damaged[5] ^= 1
            (HERE / "block").write_bytes(damaged)
            assert checked.get([("block", room[3])]) == [None]
        return left
    finally:
        shutil.rmtree(HERE)


@pytest.mark.parametrize("vers", ("3", "4.1"))
def test_blocks_with_the_kernels_server(solo: Lab, vers: str) -> None:
    assert put_and_get(solo, vers) == []


PROGRAM = """
import os, sys
from nfsrdma_tools.client.blocks import blocks

memory, room = bytearray(os.urandom(300_000)), bytearray(300_000)
with blocks(sys.argv[1], vers="4.1", timeout=60) as store:
    with store.register(memory), store.register(room):
        assert store.put([("kv/a", memory)]) == [True]
        assert store.get([("kv/a", room)]) == [len(room)]
    assert room == memory
    assert store.remove(["kv/a"]) == [True]
print(os.getuid())
"""


@on("client", timeout=300)
def as_a_user() -> str:
    """Blocks of a process that is not root, whose ports are high."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    HERE.chmod(0o777)
    user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    try:
        argv = ("prlimit", "--memlock=unlimited", *user, sys.executable, "-c", PROGRAM, TARGET)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr
    finally:
        shutil.rmtree(HERE)


def test_a_user_has_blocks_with_nfsv4(solo: Lab) -> None:
    assert as_a_user(solo) == "1000\n"
