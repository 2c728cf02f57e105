# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nfsrdma_tools.host.nfs import mounting
from nfsrdma_tools.host.nfs.mountinfo import parse


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "inside").mkdir()
    code = (
        "import os, signal; os.close(0); os.open('f', os.O_CREAT); print(flush=1); signal.pause()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path / "inside",
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    child.stdout.readline()
    yield child
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_users_are_named_with_what_they_hold(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (user,) = mounting.users(tmp_path / "inside", "0:99999")
    assert (user.pid, user.holds) == (sleeper.pid, "working folder")
    assert str(user).startswith(f"pid {sleeper.pid} (python")
    (user,) = mounting.users(tmp_path / "inside" / "f", "0:99999")
    assert (user.pid, user.holds) == (sleeper.pid, "open file 0")
    assert mounting.users(tmp_path / "in", "0:99999") == []


def test_mappings_are_found_by_device(sleeper: subprocess.Popen[bytes]) -> None:
    stat = Path(sys.executable).resolve().stat()
    device = f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)}"
    held = {user.pid: user.holds for user in mounting.users(Path("/nowhere"), device)}
    assert held[sleeper.pid] == "mapped file"
    assert os.getpid() not in held


def test_inner_mounts_keep_a_mount_busy() -> None:
    lines = [f"{n} 1 0:{n} / {d} rw - nfs4 s:/ rw" for n, d in ((1, "/m"), (2, "/m/x"), (3, "/mx"))]
    assert mounting.inner_mounts(Path("/m"), parse("\n".join(lines))) == [Path("/m/x")]
