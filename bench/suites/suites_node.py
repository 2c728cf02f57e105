# SPDX-License-Identifier: Apache-2.0
"""Part of bench/suites that runs in the client: some tests of a suite over mounts of one transport.

Runs as ``python3 suites_node.py REQUEST`` with JSON.  It mounts, verifies the transport and its
personality, and runs some tests at once, each in an empty directory of the mount, until the budget
of seconds is spent.  For a suite that mounts by itself, it makes the directories that the suite
mounts, and unmounts during the test; such tests run one after the other.  A suite that is slow at
start runs a batch of tests with one script.

Prints JSON: the batches that it ran, with exit status (null: killed at the limit), seconds and the
end of the output; and whether a process hangs in the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nfsrdma_tools.host.nfs import personality

HERE = Path("/mnt/suite")
# bytes of the output of each test: the end has the verdict
OUTPUT = 60_000
# seconds until a killed process has ended
DEATH = 60.0
# seconds between two looks at a process
POLL = 1.0
ASKED: dict[str, Any] = {}


def call(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]}: {done.stderr.strip() or done.returncode}")


def mount() -> None:
    """Mount, and compare transport and personality with those requested."""
    HERE.mkdir(exist_ok=True)
    call("mount", "-t", "nfs", "-o", ASKED["options"], "server:/export", HERE)
    proto = f"proto={ASKED['proto']}"
    (line,) = (x for x in Path("/proc/self/mounts").read_text().splitlines() if f" {HERE} " in x)
    if proto not in line:
        raise SystemExit(f"requested {proto}, found {line}")
    expected = {ASKED["personality"]} if ASKED["personality"] else set()
    in_effect = set(personality.in_effect(personality.client_transports()))
    if in_effect != expected:
        raise SystemExit(f"personality: requested {expected}, found {in_effect}")


def run(work: Path, batch: dict[str, Any]) -> dict[str, Any]:
    """A batch's status, seconds and output; ``stuck`` if its processes do not end."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    work.chmod(0o755)
    for name in ASKED["folders"]:
        (work / name).mkdir()
        (work / name).chmod(0o1777)
    if ASKED["folders"]:
        call("umount", HERE)
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ("bash", "-c", batch["script"]), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **ASKED["environment"], "WORK": str(work)},
        )  # fmt: skip
        several = len(batch["tests"]) > 1
        status, stuck = wait(process, output.fileno() if several else None)
        seconds = time.monotonic() - start
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT * len(batch["tests"])))
        text = output.read().decode(errors="replace")
    if ASKED["folders"] and not stuck:
        mount()
    return {
        "tests": batch["tests"], "status": status, "seconds": round(seconds, 1),
        "output": text, "stuck": stuck,
    }  # fmt: skip


def wait(process: subprocess.Popen[bytes], output: int | None) -> tuple[int | None, bool]:
    """Status (None: at the limit), and whether processes did not end.

    ``output`` is the file of several tests: the limit begins anew when it has grown.
    """
    end = time.monotonic() + ASKED["limit"]
    size = 0
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL), False
        if output is not None and (now := os.fstat(output).st_size) > size:
            size, end = now, time.monotonic() + ASKED["limit"]
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


def some(
    work: Path, batches: Iterator[dict[str, Any]], end: float, done: list[dict[str, Any]]
) -> None:
    """Run batches in this directory until there is no other, or no time."""
    for batch in batches:
        done.append(run(work, batch))
        if time.monotonic() > end or any(each["stuck"] for each in done):
            return


def main() -> None:
    ASKED.update(json.loads(sys.argv[1]))
    end = time.monotonic() + ASKED["budget"]
    mount()
    # umask of the tests' authors, whatever this login has
    os.umask(0o022)
    done: list[dict[str, Any]] = []
    # its next() is atomic
    batches = iter(ASKED["batches"])
    # the first name is the one in the exports that fstests and nfstest mount
    works = [HERE / f"work{n or ''}" for n in range(ASKED["at_once"])]
    with ThreadPoolExecutor(len(works)) as pool:
        for ended in [pool.submit(some, work, batches, end, done) for work in works]:
            ended.result()
    if not any(result["stuck"] for result in done):
        for work in works:
            shutil.rmtree(work, ignore_errors=True)
        call("umount", HERE)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
