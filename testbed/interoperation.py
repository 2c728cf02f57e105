# SPDX-License-Identifier: Apache-2.0
"""A client's operations over one mount, for pairs of our modules and the kernel's."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from testbed.node.mounts import drop_caches, personalities
from testbed.remote import on

__all__ = ["PATIENT", "cell"]

# for a delegation, in seconds
PATIENT = 60.0
HERE, OTHER = Path("/mnt/matrix"), Path("/mnt/other")
SIZES = (1, 1023, 4096, 5000, 65536, 262_145, 1 << 20, 3_000_001)
NAMES = 400
# before this the server would take a delegation away by force
FORCE = 60.0


@on("client", timeout=900)
def cell(
    proto: str, vers: str, sec: str, wait: float = PATIENT, personality: str = ""
) -> dict[str, str]:
    """The results of a client by kind of work: "ok", or the error.

    ``wait``: seconds for a delegation.  The connection must have the personality, if one is given.
    An NFSv3 mount over TCP plays another client.
    """
    port = 20049 if proto == "rdma" else 2049
    options, folder = f"vers={vers},sec={sec},proto={proto},port={port}", HERE / "cell"
    works: dict[str, Callable[[], None]] = {
        "data": lambda: data(folder),
        "metadata": lambda: metadata(folder),
        "locks": lambda: locks(folder),
    }
    if vers != "3":
        works["delegation"] = lambda: delegation(folder, wait)
    if personality:
        works["personality"] = lambda: has_personality(personality)
    for place in (HERE, OTHER):
        place.mkdir(exist_ok=True)
    call("mount", "-t", "nfs", "-o", "vers=3,proto=tcp,noac", "server:/export", OTHER)
    try:
        call("mount", "-t", "nfs", "-o", options, "server:/export", HERE)
        folder.mkdir()
        results = {name: tried(work) for name, work in works.items()}
        call("rm", "-r", folder)
        call("umount", HERE)
    except RuntimeError as error:
        results = {"mount": str(error)}
    call("umount", OTHER)
    return results


def call(*argv: str | Path) -> None:
    """Run a program; RuntimeError has the text of its error, and no more."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{argv[0]} failed")


def data(folder: Path) -> None:
    noise = {size: os.urandom(size) for size in SIZES}
    for size, content in noise.items():
        (folder / f"data-{size}").write_bytes(content)
    drop_caches()
    for size, content in noise.items():
        assert (folder / f"data-{size}").read_bytes() == content, f"{size} bytes differ"
        theirs = OTHER / folder.name / f"data-{size}"
        assert theirs.read_bytes() == content, f"{size} bytes differ on the server"


def metadata(folder: Path) -> None:
    many = folder / "many"
    many.mkdir()
    for number in range(NAMES):
        (many / f"a-name-that-is-long-enough-{number}").touch()
    (many / "link").symlink_to("x" * 1500)
    (many / "a-name-that-is-long-enough-0").rename(folder / "renamed")
    drop_caches()
    assert len(list(many.iterdir())) == NAMES, "names are missing"
    assert str((many / "link").readlink()) == "x" * 1500
    os.link(folder / "renamed", folder / "linked")
    assert (folder / "linked").stat().st_nlink == 2, "no second link"
    os.truncate(folder / "linked", 12345)
    (folder / "linked").chmod(0o640)
    assert (OTHER / folder.name / "renamed").stat().st_size == 12345


def locks(folder: Path) -> None:
    mine, theirs = folder / "locked", OTHER / folder.name / "locked"
    mine.write_text("locked\n")
    with mine.open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert lockable(theirs) == "no", "two clients have the lock"
        fcntl.lockf(held, fcntl.LOCK_UN)
    assert lockable(theirs) == "yes", "the lock was not given back"


LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("yes")
    except BlockingIOError:
        print("no")
"""


def lockable(path: Path) -> str:
    """By another process: a process never stands in its own way."""
    argv = (sys.executable, "-c", LOCK, path)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def operation(name: str) -> int:
    rows = Path("/proc/self/mountstats").read_text().split(f" mounted on {HERE} ")[1].splitlines()
    return next((int(r.split()[1]) for r in rows if r.split()[:1] == [f"{name}:"]), 0)


def delegation(folder: Path, seconds: float) -> None:
    """Opened by us, written to by another client: the server calls us back first."""
    end = time.monotonic() + seconds
    number = 0
    # the server gives none before it knows that it can call
    while not operation("DELEGRETURN"):
        assert time.monotonic() < end, "no delegation was given"
        recalled(folder, f"delegated-{number}")
        number += 1
        time.sleep(0.5)


def recalled(folder: Path, name: str) -> None:
    mine, theirs = folder / name, OTHER / folder.name / name
    theirs.write_text("before\n")
    with mine.open() as file:
        file.read()
        start = time.monotonic()
        theirs.write_text("after\n")
        took = time.monotonic() - start
    assert mine.read_text() == "after\n", "the other client's write is not seen"
    assert took < FORCE, "the delegation was not given back when it was recalled"


def has_personality(expected: str) -> None:
    in_effect = personalities()
    assert in_effect == {expected}, f"found {', '.join(sorted(in_effect))}, expected {expected}"


def tried(work: Callable[[], None]) -> str:
    try:
        work()
    except (AssertionError, OSError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return "ok"
