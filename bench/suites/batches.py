# SPDX-License-Identifier: Apache-2.0
"""Tests of a suite that run in the client, in batches, over mounts of one transport."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from testbed.node.mounts import personalities
from testbed.node.programs import call
from testbed.remote import on

__all__ = ["Batch", "Ended", "Mount", "run_batches"]

HERE = Path("/mnt/suite")
# bytes of the output of each test: the end has the verdict
OUTPUT = 60_000
# seconds until a killed process has ended
DEATH = 60.0
# seconds between two looks at a process
POLL = 1.0


class Batch(NamedTuple):
    """Tests that run by one script: more than one of a suite that is slow at start."""

    tests: list[str]
    script: str


class Ended(NamedTuple):
    """A batch that ran, or a test of it."""

    tests: list[str]
    output: str
    """The end of it."""
    seconds: float
    status: int | None = 0
    """None: killed at the limit."""
    stuck: bool = False
    """Whether a process hangs in the kernel."""


@dataclass(frozen=True)
class Mount:
    """A mount that tests run over, and what its suite wants of it."""

    vers: str
    proto: str
    port: int
    personality: str
    folders: tuple[str, ...]
    """Directories that the suite mounts by itself: during a test, there is no other mount."""
    limit: float
    """Of a test in seconds."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that scripts of tests read."""
        options = f"vers={self.vers},proto={self.proto},port={self.port}"
        return {"OPTIONS": options, "PROTO": self.proto, "PORT": str(self.port), "VERS": self.vers}

    def make(self) -> None:
        """Mount, and compare transport and personality with those requested."""
        HERE.mkdir(exist_ok=True)
        call("mount", "-t", "nfs", "-o", self.environment["OPTIONS"], "server:/export", HERE)
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        (line,) = (line for line in mounts if f" {HERE} " in line)
        assert f"proto={self.proto}" in line
        assert personalities() == ({self.personality} if self.personality else set())

    def run(self, work: Path, batch: Batch) -> Ended:
        """Run a batch in an empty directory."""
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        work.chmod(0o755)
        for name in self.folders:
            (work / name).mkdir()
            (work / name).chmod(0o1777)
        if self.folders:
            call("umount", HERE)
        start = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ("bash", "-c", batch.script), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **self.environment, "WORK": str(work)},
            )  # fmt: skip
            several = len(batch.tests) > 1
            status, stuck = wait(process, self.limit, output.fileno() if several else None)
            seconds = time.monotonic() - start
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT * len(batch.tests)))
            text = output.read().decode(errors="replace")
        if self.folders and not stuck:
            self.make()
        return Ended(batch.tests, text, round(seconds, 1), status, stuck)


@on("client")
def run_batches(mount: Mount, batches: list[Batch], at_once: int, budget: float) -> list[Ended]:
    """Run batches, some at once, until the budget of seconds is spent; returns those that ran."""
    end = time.monotonic() + budget
    mount.make()
    # umask of the tests' authors, whatever this login has
    os.umask(0o022)
    done: list[Ended] = []
    # its next() is atomic
    rest = iter(batches)

    def some(work: Path) -> None:
        """Run batches in this directory until there is no other, or no time."""
        for batch in rest:
            done.append(mount.run(work, batch))
            if time.monotonic() > end or any(each.stuck for each in done):
                return

    # the first name is the one in the exports that fstests and nfstest mount
    works = [HERE / f"work{n or ''}" for n in range(at_once)]
    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(some, works))
    if not any(each.stuck for each in done):
        for work in works:
            shutil.rmtree(work, ignore_errors=True)
        call("umount", HERE)
    return done


def wait(
    process: subprocess.Popen[bytes], limit: float, output: int | None
) -> tuple[int | None, bool]:
    """Status (None: at the limit), and whether processes did not end.

    ``output`` is the file of several tests: the limit begins anew when it has grown.
    """
    end = time.monotonic() + limit
    size = 0
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL), False
        if output is not None and (now := os.fstat(output).st_size) > size:
            size, end = now, time.monotonic() + limit
    return None, not killed(process)


def killed(process: subprocess.Popen[bytes]) -> bool:
    """Kill all processes of its session.  False if one does not end."""
    end = time.monotonic() + DEATH
    while left := session(process.pid):
        if time.monotonic() > end:
            return False
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)
    process.wait()
    return True


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # after the name, which may have spaces
            state, _, _, number = path.read_text().rpartition(") ")[2].split()[:4]
            if int(number) == leader and state not in "XZ":
                pids.append(int(path.parent.name))
    return pids
