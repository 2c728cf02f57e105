# SPDX-License-Identifier: Apache-2.0
"""A stand-in for apt-get, apt-mark, apt-config and dpkg-query, by their manual pages.

Its host is host.json in a folder, its log history.log there, as apt writes it: an entry names the
command line and what is to be installed before dpkg runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# the dependencies of each package
ARCHIVE = {
    "nfs-common": ["rpcbind", "keyutils"],
    "nfs-kernel-server": ["nfs-common"],
    "autofs": ["nfs-common"],
    "postgresql": ["postgresql-common"],
    "rdma-core": ["keyutils"],
    "quota": ["rpcbind"],
}


class Said(NamedTuple):
    """The exit status, output and error output of a program."""

    status: int = 0
    out: str = ""
    err: str = ""


def closure(names: list[str], step: Callable[[str], list[str]]) -> list[str]:
    """``names`` and all that ``step`` reaches from them, the farthest first."""
    reached: list[str] = []
    for name in names:
        for each in [*closure(step(name), step), name]:
            if each not in reached:
                reached.append(each)
    return reached


class Packages:
    """The packages of a host in ``folder``; ``step`` is called before each effect."""

    def __init__(self, folder: Path, step: Callable[[], None] = lambda: None) -> None:
        self.file, self.log, self.step = folder / "host.json", folder / "history.log", step

    @property
    def host(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.file.read_text())
        return facts

    def put(self, **values: Any) -> None:
        self.step()
        old = self.host if self.file.exists() else {"there": [], "manual": [], "lists": True}
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({**old, **values}))
        draft.replace(self.file)

    def run(self, argv: list[str]) -> Said:
        """Run one of the programs."""
        name, words = argv[0], argv[1:]
        if name == "apt-mark":
            return Said(out="".join(f"{each}\n" for each in self.host["manual"]))
        if name == "apt-config":
            return Said(out=f"LOG='{self.log}'\n")
        if name == "dpkg-query":
            return self._query(words)
        names = words[words.index("--") + 1 :] if "--" in words else []
        if words[0] == "update":
            self.put(lists=True)
            return Said()
        return self._install(argv, names) if words[0] == "install" else self._purge(argv, names)

    def _query(self, words: list[str]) -> Said:
        if "-L" in words:
            lines = []
            for name in words[words.index("--") + 1 :]:
                unit = f"/usr/lib/systemd/system/{name}"
                lines += [f"{unit}.service", f"/usr/bin/{name}", f"{unit}@.service"]
            return Said(out="\n".join(lines))
        rows = [f"installed {name}\n" for name in self.host["there"]]
        return Said(out="".join([*rows, "config-files removed-but-not-purged\n"]))

    def _install(self, argv: list[str], names: list[str]) -> Said:
        host = self.host
        if not host["lists"]:
            return Said(100, err=f"E: Unable to locate package {names[0]}")
        wanted = closure(names, lambda name: ARCHIVE.get(name, []))
        new = [name for name in wanted if name not in host["there"]]
        rows = [f"{n}:amd64 (1:2.6{'' if n in names else ', automatic'})" for n in new]
        manual = sorted({*host["manual"], *names})
        if host.get("absent") in new:
            return Said(100, err="E: Failed to fetch")
        if new:
            self._log(argv, "Install", rows)
        for name in new:
            if name in names and host.get("breaks"):
                return Said(100, err="E: it broke")
            self.put(there=[*self.host["there"], name])
        self.put(manual=manual)
        return Said()

    def _purge(self, argv: list[str], names: list[str]) -> Said:
        there = self.host["there"]
        users = closure(names, lambda name: [u for u in there if name in ARCHIVE.get(u, [])])
        gone = [name for name in users if name in there]
        if "--simulate" not in argv:
            self._log(argv, "Purge", [f"{name}:amd64 (1:2.6)" for name in gone])
            for name in reversed(gone):
                self.put(there=[each for each in self.host["there"] if each != name])
            self.put(manual=[each for each in self.host["manual"] if each not in gone])
        return Said(out="".join(f"Purg {name}:amd64 [1]\n" for name in gone))

    def _log(self, argv: list[str], verb: str, rows: list[str]) -> None:
        self.step()
        with self.log.open("a") as file:
            file.write(f"\nStart-Date: 2026-11-29  08:00:00\nCommandline: {' '.join(argv)}\n")
            file.write(f"{verb}: {', '.join(rows)}\nEnd-Date: 2026-11-29  08:00:01\n")


def main(folder: str) -> None:
    """Be the program that was called."""
    answer = Packages(Path(folder)).run([Path(sys.argv[0]).name, *sys.argv[1:]])
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.exit(answer.status)
