# SPDX-License-Identifier: Apache-2.0
"""``victim_node.py SERVER PORT CONTROL SEED COUNT [NAME]``: what a hostile server is done to.

Mounts it, arms one trick after the other at it, does what sets the trick off, and looks what
became of it; then COUNT replies that are mutated.  Meanwhile a mount of an honest server is worked
on.  Prints JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hostile.accepts import ACCEPTS
from hostile.bystander import Bystander
from hostile.replies import OK, TRICKS

HERE, SESSION, GOOD = Path("/mnt/hostile"), Path("/mnt/session"), Path("/mnt/good")
SOFT = "soft,timeo=100,retrans=1,noac,nosharecache"
SIZE, SMALL, PAGE = 8192, 512, 4096
CANARY = b"\x5a" * PAGE


class Buffer:
    """Memory for O_DIRECT with pages around it that nobody may write into."""

    def __init__(self) -> None:
        self.pages = memoryview(mmap.mmap(-1, SIZE + 2 * PAGE))
        self.middle = self.pages[PAGE : PAGE + SIZE]
        self.pages[:PAGE] = self.pages[PAGE + SIZE :] = CANARY

    def intact(self) -> bool:
        return self.pages[:PAGE] == self.pages[PAGE + SIZE :] == CANARY


class Application:
    """The calls that set tricks off, and what has to come of them."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.image = bytearray(self.rng.randbytes(1 << 16))
        self.buffer = Buffer()
        self.folder = HERE / "victim"
        self.folder.mkdir()
        self.names = {f"a-name-of-some-length-{number}" for number in range(40)}
        for name in self.names:
            (self.folder / name).touch()
        (HERE / "victim.data").write_bytes(self.image)
        self.file = os.open(HERE / "victim.data", os.O_RDWR | os.O_DIRECT)

    def remove(self) -> None:
        os.close(self.file)
        for name in self.names:
            (self.folder / name).unlink()
        self.folder.rmdir()
        (HERE / "victim.data").unlink()

    def _read(self, size: int) -> bool:
        at = self.rng.randrange(len(self.image) - size)
        part = self.buffer.middle[:size]
        part[:] = bytes(size)
        done = os.preadv(self.file, [part], at)
        return done == size and part == self.image[at : at + size]

    def read(self) -> bool:
        return self._read(SIZE)

    def small(self) -> bool:
        return self._read(SMALL)

    def write(self) -> bool:
        at, data = self.rng.randrange(len(self.image) - SIZE), self.rng.randbytes(SIZE)
        self.buffer.middle[:] = data
        # whatever happens: what is there is one or the other, and is not looked at again
        self.image[at : at + SIZE] = data
        try:
            return os.pwritev(self.file, [self.buffer.middle], at) == SIZE
        except OSError:
            os.pwritev(self.file, [self.buffer.middle], at)
            raise

    def list(self) -> bool:
        # what was listed before is stale
        (self.folder / "new").touch()
        (self.folder / "new").unlink()
        return set(os.listdir(self.folder)) == self.names  # noqa: PTH208 - names are what is asked

    def session(self) -> bool:
        return SESSION.stat().st_ino > 0


class Server:
    """The conversation with it."""

    def __init__(self, host: str, port: int) -> None:
        self.file = socket.create_connection((host, port)).makefile("rw")

    def ask(self, **what: Any) -> dict[str, Any]:
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()
        answer: dict[str, Any] = json.loads(self.file.readline())
        return answer


@contextmanager
def mounted(where: Path, target: str, options: str) -> Iterator[None]:
    where.mkdir(exist_ok=True)
    words = f"proto=rdma,{options}"
    subprocess.run(("mount", "-t", "nfs", "-o", words, target, where), check=True, timeout=300)
    try:
        yield
    finally:
        subprocess.run(("umount", where), check=True, timeout=300)


def refused(told: dict[str, Any]) -> bool:
    """Whether memory was reached for, in vain: IBV_WC_REM_ACCESS_ERR."""
    statuses = told.get("reached", [])
    return bool(statuses) and set(statuses) == {10}


class Trial:
    """One call of the application after the other, and a verdict on each."""

    def __init__(self, server: Server, application: Application) -> None:
        self.server, self.application = server, application
        self.outcomes: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.found: dict[str, dict[str, Any]] = {}

    def outcome(self, kind: str) -> tuple[str, str]:
        work: Callable[[], bool] = getattr(self.application, kind)
        try:
            return ("ok", "") if work() else ("wrong", "")
        except OSError as error:
            return "error", repr(error)

    def after(
        self, name: str, kind: str, may: frozenset[str], reaches: bool, thorough: bool = True
    ) -> None:
        """Do it, and when ``thorough`` once more with a server that is honest again."""
        began = time.monotonic()
        result, error = self.outcome(kind)
        told = self.server.ask(over=True)
        told |= {"outcome": result, "error": error, "seconds": round(time.monotonic() - began, 2)}
        again, why = self.outcome(kind) if thorough else ("ok", "not done")
        fine = result in may and again == "ok" and self.application.buffer.intact()
        fine = fine and told["played"] and refused(told) == reaches
        self.outcomes[result] += 1
        self.found[name] = told
        if not fine:
            self.failures.append({"name": name, "again": again, "why": why, **told})


def tricks(trial: Trial, only: str) -> None:
    for trick in TRICKS.values():
        if only in trick.name:
            trial.server.ask(trick=trick.name)
            trial.after(trick.name, trick.on, trick.may, trick.reaches)


def accepts(trial: Trial, only: str) -> None:
    for name in (*ACCEPTS, "honest"):
        if only in name:
            trial.server.ask(accept=name)
            # the first call may find the connection gone; the second one has to work
            trial.outcome("read")
            again, why = trial.outcome("small")
            if again != "ok":
                trial.failures.append({"accept": name, "again": again, "why": why})


def mutants(trial: Trial, seed: str, count: int) -> None:
    kinds = ("read", "small", "list", "write", "session")
    any_end = OK | {"error", "wrong"}
    for number in range(count):
        kind = kinds[number % len(kinds)]
        trial.server.ask(mutate=seed, number=number, on=kind)
        trial.after(f"mutant {number}", kind, any_end, False, number % 10 < len(kinds))


def main() -> None:
    server, port, control, seed, count, *only = sys.argv[1:]
    target, name = f"{server}:/export", "".join(only)
    conversation = Server(server, int(control))
    v3, v41 = f"vers=3,nolock,port={port},{SOFT}", f"vers=4.1,port={port},{SOFT}"
    good = mounted(GOOD, target, "vers=3,port=20049")
    with good, mounted(HERE, target, v3), mounted(SESSION, target, v41):
        application = Application(seed)
        trial = Trial(conversation, application)
        with Bystander(GOOD) as bystander:
            tricks(trial, name)
            accepts(trial, name)
            by_hand = dict(trial.outcomes)
            mutants(trial, seed, int(count))
        application.remove()
    said = {"failures": trial.failures, "by_hand": by_hand, "all": dict(trial.outcomes)}
    print(json.dumps({**said, "bystander": bystander.account(), "found": trial.found}))


main()
