# SPDX-License-Identifier: Apache-2.0
"""A script of mount.nfs' name stands in for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit.requests_made import asks

from nfsrdma_tools.errors import CommandError
from nfsrdma_tools.host.nfs.mounting import MountError, mount_nfs
from nfsrdma_tools.host.nfs.mounts import Target


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("Connection refused for localhost:/export on /mnt", "refuses rdma.*port 20049"),
        ("access denied by server while mounting localhost:/export", "does not export '/export'"),
        (
            "mounting localhost:/export failed, reason given by server: No such file or directory",
            "has no export '/export'",
        ),
        (
            "requested NFS version or transport protocol is not supported for localhost:/export",
            "does not offer NFS 4.2 over rdma",
        ),
        ("Connection timed out for localhost:/export on /mnt", "does not answer on rdma"),
        ("No route to host for localhost:/export on /mnt", "is unreachable"),
        ("No such device for localhost:/export on /mnt", "no rdma device has a route to localhost"),
        ("Protocol error", "the rdma connection to localhost failed"),
        ("an incorrect mount option was specified for /mnt", "rejects these options"),
        ("rpc.statd is not running but is required for remote locking.\nE: nolock", "rpc.statd"),
    ],
)
def test_refusals_are_one_clear_line(stand_in: Path, words: str, meant: str) -> None:
    stand_in.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nmount.nfs: {words}\nEND\nexit 32\n")
    with pytest.raises(MountError, match=meant) as caught:
        mount_nfs(asks(), Path("/mnt"), timeout=30)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_refusal_nobody_knows_is_handed_on(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: the moon is full >&2\nexit 32\n")
    with pytest.raises(CommandError, match="the moon is full"):
        mount_nfs(asks(), Path("/mnt"), timeout=30)


def test_arguments_arrive_as_they_are(stand_in: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {said}\n')
    target = Target.parse("127.0.0.1:/a b;$(touch x)\n'%s")
    directory = Path("/mnt/-x $(y)\n")
    mount_nfs(asks(target=target, vers="3", transport="tcp"), directory, timeout=30)
    assert said.read_text().split("\0")[:-1] == [
        str(target), str(directory), "-o", "vers=3,proto=tcp,retry=0",
    ]  # fmt: skip


def test_a_mount_that_hangs_ends_and_leaves_no_process(stand_in: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 1000\n")
    with pytest.raises(MountError, match="did not answer within 2 s"):
        mount_nfs(asks(), Path("/mnt"), timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_mount_ends_with_a_killed_toolkit(stand_in: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # the fifo is at its end as soon as the last one who has it open for writing is gone
    stand_in.write_text(f"#!/bin/sh\nexec >{fifo}\necho started\nexec sleep 1000\n")
    code = (
        "from pathlib import Path\n"
        "from nfsrdma_tools.host.nfs.mounting import MountRequest, mount_nfs\n"
        "from nfsrdma_tools.host.nfs.mounts import Target\n"
        "mount_nfs(MountRequest(Target('127.0.0.1', '/x'), Path('/mnt')), Path('/mnt'), 1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as child, fifo.open() as said:
        assert said.readline() == "started\n"
        child.kill()
        assert said.read() == ""
