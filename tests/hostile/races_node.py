# SPDX-License-Identifier: Apache-2.0
"""``races_node.py SERVER PORT FOLDER MOUNT SEED COUNT``: connections that do not stay.

COUNT of them, each left at a stage of its life; 0: as many as there is time for, until the file
STOP exists.  The file BEGUN exists as soon as it works.  Those a server refuses are counted, not
judged: it may be on its way down.  MOUNT, one of the server, is worked on meanwhile.  Prints JSON.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hostile import calls, rpc
from hostile.bystander import Bystander
from hostile.calls import GOOD_PRIVATE, Make
from hostile.json_lines import print_json
from hostile.peer import Connection, GoneError, Host, Wish
from hostile.site import Site, handles
from hostile.verbs import VerbsError

BEGUN, STOP = Path("/run/races.begun"), Path("/run/races.stop")
WISH = Wish(private=GOOD_PRIVATE, receives=16)
SILENT = Wish(private=GOOD_PRIVATE, receives=16, reads_anyway=True, confirms=False)


class Races:
    """One way to leave after the other; the file is written with what it has."""

    def __init__(self, server: str, port: int, folder: str, seed: str) -> None:
        self.host, self.there = Host(), (server, port)
        self.file, self.folder = handles(server, f"/export/{folder}", "data", ".")
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.stages: dict[str, Callable[[], None]] = {
            "asked": self.asked,
            "accepted": self.accepted,
            "established": lambda: self.host.connect(*self.there, WISH).close(),
            "a call outstanding": lambda: self.calling(calls.message(calls.getattr_)),
            "a Write chunk outstanding": lambda: self.calling(_READ),
            "a Read chunk outstanding": lambda: self.calling(_WRITE),
            "a Reply chunk outstanding": lambda: self.calling(_LIST),
            "ten calls outstanding": lambda: self.calling(_READ, _WRITE, *[_LIST] * 8),
            "killed": self.killed,
        }

    def asked(self) -> None:
        self.host.begin(*self.there, WISH).close()

    def accepted(self) -> None:
        """The server's answer is here, and is never confirmed."""
        connection = self.host.begin(*self.there, SILENT)
        self.host.wait(lambda: bool(connection.private or connection.ended))
        connection.close()

    def calling(self, *makes: Make) -> None:
        connection = self.call(*makes)
        connection.close()

    def call(self, *makes: Make) -> Connection:
        connection = self.host.connect(*self.there, WISH)
        site = Site(connection, self.file, self.folder)
        for number, make in enumerate(makes):
            message, xid = make(site), rpc.words(calls.XID + number)
            connection.send(message.replace(rpc.words(calls.XID), xid))
        return connection

    def killed(self) -> None:
        """A process with connections and calls dies."""
        subprocess.run((sys.executable, *sys.argv[:6], "die"), check=False, timeout=60)

    def die(self) -> None:
        kept = [self.call(_READ, _WRITE) for _ in range(2)]
        os.kill(os.getpid(), signal.SIGKILL if kept else signal.SIGTERM)

    def run(self, count: int) -> dict[str, Any]:
        """Leave ``count`` connections, or leave connections until STOP exists."""
        left: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        names = list(self.stages)
        for number in range(count) if count else iter_until(STOP.exists):
            name = names[number % len(names)] if number < len(names) else self.rng.choice(names)
            try:
                self.stages[name]()
                left[name] += 1
            except (GoneError, VerbsError, TimeoutError) as error:
                refused[str(error)] += 1
        return {"left": dict(left), "refused": dict(refused)}


def iter_until(ended: Callable[[], bool]) -> Iterator[int]:
    return itertools.takewhile(lambda _: not ended(), itertools.count())


_READ = calls.message(calls.read, lambda s: {"writes": ((s.segment(4096),),)})
_WRITE = calls.CASES["a WRITE's data by chunk"].make
_LIST = calls.message(calls.readdir, lambda s: {"reply": (s.segment(30000),)})


def main() -> None:
    server, port, folder, mount, seed, count = sys.argv[1:]
    races = Races(server, int(port), folder, seed)
    if count == "die":
        races.die()
    with Bystander(Path(mount), rest=0.05) as bystander:
        BEGUN.touch()
        said = races.run(int(count))
    print_json(**said, bystander=bystander.account())


main()
