# SPDX-License-Identifier: Apache-2.0
"""Connections that do not stay: each is left at a stage of its life."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from testbed.node import channel
from testbed.node.mounts import HERE
from testbed.peers import calls, rpc
from testbed.peers.bystander import Bystander
from testbed.peers.calls import GOOD_PRIVATE, Make
from testbed.peers.peer import Connection, GoneError, Host, Wish
from testbed.peers.site import FOLDER, Site, handles
from testbed.peers.verbs import VerbsError

WISH = Wish(private=GOOD_PRIVATE, receives=16)
SILENT = Wish(private=GOOD_PRIVATE, receives=16, reads_anyway=True, confirms=False)
DIE = "import sys; from testbed.peers.races import Races; Races(sys.argv[1]).die()"


class Left(NamedTuple):
    """The connections that were left, by stage, and those that the server refused, by reason."""

    left: dict[str, int]
    refused: dict[str, int]


class Races:
    """One way to leave after the other; the file is written with what it has."""

    def __init__(self, seed: str) -> None:
        self.host, self.seed = Host(), seed
        self.file, self.folder = handles(FOLDER, "data", ".")
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.stages: dict[str, Callable[[], None]] = {
            "asked": self.asked,
            "accepted": self.accepted,
            "established": lambda: self.host.connect(WISH).close(),
            "a call outstanding": lambda: self.calling(calls.message(calls.getattr_)),
            "a Write chunk outstanding": lambda: self.calling(_READ),
            "a Read chunk outstanding": lambda: self.calling(_WRITE),
            "a Reply chunk outstanding": lambda: self.calling(_LIST),
            "ten calls outstanding": lambda: self.calling(_READ, _WRITE, *[_LIST] * 8),
            "killed": self.killed,
        }

    def asked(self) -> None:
        self.host.begin(WISH).close()

    def accepted(self) -> None:
        """The server's answer is here, and is never confirmed."""
        connection = self.host.begin(SILENT)
        self.host.wait(lambda: bool(connection.private or connection.ended))
        connection.close()

    def calling(self, *makes: Make) -> None:
        self.call(*makes).close()

    def call(self, *makes: Make) -> Connection:
        connection = self.host.connect(WISH)
        site = Site(connection, self.file, self.folder)
        for number, make in enumerate(makes):
            message, xid = make(site), rpc.words(calls.XID + number)
            connection.send(message.replace(rpc.words(calls.XID), xid))
        return connection

    def killed(self) -> None:
        """A process with connections and calls dies."""
        argv, path = (sys.executable, "-c", DIE, self.seed), ":".join(sys.path)
        died = subprocess.run(argv, check=False, timeout=60, env={"PYTHONPATH": path})
        if died.returncode != -signal.SIGKILL:
            raise GoneError("the process that was to be killed failed")

    def die(self) -> None:
        kept = [self.call(_READ, _WRITE) for _ in range(2)]
        os.kill(os.getpid(), signal.SIGKILL if kept else signal.SIGTERM)

    def run(self, count: int) -> Left:
        """Leave ``count`` connections; 0: leave connections until the block of the test ends."""
        left: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        names = list(self.stages)
        for number in range(count) if count else itertools.count():
            if not count and channel.ended():
                break
            name = names[number % len(names)] if number < len(names) else self.rng.choice(names)
            try:
                self.stages[name]()
                left[name] += 1
            except (GoneError, VerbsError, TimeoutError) as error:
                refused[str(error)] += 1
        return Left(dict(left), dict(refused))


_READ = calls.message(calls.read, lambda s: {"writes": ((s.segment(4096),),)})
_WRITE = calls.CASES["a WRITE's data by chunk"].make
_LIST = calls.message(calls.readdir, lambda s: {"reply": (s.segment(30000),)})


def race(seed: str, count: int) -> Left:
    """Leave connections, as ``Races.run`` does, while the mount is worked on."""
    races = Races(seed)
    with Bystander(HERE, rest=0.05):
        channel.send("working")
        return races.run(count)
