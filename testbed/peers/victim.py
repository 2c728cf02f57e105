# SPDX-License-Identifier: Apache-2.0
"""Victims of hostile servers: mounts, or sessions of libnfsrdma, and their applications."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from testbed.node import channel
from testbed.peers.application import Application, LibraryApplication, Mount
from testbed.peers.bystander import Bystander
from testbed.peers.connect_replies import ACCEPTS
from testbed.peers.peer import SERVER
from testbed.peers.replies import OK, TRICKS

# of hostile servers that are alike: several, as calls are mostly waited for
PORTS = range(20050, 20058, 2)
GOOD = Path("/mnt/good")
TARGET = f"{SERVER}:/export"
SOFT = "soft,timeo=100,retrans=1,nosharecache"
# NFSv3 requests attributes once an hour; with a session, these requests are the tested Calls
V3, V41 = f"vers=3,nolock,actimeo=3600,{SOFT}", f"vers=4.1,noac,{SOFT}"
# one in nine has a session, which the kernel's client has with one server only
KINDS = (*("read", "small", "list", "write") * 2, "session")
ENOUGH = 5


class Server:
    """The conversation with a hostile server, at the port above its own."""

    def __init__(self, port: int) -> None:
        self.file = socket.create_connection((SERVER, port + 1)).makefile("rw")

    def ask(self, **command: Any) -> dict[str, Any]:
        self.file.write(json.dumps(command) + "\n")
        self.file.flush()
        answer: dict[str, Any] = json.loads(self.file.readline())
        return answer


def refused(outcome: dict[str, Any]) -> bool:
    """Whether memory was reached for, in vain: IBV_WC_REM_ACCESS_ERR."""
    statuses = outcome.get("reached", [])
    return bool(statuses) and set(statuses) == {10}


@dataclass
class Verdicts:
    """Those of all trials."""

    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """a trial went to pieces"""

    @property
    def enough(self) -> bool:
        return self.over.is_set() or len(self.failures) >= ENOUGH


class Trial:
    """One call of the application after the other, and a verdict on each."""

    def __init__(self, server: Server, application: Application, verdicts: Verdicts) -> None:
        self.server, self.application, self.verdicts = server, application, verdicts
        self.outcomes: Counter[str] = Counter()

    def outcome(self, kind: str) -> tuple[str, str]:
        work: Callable[[], bool] = getattr(self.application, kind)
        try:
            return ("ok", "") if work() else ("wrong", "")
        except OSError as error:
            return "stale" if error.errno == errno.ESTALE else "error", repr(error)

    def fail(self, **about: Any) -> None:
        channel.send(f"FAILED: {about}")
        self.verdicts.failures.append(str(about))

    def after(
        self, name: str, kind: str, may: frozenset[str], reaches: bool, thorough: bool = True
    ) -> bool:
        """Do it, and when ``thorough`` once more with a server that is honest again.

        Whether it was done: what was stale before has to be mounted again first.
        """
        began = time.monotonic()
        result, error = self.outcome(kind)
        outcome = self.server.ask(over=True)
        if result == "stale":
            self.application.remount()
            if not outcome["played"]:
                return False
        seconds = round(time.monotonic() - began, 2)
        outcome |= {"outcome": result, "error": error, "seconds": seconds}
        again, why = self.honest(kind) if thorough else ("ok", "not done")
        fine = result in may and again == "ok" and self.application.buffer.intact()
        fine = fine and outcome["played"] and refused(outcome) == reaches
        # what cannot be an answer must not be taken for one
        fine = fine and (result != "wrong" or outcome.get("believable", False))
        self.outcomes[result] += 1
        if not fine:
            self.fail(name=name, on=kind, again=again, why=why, **outcome)
        outcome["message"] = outcome.get("message", "")[:400]
        channel.send(f"{name} on {kind}: {outcome}")
        return True

    def honest(self, kind: str) -> tuple[str, str]:
        """Outcome of a call without interference."""
        result = self.outcome(kind)
        if result[0] == "stale":
            self.application.remount()
            result = self.outcome(kind)
        return result

    def tricks(self, only: str) -> None:
        for trick in TRICKS.values():
            if only in trick.name and trick.on in self.application.kinds:
                self.server.ask(trick=trick.name)
                reaches = trick.reaches and not (trick.kept and self.application.keeps)
                self.after(trick.name, trick.on, trick.may, reaches)

    def accepts(self, only: str) -> None:
        for name in (*ACCEPTS, "honest"):
            if only in name:
                self.server.ask(accept=name)
                # the first call may find the connection gone; the second one has to work
                self.outcome("read")
                again, why = self.outcome("small")
                if again != "ok":
                    self.fail(accept=name, again=again, why=why)

    def mutants(self, seed: str, numbers: Iterable[int]) -> None:
        try:
            for number in numbers:
                if self.verdicts.enough:
                    return
                if not (self.mutant(seed, number) or self.mutant(seed, number)):
                    self.fail(name=f"mutant {number}", again="stale")
        except BaseException:
            self.verdicts.over.set()
            raise

    def mutant(self, seed: str, number: int) -> bool:
        kind = KINDS[number % len(KINDS)]
        kind = kind if kind in self.application.kinds else "read"
        self.server.ask(mutate=seed, number=number, on=kind)
        any_end = OK | {"error", "wrong", "stale"}
        return self.after(f"mutant {number}", kind, any_end, False, number % 20 < 10)


def dealt(numbers: range, lanes: int) -> list[list[int]]:
    """Who does which: the first one those with a session, the others the rest in turn."""
    kinds = {number: KINDS[number % len(KINDS)] for number in numbers}
    rest = [number for number, kind in kinds.items() if kind != "session"]
    sessions = [number for number, kind in kinds.items() if kind == "session"]
    return [sessions, *(rest[lane :: lanes - 1] for lane in range(lanes - 1))]


def mutants(trials: Sequence[Trial], seed: str, numbers: range) -> None:
    with ThreadPoolExecutor(len(trials)) as pool:
        lanes = dealt(numbers, len(trials))
        works = [pool.submit(t.mutants, seed, lane) for t, lane in zip(trials, lanes, strict=True)]
    for work in works:
        work.result()


def mounted(seed: str, stack: ExitStack) -> list[Application]:
    """An application for each port, with mounts that ``stack`` unmounts."""
    mounts = [
        [Mount(Path(f"/mnt/hostile-{number}"), TARGET, f"{V3},port={port}")]
        for number, port in enumerate(PORTS)
    ]
    mounts[0].append(Mount(Path("/mnt/session"), TARGET, f"{V41},port={PORTS[0]}"))
    for mount in chain.from_iterable(mounts):
        stack.enter_context(mount)
    return [Application(own, GOOD, f"{seed} {own[0].where}") for own in mounts]


class Verdict(NamedTuple):
    """The outcomes of calls: of tricks and of all, by their word, and their number."""

    by_hand: dict[str, int]
    all: dict[str, int]
    failures: list[str]


def suffer(seed: str, first: int, count: int, only: str = "", library: bool = False) -> Verdict:
    """Arm one trick after the other at the first server, and do the call that sets it off.

    Then come ``count`` Replies that are mutated, numbered from ``first``, at all servers side by
    side; if that is not 0, the tricks are left out.  ``only`` is in the names of the tricks.
    ``library``: sessions of libnfsrdma take the place of mounts.  Meanwhile a mount of an honest
    server is worked on.
    """
    servers = [Server(port) for port in PORTS]
    with ExitStack() as stack:
        stack.enter_context(Mount(GOOD, TARGET, "vers=3,port=20049"))
        applications: Sequence[Application] = (
            [LibraryApplication(TARGET, port, GOOD, f"{seed} {port}") for port in PORTS]
            if library
            else mounted(seed, stack)
        )
        verdicts = Verdicts()
        both = zip(servers, applications, strict=True)
        trials = [Trial(server, application, verdicts) for server, application in both]
        with Bystander(GOOD):
            if not first:
                trials[0].tricks(only)
                trials[0].accepts(only)
            by_hand = dict(trials[0].outcomes)
            mutants(trials, seed, range(first, first + count))
        for application in applications:
            application.remove()
    outcomes = sum((trial.outcomes for trial in trials), Counter[str]())
    return Verdict(by_hand, dict(outcomes), verdicts.failures)
