# SPDX-License-Identifier: Apache-2.0
"""The systemd units that mount NFS: their names, files and states (systemd.mount(5)).

systemd-fstab-generator writes a unit for each line of fstab into /run/systemd/generator; a unit of
the same name in /etc/systemd/system takes precedence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import ProgramMissingError, one_line
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import fstab

__all__ = [
    "FOLDERS",
    "GENERATED",
    "Unit",
    "UnitState",
    "by_name",
    "drop_ins",
    "has_file",
    "is_masked",
    "is_nfs",
    "last_error",
    "nfs_units",
    "setting",
    "states",
    "unit_name",
    "wanted",
]

GENERATED = "run/systemd/generator"
FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    GENERATED,
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""The folders of unit files; the first that has a name decides (systemd.unit(5))."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.")
_PROPERTIES = ("Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState")
_SHOW = ("systemctl", "show")
_JOURNAL = ("journalctl", "--boot", "--no-pager", "--quiet", "--output=cat", "--lines=50")
_PRINTED = re.compile(r"mount(?:\.nfs4?)?: \S.*")


class Unit(NamedTuple):
    """A mount unit of NFS, and the file that defines it."""

    name: str
    file: str
    directory: Path
    source: str
    fstype: str
    options: str
    from_fstab: bool = False
    """Whether systemd-fstab-generator made it of a line of fstab."""

    @property
    def automount(self) -> str:
        """The name of the automount unit that starts it at the first access."""
        return f"{self.name.removesuffix('.mount')}.automount"


class UnitState(NamedTuple):
    """What systemd says about a unit: words of systemctl(1)."""

    load: str
    active: str
    sub: str
    result: str
    file: str

    def __str__(self) -> str:
        if self.load not in ("", "loaded"):
            return self.load
        inner = self.sub if self.result in ("", "success") else f"result {self.result}"
        return f"{self.active} ({inner})"


def unit_name(directory: Path | str, suffix: str = "mount") -> str:
    """The name of the unit of ``directory``, as ``systemd-escape --path`` prints it."""
    parts = [part for part in os.fsencode(directory).split(b"/") if part not in (b"", b".")]
    name = "-".join("".join(map(_escaped, part)) for part in parts) or "-"
    if name.startswith("."):
        name = _hexadecimal(ord(".")) + name[1:]
    return f"{name}.{suffix}"


def _escaped(byte: int) -> str:
    return chr(byte) if byte in _PLAIN else _hexadecimal(byte)


def _hexadecimal(byte: int) -> str:
    return f"\\x{byte:02x}"


def nfs_units(machine: Machine) -> list[Unit]:
    """The mount units of NFS in all folders, with their drop-ins, by name."""
    paths = by_name(machine, "*.mount")
    added = drop_ins(machine, "mount") if paths else {}
    return [unit for path in paths if (unit := _unit(machine, path, added.get(path.name, [])))]


def drop_ins(machine: Machine, kind: str) -> dict[str, list[Path]]:
    """The drop-ins of units of a kind by the unit's name, one of each name, in their order."""
    known: dict[str, dict[str, Path]] = {}
    for folder in FOLDERS:
        for path in files.matching(machine.path(folder), f"*.{kind}.d/*.conf"):
            of_unit = known.setdefault(path.parent.name.removesuffix(".d"), {})
            of_unit.setdefault(path.name, path)
    return {unit: [paths[name] for name in sorted(paths)] for unit, paths in known.items()}


def by_name(machine: Machine, pattern: str, folders: Iterable[str] = FOLDERS) -> list[Path]:
    """The files that match in the folders of units, or in others; one of each name, in order.

    The first folder that has a name decides, as for sysctl.d(5) and its like.
    """
    known: dict[str, Path] = {}
    for folder in folders:
        for path in files.matching(machine.path(folder), pattern):
            known.setdefault(path.name, path)
    return [known[name] for name in sorted(known)]


