# SPDX-License-Identifier: Apache-2.0
"""A machine in a folder, that can fail or be killed at each of its effects.

The programs follow their manual pages: exportfs(8), nfs-server.service of nfs-utils, mount(8),
mount.nfs(8), umount.nfs(8).  All state is in files, so that a killed process leaves what it did.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import CommandError, UserError

KILLED, REFUSED, BROKEN = 137, 1, 2


class Steps:
    """Counts effects; the process ends as by SIGKILL before effect number ``kill_at``."""

    def __init__(self) -> None:
        self.kill_at, self.count = 0, 0

    def __call__(self) -> None:
        """An effect follows."""
        self.count += 1
        if self.count == self.kill_at:
            os._exit(KILLED)


def patch_files(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each change of a file by Python."""
    for name in ("replace", "unlink", "write_text", "rename", "mkdir", "rmdir"):
        real = getattr(Path, name)

        def counted(path: Path, *args: Any, _real: Any = real, **more: Any) -> Any:
            steps()
            return _real(path, *args, **more)

        monkeypatch.setattr(Path, name, functools.wraps(real)(counted))


def in_child(action: Callable[[], object], steps: Steps, kill_at: int = 0) -> int:
    """Run ``action`` in a process of its own; 0, REFUSED for a UserError, KILLED."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps.count, steps.kill_at = 0, kill_at
    status = 0
    try:
        action()
    except UserError as error:
        status = REFUSED
        if os.environ.get("SHOW"):
            print(f"refused: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = BROKEN
    finally:
        sys.stderr.flush()
        os._exit(status)


class Programs:
    """Programs of a machine, called in place of ``command.run``."""

    def __init__(self, root: Path, steps: Steps) -> None:
        self.root, self.steps = root, steps
        self.fails: set[str] = set()

    def put(self, name: str, text: str) -> None:
        """Replace a file of the machine."""
        self.steps()
        path = self.root / name
        draft = path.with_name(f"{path.name}.draft")
        with draft.open("w") as file:
            file.write(text)
        os.replace(draft, path)  # noqa: PTH105 -- Path.replace is counted

    def text(self, name: str) -> str:
        """A file of the machine; "" without it."""
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def run(self, *argv: object, check: bool = True, hint: str = "", **_: object) -> Result:
        """In place of ``command.run``."""
        words = [os.fspath(word) for word in argv]  # type: ignore[call-overload]
        status, out, err = 1, "", f"{words[0]} fails"
        if not any(shlex.join(words).startswith(text) for text in self.fails):
            status, out, err = getattr(self, words[0].replace(".", "_"))(words[1:])
        if check and status:
            raise CommandError(tuple(words), status, err, hint)
        return Result(tuple(words), out, err, status)

    def patch(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        """Have the functions of ``modules`` call these programs."""
        for module in modules:
            monkeypatch.setattr(module, "run", self.run)


Said = tuple[int, str, str]


class Server(Programs):
    """nfs-server.service, exportfs and nfsd."""

    def start(self, active: bool, enabled: bool) -> None:
        """Make the machine as it boots."""
        for folder in ("exports.d", "conf.d", "nfsd"):
            (self.root / folder).mkdir()
        for name in ("etab", "exports", "nfsd/portlist"):
            self.put(name, "")
        self.put("nfsd/versions", "+3 +4 +4.1 +4.2\n")
        self.put("unit", json.dumps({"active": False, "enabled": enabled}))
        if active:
            self.systemctl(["start", "nfs-server.service"])

    @property
    def unit(self) -> dict[str, bool]:
        found: dict[str, bool] = json.loads(self.text("unit"))
        return found

    def table(self) -> dict[str, str]:
        """Options by CLIENT:PATH, of etab."""
        rows = [line.partition("\t") for line in self.text("etab").splitlines()]
        return {f"{rest.partition('(')[0]}:{path}": rest.partition("(")[2][:-1]
                for path, _, rest in rows}  # fmt: skip

    def put_table(self, rows: dict[str, str]) -> None:
        """Write etab."""
        lines = [f"{key.partition(':')[2]}\t{key.partition(':')[0]}({options})\n"
                 for key, options in rows.items()]  # fmt: skip
        self.put("etab", "".join(lines))

    def of_files(self) -> dict[str, str]:
        """What /etc/exports and its folder export."""
        rows: dict[str, str] = {}
        files = [self.root / "exports", *sorted((self.root / "exports.d").glob("*.exports"))]
        for line in "\n".join(file.read_text() for file in files).splitlines():
            path, *clients = line.partition("#")[0].split() or [""]
            for client in clients:
                name, _, options = client.partition("(")
                rows[f"{name}:{path}"] = _all(options.rstrip(")"))
        return rows

    def exportfs(self, words: list[str]) -> Said:
        """exportfs(8)."""
        if words == ["-r"]:
            self.put_table(self.of_files())
        elif words == ["-au"]:
            self.put_table({})
        elif words[0] == "-u":
            rows, missing = self.table(), [w for w in words[1:] if w not in self.table()]
            if missing:
                return 1, "", f"exportfs: Could not find '{missing[0]}' to unexport."
            self.put_table({k: v for k, v in rows.items() if k not in words[1:]})
        elif words[:2] == ["-i", "-o"]:
            self.put_table({**self.table(), **dict.fromkeys(words[3:], _all(words[2]))})
        else:
            files = self.of_files()
            self.put_table({**self.table(), **{w: files.get(w, _all("")) for w in words}})
        return 0, "", ""

    def systemctl(self, words: list[str]) -> Said:
        """systemctl(1), for nfs-server.service alone."""
        verb, unit = words[0], self.unit
        if verb.startswith("is-"):
            return int(not unit[verb.removeprefix("is-").replace("active", "active")]), "", ""
        if verb in ("enable", "disable"):
            self.put("unit", json.dumps({**unit, "enabled": verb == "enable"}))
        if verb in ("stop", "restart") and unit["active"]:
            self.put("nfsd/portlist", "")
            self.put("unit", json.dumps({**unit, "active": False}))
            # ExecStopPost=
            self.exportfs(["-au"])
        if verb == "restart" or (verb == "start" and not unit["active"]):
            # ExecStartPre=
            self.exportfs(["-r"])
            conf = "".join(f.read_text() for f in (self.root / "conf.d").glob("*.conf"))
            self.put("nfsd/portlist", "tcp 2049\n" + "rdma 20049\n" * ("rdma=y" in conf))
            self.put("unit", json.dumps({**self.unit, "active": True}))
        return 0, "", ""

    def state(self) -> dict[str, object]:
        """What the machine is, for a comparison."""
        folders = [self.root / name for name in ("exports.d", "conf.d", "lib")]
        found = {str(f.relative_to(self.root)): f.read_text()
                 for folder in folders for f in folder.rglob("*") if f.is_file()}  # fmt: skip
        return {**self.unit, "files": found, "etab": self.table(), "exports": self.text("exports")}


def _all(options: str) -> str:
    """Options as etab has them: those given, and the defaults of the others."""
    given = [option for option in options.split(",") if option]
    rest = [a for a, b in (("ro", "rw"), ("sync", "async"), ("secure", "insecure"),
                           ("root_squash", "no_root_squash")) if not {a, b} & {*given}]  # fmt: skip
    return ",".join([*given, *rest])
