# SPDX-License-Identifier: Apache-2.0
"""A machine in a folder, that can fail or be killed at each of its effects.

The programs follow their manual pages: exportfs(8), nfs-server.service of nfs-utils, mount(8),
mount.nfs(8), umount.nfs(8).  All state is in files, so that a killed process leaves what it did.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.identity import MountIdentity

KILLED, REFUSED, BROKEN = 137, 1, 2


class Steps:
    """Counts effects; the process ends as by SIGKILL before effect number ``kill_at``.

    ``meanwhile`` is what somebody else does before effect number ``meanwhile_at``.  ``refusal`` is
    the file that has the message of a process that was refused.
    """

    def __init__(self, refusal: Path) -> None:
        self.kill_at, self.count, self.refusal = 0, 0, refusal
        self.meanwhile: Callable[[], object] | None = None
        self.meanwhile_at = 0

    def __call__(self, alone: bool = False) -> None:
        """An effect follows; if ``alone``, nobody acts between it and what decided on it."""
        self.count += 1
        if self.count == self.kill_at:
            os._exit(KILLED)
        if self.meanwhile and self.count == self.meanwhile_at and not alone:
            # effects of others are not counted
            count, self.count = self.count, -1 << 30
            self.meanwhile()
            self.count = count


def patch_files(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each change of a file by Python."""
    for name in ("replace", "unlink", "write_text", "rename", "mkdir", "rmdir"):
        real = getattr(Path, name)

        def counted(path: Path, *args: Any, _real: Any = real, **more: Any) -> Any:
            steps()
            return _real(path, *args, **more)

        monkeypatch.setattr(Path, name, functools.wraps(real)(counted))