def _unit(machine: Machine, path: Path, drop_ins: list[Path]) -> Unit | None:
    text = _text(path)
    if not is_nfs(text):
        return None
    texts = [text, *map(_text, drop_ins)]
    values = {
        name: next(filter(None, (setting(text, "Mount", name) for text in reversed(texts))), "")
        for name in ("What", "Where", "Type", "Options")
    }
    plain = {name: value.replace("%%", "%") for name, value in values.items()}
    if not plain["Where"].startswith("/"):
        return None
    return Unit(
        name=path.name,
        file=f"/{path.relative_to(machine.root)}",
        directory=Path(plain["Where"]),
        source=plain["What"],
        fstype=fstab.mounted_type(plain["Type"], plain["What"]),
        options=plain["Options"],
        from_fstab=setting(text, "Unit", "SourcePath") == "/etc/fstab",
    )


def is_nfs(text: str) -> bool:
    """Whether the file of a mount unit is one of NFS."""
    fstype, source = (setting(text, "Mount", name) for name in ("Type", "What"))
    return fstab.mounted_type(fstype, source) in ("nfs", "nfs4")


def setting(text: str, section: str, name: str) -> str:
    """The value of ``name`` in this section of unit files; the last one counts."""
    here, value = "", ""
    for line in text.replace("\\\n", " ").split("\n"):
        word = line.strip()
        if word.startswith("["):
            here = word
        elif here == f"[{section}]" and word.partition("=")[0].rstrip() == name:
            value = word.partition("=")[2].strip()
    return value


def _text(path: Path) -> str:
    try:
        return files.text(path, "surrogateescape")
    except OSError as error:
        files.note_unread(error)
        return ""


def is_masked(machine: Machine, name: str) -> bool:
    """Whether the first file of this unit is empty or a link to /dev/null."""
    path = _file(machine, name)
    return path is not None and not _text(path)


def wanted(machine: Machine) -> set[str]:
    """The names of the units that another unit, such as remote-fs.target, starts."""
    return {
        path.name
        for folder in FOLDERS
        for kind in ("wants", "requires")
        for path in files.matching(machine.path(folder), f"*.{kind}/*")
    }


def has_file(machine: Machine, name: str) -> bool:
    """Whether a folder has a file of this unit that is not masked."""
    path = _file(machine, name)
    return path is not None and bool(_text(path))


def _file(machine: Machine, name: str) -> Path | None:
    paths = (machine.path(folder) / name for folder in FOLDERS)
    return next((path for path in paths if path.is_symlink() or path.exists()), None)


def states(machine: Machine, names: Iterable[str]) -> dict[str, UnitState]:
    """What systemd says about these units, by name; {} if it does not run or is not recorded."""
    asked = list(dict.fromkeys(names))
    argv = (*_SHOW, f"--property={','.join(_PROPERTIES)}", "--", *asked)
    if not asked:
        return {}
    try:
        texts = [machine.run(*argv).stdout]
    except ProgramMissingError:
        return {}
    except NotRecordedError:
        # recorded for other units, too, or in another order
        known = machine.recording.programs if machine.recording else {}
        texts = [result.stdout for key, result in known.items() if key[:2] == _SHOW and result]
    return dict(_state(block) for text in texts for block in re.split(r"\n\s*\n", text) if block)


def _state(block: str) -> tuple[str, UnitState]:
    pairs = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
    return pairs.get("Id", ""), UnitState(*(pairs.get(name, "") for name in _PROPERTIES[1:]))


def last_error(machine: Machine, name: str) -> str:
    """What mount(8) printed last for this unit in this boot, from the journal; "" if unknown."""
    try:
        result = machine.run(*_JOURNAL, f"--unit={name}")
    except (NotRecordedError, ProgramMissingError):
        return ""
    printed = [line.strip() for line in result.stdout.split("\n")]
    messages = [line for line in printed if _PRINTED.fullmatch(line)]
    return one_line(messages[-1]) if messages else ""
