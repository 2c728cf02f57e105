# SPDX-License-Identifier: Apache-2.0
"""Part of suites.py that runs in the client: some tests of a suite over mounts of one transport.

Runs as ``python3 suites_node.py REQUEST`` with JSON.  It mounts, verifies the transport and its
personality, and runs some tests at once, each in an empty directory of the mount, until the budget
of seconds is spent.  For a suite that mounts by itself, it makes the directories that the suite
mounts, and unmounts during the test; such tests run one after the other.

Prints JSON: the tests that it ran, with exit status (null: killed at the limit), seconds and the
end of the output; and whether a process hangs in the kernel.
"""

from __future__ import annotations

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
# bytes of the output: the end has the verdict
OUTPUT = 60_000
# seconds until a killed process has ended
DEATH = 60.0
ASKED: dict[str, Any] = json.loads(sys.argv[1])


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
    found = set(personality.in_effect(personality.client_transports()))
    if found != expected:
        raise SystemExit(f"personality: requested {expected}, found {found}")


def run(work: Path, script: str) -> dict[str, Any]:
    """A test's status, seconds and output; ``stuck`` if its processes do not end."""
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
            ("bash", "-c", script), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **ASKED["environment"], "WORK": str(work)},
        )  # fmt: skip
        status, stuck = wait(process)
        seconds = time.monotonic() - start
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT))
        text = output.read().decode(errors="replace")
    if ASKED["folders"] and not stuck:
        mount()
    return {"status": status, "seconds": round(seconds, 1), "output": text, "stuck": stuck}


def wait(process: subprocess.Popen[bytes]) -> tuple[int | None, bool]:
    try:
        return process.wait(ASKED["limit"]), False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(DEATH)
    except subprocess.TimeoutExpired:
        return None, True
    return None, False


def some(
    work: Path, tests: Iterator[dict[str, str]], end: float, done: list[dict[str, Any]]
) -> None:
    """Run tests in this directory until there is no other, or no time."""
    for one in tests:
        done.append({"test": one["test"], **run(work, one["script"])})
        if time.monotonic() > end or any(each["stuck"] for each in done):
            return


def main() -> None:
    end = time.monotonic() + ASKED["budget"]
    mount()
    # umask of the tests' authors, whatever this login has
    os.umask(0o022)
    done: list[dict[str, Any]] = []
    # its next() is atomic
    tests = iter(ASKED["tests"])
    # the first name is the one in the exports that fstests and nfstest mount
    works = [HERE / f"work{n or ''}" for n in range(ASKED["at_once"])]
    with ThreadPoolExecutor(len(works)) as pool:
        for ended in [pool.submit(some, work, tests, end, done) for work in works]:
            ended.result()
    if not any(one["stuck"] for one in done):
        for work in works:
            shutil.rmtree(work, ignore_errors=True)
        call("umount", HERE)
    print(json.dumps(done), flush=True)


main()
