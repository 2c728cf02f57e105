# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of mounts: /proc/self/mountinfo, read without accessing the mounts.

One line per mount, fields separated by single blanks; blank, tab, newline, backslash and ``#`` in
a field are octal escapes (fs/proc_namespace.c, show_mountinfo).  All other characters may be in a
path unescaped, carriage returns and Unicode line breaks included, so the parser splits text at
newlines and blanks only.  Bytes that are not UTF-8 become surrogates, as in all paths in Python.
"""

from __future__ import annotations

import os
import re
import select
import weakref
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import unescape
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = [
    "Entry",
    "Watch",
    "at",
    "canonical",
    "closed",
    "escape",
    "of",
    "options",
    "parse",
    "parse_line",
    "read",
    "read_text",
    "split_options",
    "unescape",
    "without_links",
]

_MOST_STEPS = 400
_DEVICE = re.compile(r"[0-9]+:[0-9]+")
# security labels contain commas between quotes: context="system_u:object_r:nfs_t:s0:c1,c2"
_OPTION = re.compile(r'(?:"[^"]*"|[^,"]|")+')


class Entry(NamedTuple):
    """One mount: its mount point, its source and type, and the options of its superblock."""

    id: int
    parent: int
    device: str
    root: str
    directory: Path
    fstype: str
    source: str
    options: dict[str, str]
    flags: tuple[str, ...] = ()
    """The options of this mount alone, such as "ro" or "nosuid"."""

    @property
    def is_nfs(self) -> bool:
        """Whether it is a mount of the NFS client; nfsd's own filesystem has type "nfsd"."""
        return self.fstype in ("nfs", "nfs4")

    @property
    def over_rdma(self) -> bool:
        """Whether the transport in effect is RDMA, over IPv4 or IPv6; of an NFS mount."""
        return self.options.get("proto", "") in ("rdma", "rdma6")


def escape(field: str) -> str:
    """A field of fstab(5) or mountinfo, with octal escapes for what separates fields."""
    return re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", field)


def options(text: str) -> dict[str, str]:
    """Split ``a,b=c`` into {"a": "", "b": "c"}, without octal escapes."""
    pairs = (word.partition("=") for word in split_options(text))
    return {unescape(name): unescape(value) for name, _, value in pairs}


def split_options(text: str) -> list[str]:
    """Mount options as they are written; commas between quotes do not split."""
    if '"' not in text:
        return [word for word in text.split(",") if word]
    return [match[0] for match in _OPTION.finditer(text)]


def parse(text: str) -> list[Entry]:
    """Read mountinfo's text, in the kernel's order.  Raises UserError for an invalid line."""
    return list(_parsed(text))


# several readers need the same text, and it is unchanged between most readings
@lru_cache(maxsize=2)
def _parsed(text: str) -> tuple[Entry, ...]:
    return tuple(parse_line(line) for line in text.split("\n") if line)


def of(machine: Machine) -> list[Entry]:
    """All mounts of the process of a host whose mounts are read."""
    return parse(machine.kernel_text(f"proc/{machine.process}/mountinfo"))


def read(machine: Machine = LIVE) -> list[Entry]:
    """The same, read again."""
    return parse(machine.list_now(f"proc/{machine.process}/mountinfo"))


class Watch:
    """Detects changed mounts or mount options (mounts_poll in fs/proc_namespace.c)."""

    def __init__(self, machine: Machine = LIVE) -> None:
        handle = files.open_file(machine.of_process("mountinfo"))
        weakref.finalize(self, os.close, handle)
        self._poll = select.poll()
        self._poll.register(handle, select.POLLPRI)
        self._new = True

    def changed(self) -> bool:
        """Whether they changed since the last call; True at the first."""
        new, self._new = self._new, False
        return bool(self._poll.poll(0)) or new


def read_text(path: Path) -> str:
    """The text of a kernel file, without newline translation."""
    return os.fsdecode(files.raw(path))


def at(directory: Path, entries: Sequence[Entry]) -> Entry | None:
    """The mount on ``directory``, the topmost of several; None if there is none."""
    where = canonical(directory, entries)
    # the kernel lists a mount after the mounts that it covers
    return next((entry for entry in reversed(entries) if entry.directory == where), None)


def canonical(directory: Path, entries: Sequence[Entry]) -> Path:
    """The name of ``directory`` in mountinfo: absolute, without symbolic links.

    It compares with mount points before it accesses the directory, because accessing one whose
    server is gone hangs.
    """
    mounted = {entry.directory for entry in entries}
    absolute = Path(os.path.abspath(directory))  # noqa: PTH100 -- Path.absolute keeps ".."
    if absolute in mounted:
        return absolute
    beside = Path(os.path.realpath(absolute.parent), absolute.name)
    return beside if beside in mounted else Path(os.path.realpath(absolute))


def closed(entries: Iterable[Entry]) -> set[str]:
    """The mount points of NFS and of autofs: accessing one may wait for a server."""
    return {str(entry.directory) for entry in entries if entry.is_nfs or entry.fstype == "autofs"}


def without_links(
    directory: Path, closed: Container[str], root: Path
) -> tuple[Path, dict[Path, Path]]:
    """The name that ``directory`` of the host below ``root`` has in mountinfo, and the links to it.

    Unlike ``canonical``, it never accesses what is below a ``closed`` mount point.
    """
    links: dict[Path, Path] = {}
    # strings: each of many mount points has several steps
    done, rest = "", list(directory.parts[1:])
    for _ in range(_MOST_STEPS):
        if not rest or done in closed:
            break
        part = rest.pop(0)
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}"
        path = f"{root}{here}"
        if here in closed or not os.path.islink(path):  # noqa: PTH114 -- strings
            done = here
            continue
        target = Path(f"{done}/", os.readlink(path))  # noqa: PTH115 -- the text itself
        links[Path(here)] = target
        done, rest = "", [*target.parts[1:], *rest]
    return Path(f"{done}/", *rest), links


def parse_line(line: str) -> Entry:
    """Read one line of mountinfo, without its newline.  Raises UserError for an invalid one."""
    try:
        before, after = line.split(" - ", 1)
        number, parent, device, root, directory, rest = before.split(" ", 5)
        fstype, source, superblock = after.split(" ")
        ids = int(number), int(parent)
        if not _DEVICE.fullmatch(device):
            # it becomes a part of paths
            raise ValueError(device)
    except ValueError as error:
        raise UserError(f"invalid line in mountinfo: {line!r}") from error
    where, flags = Path(unescape(directory)), tuple(rest.partition(" ")[0].split(","))
    names = fstype, unescape(source)
    return Entry(*ids, device, unescape(root), where, *names, options(superblock), flags)
