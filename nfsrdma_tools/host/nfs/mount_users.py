# SPDX-License-Identifier: Apache-2.0
"""The users of a mount point, so that an administrator can release a busy one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.host.nfs.mountinfo import Entry, read_text

__all__ = ["User", "inner_mounts", "users"]

_PROC = Path("/proc")


@dataclass(frozen=True)
class User:
    """A process that uses a mount point, and how."""

    pid: int
    name: str
    holds: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, {self.holds})"


def users(directory: Path, device: str, proc: Path = _PROC) -> list[User]:
    """The processes with a working folder, root, program, open file or mapping on the mount.

    Reads links and mappings in /proc only, never the mount, because its server may be gone.
    Leaves out processes that end meanwhile, and this process.
    """
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    pids.remove(os.getpid())
    found = []
    for pid in pids:
        holds = next(_holdings(proc / str(pid), directory, device), None)
        if holds:
            found.append(User(pid, _name(proc / str(pid)), holds))
    return found


def inner_mounts(directory: Path, entries: list[Entry]) -> list[Path]:
    """The mount points below ``directory``: they also keep it busy."""
    return [e.directory for e in entries if directory in e.directory.parents]


def _holdings(process: Path, directory: Path, device: str) -> Iterator[str]:
    links = {"working folder": "cwd", "root folder": "root", "program": "exe"}
    for what, link in links.items():
        if _is_below(process / link, directory):
            yield what
    with contextlib.suppress(OSError):
        for number in os.listdir(process / "fd"):  # noqa: PTH208 -- names only, no objects
            if _is_below(process / "fd" / number, directory):
                yield f"open file {number}"
    if _maps(process, device):
        yield "mapped file"


def _is_below(link: Path, directory: Path) -> bool:
    try:
        target = Path(os.readlink(link))  # noqa: PTH115 -- as the kernel spells it
    except OSError:
        return False
    return target == directory or directory in target.parents


def _maps(process: Path, device: str) -> bool:
    major, _, minor = device.partition(":")
    with contextlib.suppress(OSError, ValueError):
        mark = f" {int(major):02x}:{int(minor):02x} "
        return any(mark in line for line in read_text(process / "maps").split("\n"))
    return False


def _name(process: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(process / "comm").strip()
    return "?"