def in_child(
    action: Callable[[], object],
    steps: Steps,
    kill_at: int = 0,
    meanwhile: Callable[[], object] | None = None,
    meanwhile_at: int = 0,
) -> int:
    """Run ``action`` in a process of its own; 0, REFUSED for a UserError, KILLED."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps.count, steps.kill_at = 0, kill_at
    steps.meanwhile, steps.meanwhile_at = meanwhile, meanwhile_at
    status = 0
    try:
        action()
    except UserError as error:
        status = REFUSED
        with steps.refusal.open("w") as file:
            file.write(str(error))
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
        self._write(name, text)

    def _write(self, name: str, text: str) -> None:
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
            # others act before the caller reads what the program did
            self.steps()
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
        states: dict[str, bool] = json.loads(self.text("unit"))
        return states

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
        files = {str(f.relative_to(self.root)): f.read_text()
                 for folder in folders for f in folder.rglob("*") if f.is_file()}  # fmt: skip
        return {**self.unit, "files": files, "etab": self.table(), "exports": self.text("exports")}


class Client(Programs):
    """mount(8), mount.nfs(8), umount.nfs(8), udev and the read-ahead of bdi's; fstab.

    ``mounted`` has the mounts: the line of mountinfo, the unique id, and who made it.  As in
    Linux, the id of a mount and its device are reused at once.
    """

    def __init__(self, root: Path, steps: Steps) -> None:
        super().__init__(root, steps)
        self.who, self.has_unique_ids = "ours", True
        # the server's limit
        self.most_rsize = 1 << 20

    def start(self, fstab: str) -> None:
        """Make the machine as it boots."""
        for folder in ("etc", "bdi", "usr", "usr/bin", "var", "var/lib"):
            (self.root / folder).mkdir()
        self.put("usr/bin/python3", "")
        self.put("etc/fstab", fstab)
        self._put_mounts([["22 1 254:1 / / rw,relatime - ext4 /dev/vda rw", 1, "boot"]])

    def _put_mounts(self, rows: list[list[Any]]) -> None:
        self._write("mounted", json.dumps(rows))
        # the kernel's two views of them
        lines = [line for line, *_ in rows]
        self._write("mountinfo", "".join(f"{line}\n" for line in lines))
        self._write("mountstats", "".join(map(_mountstats, lines)))

    def mounted(self, directory: str = "") -> list[list[Any]]:
        """The mounts, those on one mount point if it is given."""
        rows: list[list[Any]] = json.loads(self.text("mounted"))
        return [row for row in rows if directory in ("", row[0].split()[4])]

    def lines(self, directory: str = "") -> list[str]:
        """The lines of mountinfo, those of one mount point if it is given."""
        return [line for line, *_ in self.mounted(directory)]

    def identities(self, directory: str) -> list[MountIdentity]:
        """In place of ``mounts_on``: statx(2) gives the unique id of the topmost alone."""
        rows = self.mounted(directory)
        uniques = [0] * (len(rows) - 1) + [row[1] * self.has_unique_ids for row in rows[-1:]]
        return [MountIdentity(row[0], unique) for row, unique in zip(rows, uniques, strict=True)]

    def mount(self, words: list[str]) -> Said:
        """mount(8): --target DIR by fstab, or -t TYPE -o OPTIONS -- SOURCE DIR."""
        if words[0] == "--target":
            rows = [line.split() for line in self.text("etc/fstab").splitlines()]
            row = next((row for row in rows if row[1:2] == words[1:2]), None)
            if row is None:
                return 32, "", "mount: not found in /etc/fstab"
            source, directory, fstype, options = row[:4]
        else:
            _, fstype, _, options, _, source, directory = words
        given = dict(word.partition("=")[::2] for word in options.split(","))
        flags = [given.pop(name) or name for name in ("ro", "rw", "relatime") if name in given]
        given = {k: v for k, v in given.items() if k not in ("retry", "_netdev")}
        effect = {"vers": "4.2", "rsize": "1048576", "wsize": "1048576", "proto": "tcp", **given}
        effect["rsize"] = str(min(int(effect["rsize"]), self.most_rsize))
        shown = ",".join(f"{k}={v}" if v else k for k, v in sorted(effect.items()))
        # the kernel makes a mount at once
        self.steps()
        rows_ = self.mounted()
        taken = {row[0].split()[0] for row in rows_}
        number = next(n for n in itertools.count(61) if str(n) not in taken)
        # Path.mkdir is counted
        os.makedirs(self.root / f"bdi/0:{number}", exist_ok=True)  # noqa: PTH103
        self._write(f"bdi/0:{number}/read_ahead_kb", "128\n")
        self._write("udev", f"{self.text('udev')}{number} {directory}\n")
        line = (f"{number} 22 0:{number} / {directory} {','.join(flags or ['rw'])} - "
                f"{fstype} {source} {shown},addr=10.0.0.1")  # fmt: skip
        unique = int(self.text("unique") or 100) + 1
        self._write("unique", str(unique))
        self._put_mounts([*rows_, [line, unique, self.who]])
        return 0, "", ""

    def _by_rule(self, directory: str) -> int:
        if not (self.root / "etc/udev/rules.d/99-zz-nfsrdma.rules").exists():
            return 0
        rows = json.loads(self.text("lib/tune.json") or '{"mounts": []}')["mounts"]
        sizes = [row["read_ahead_kb"] for row in rows if row["directory"] == directory]
        return int(sizes[0] or 0) if sizes else 0

    def setpriv(self, words: list[str]) -> Said:
        """setpriv(1) --pdeathsig KILL -- mount.nfs SOURCE DIR -o OPTIONS."""
        source, directory, _, options = words[words.index("mount.nfs") + 1 :]
        return self.mount(["-t", "nfs4", "-o", f"rw,relatime,{options}", "--", source, directory])

    def umount_nfs(self, words: list[str]) -> Said:
        """umount.nfs(8): the topmost mount, if it is one of NFS."""
        directory = os.fspath(words[0])
        # Linux unmounts the topmost mount, and none by its id
        self.steps(alone=True)
        mine = self.mounted(directory)
        if not mine:
            return 1, "", f"umount.nfs: {directory}: not mounted"
        if " - nfs" not in mine[-1][0]:
            return 1, "", f"umount.nfs: {directory} is not an NFS filesystem"
        self._unmount(mine[-1])
        return 0, "", ""

    def umount(self, words: list[str]) -> Said:
        """umount(8): the topmost mount, of any type."""
        self._unmount(self.mounted(words[0])[-1])
        return 0, "", ""

    def by_others(self, action: Callable[[], object]) -> None:
        """Have somebody else do something; ``theirs`` then has the unique ids of their mounts."""
        self.who = "others"
        action()
        self.who = "ours"
        self.put_theirs(self.made_by("others"))

    def put_theirs(self, uniques: list[int]) -> None:
        """Write which mounts others made."""
        self.put("theirs", json.dumps(uniques))

    def made_by(self, who: str) -> list[int]:
        """The unique ids of the mounts that somebody made."""
        return [unique for _, unique, maker in self.mounted() if maker == who]

    def theirs(self) -> list[int]:
        """The unique ids of the mounts that others made, and did not unmount."""
        ids: list[int] = json.loads(self.text("theirs") or "[]")
        return ids

    def _unmount(self, gone: list[Any]) -> None:
        self._put_mounts([row for row in self.mounted() if row != gone])
        shutil.rmtree(self.root / f"bdi/{gone[0].split()[2]}")

    def systemctl(self, words: list[str]) -> Said:
        """systemctl(1): no unit is written by hand."""
        return int(words[0] == "cat"), "", ""

    def udevadm(self, words: list[str]) -> Said:
        """udevadm(8)."""
        if words[0] == "settle":
            self._run_rules()
        return 0, "", ""

    def _run_rules(self) -> None:
        """The rules of nfs-utils and of tune, which run some time after a mount."""
        for line in self.text("udev").splitlines():
            number, directory = line.split(" ", 1)
            name = f"bdi/0:{number}/read_ahead_kb"
            if (self.root / name).exists():
                self._write(name, f"{self._by_rule(directory) or 128}\n")
        self._write("udev", "")

    def read_ahead(self, directory: str) -> str:
        """In KiB, after the rules of udev; "" if nothing is mounted."""
        self._run_rules()
        lines = self.lines(directory)
        return self.text(f"bdi/{lines[-1].split()[2]}/read_ahead_kb").strip() if lines else ""

    def state(self) -> dict[str, Any]:
        """What the machine is, without the numbers of mounts."""
        skip = ("bdi/", "mountinfo", "mountstats", "mounted", "unique", "theirs", "run/", "udev")
        all_files = {str(f.relative_to(self.root)): f.read_text()
                     for f in self.root.rglob("*") if f.is_file()}  # fmt: skip
        files = {name: text for name, text in all_files.items() if not name.startswith(skip)}
        rows = {line.split()[4]: (line.split()[5], line.partition(" - ")[2])
                for line in self.lines()}  # fmt: skip
        return {"files": files, "mounts": rows,
                "read-ahead": {each: self.read_ahead(each) for each in rows}}  # fmt: skip


def _mountstats(line: str) -> str:
    """A record of mountstats as Linux 6.12 writes it, of one mount with one connection."""
    fstype, source, options = line.partition(" - ")[2].split()
    head = f"device {source} mounted on {line.split()[4]} with fstype {fstype}"
    if not fstype.startswith("nfs"):
        return f"{head}\n"
    return (
        f"{head} statvers=1.1\n\topts:\t{options}\n\tage:\t2\n\tbytes:\t0 0 0 0 0 0 0 0 \n"
        "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
        "\txprt:\ttcp 738 1 2 0 4 12 12 0 12 0 2 0 0\n"
        "\tper-op statistics\n\t        NULL: 1 1 0 44 24 242 157 400 0\n\n"
    )


def _all(options: str) -> str:
    """Options as etab has them: those given, and the defaults of the others."""
    given = [option for option in options.split(",") if option]
    rest = [a for a, b in (("ro", "rw"), ("sync", "async"), ("secure", "insecure"),
                           ("root_squash", "no_root_squash")) if not {a, b} & {*given}]  # fmt: skip
    return ",".join([*given, *rest])
