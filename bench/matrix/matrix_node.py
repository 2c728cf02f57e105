# SPDX-License-Identifier: Apache-2.0
"""Work of a client in one cell of the interoperation matrix; runs in the node.

``python3 - PROTO VERS SEC SECONDS [PERSONALITY]`` prints JSON: for data, metadata, locks and
delegations "ok", or the error.  SECONDS is how long to wait for a delegation; the connection must
have PERSONALITY.  An NFSv3 mount over TCP plays another client.  Never imported by the tests.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE, OTHER = Path("/mnt/matrix"), Path("/mnt/other")
SIZES = (1, 1023, 4096, 5000, 65536, 262_145, 1 << 20, 3_000_001)
NAMES = 400
# before this the server would take a delegation away by force
FORCE = 60.0


def call(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{argv[0]} failed")


def forget() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def data(folder: Path) -> None:
    noise = {size: os.urandom(size) for size in SIZES}
    for size, content in noise.items():
        (folder / f"data-{size}").write_bytes(content)
    forget()
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
    forget()
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


def delegation(folder: Path) -> None:
    """Opened by us, written to by another client: the server calls us back first."""
    end = time.monotonic() + float(sys.argv[4])
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


def personality(_: Path) -> None:
    """In effect, on each of our connections; callbacks have none of their own."""
    in_effect = set()
    for state in Path("/sys/kernel/debug/nfsrdma").glob("[0-9]*/connection"):
        in_effect.update(re.findall(r"^personality (.*)$", state.read_text(), re.MULTILINE))
    expected = sys.argv[5]
    assert in_effect == {expected}, f"found {', '.join(sorted(in_effect))}, expected {expected}"


def tried(work: Callable[[Path], None], folder: Path) -> str:
    try:
        work(folder)
    except (AssertionError, OSError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return "ok"


def main() -> None:
    proto, vers, sec = sys.argv[1:4]
    for place in (HERE, OTHER):
        place.mkdir(exist_ok=True)
    call("mount", "-t", "nfs", "-o", "vers=3,proto=tcp,noac", "server:/export", OTHER)
    port = 20049 if proto == "rdma" else 2049
    words = f"vers={vers},sec={sec},proto={proto},port={port}"
    try:
        call("mount", "-t", "nfs", "-o", words, "server:/export", HERE)
        folder = HERE / "cell"
        folder.mkdir()
        works: list[Callable[[Path], None]] = [data, metadata, locks]
        works += [delegation] * (vers != "3") + [personality] * bool(sys.argv[5:])
        results = {work.__name__: tried(work, folder) for work in works}
        call("rm", "-r", folder)
        call("umount", HERE)
    except RuntimeError as error:
        results = {"mount": str(error)}
    call("umount", OTHER)
    print(json.dumps(results))


main()
