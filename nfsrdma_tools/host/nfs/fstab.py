# SPDX-License-Identifier: Apache-2.0
"""The lines of /etc/fstab that mount NFS: parses them, changes sizes, replaces and restores them.

Format: fstab(5).  Fields are separated by blanks and tabs; blanks, tabs, newlines and backslashes
in a field are written as a backslash and three octal digits.  Bytes that are not UTF-8 become
surrogates, so that a restored line equals the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import read, write_atomically
from nfsrdma_tools.host.nfs import mountinfo

__all__ = [
    "Line",
    "asked_transports",
    "family",
    "find",
    "line_with_sizes",
    "nfs_lines",
    "replace",
    "replaced",
    "require",
    "transport",
    "with_sizes",
]

_FIELDS = re.compile(r"([ \t]*[^ \t]+[ \t]+[^ \t]+[ \t]+[^ \t]+[ \t]*)([^ \t]*)(.*)", re.DOTALL)


class Line(NamedTuple):
    """The text of a line, its mount point and its options."""

    text: str
    directory: Path
    options: str


def nfs_lines(text: str) -> Iterator[Line]:
    """The lines that mount NFS, in file order; a line without options has "defaults"."""
    for line in text.split("\n"):
        fields = [field for field in re.split(r"[ \t]+", line) if field]
        if len(fields) > 2 and fields[2] in ("nfs", "nfs4") and not fields[0].startswith("#"):
            directory = Path(mountinfo.unescape(fields[1]))
            yield Line(line, directory, fields[3] if len(fields) > 3 else "defaults")


def asked_transports(text: str) -> dict[Path, str]:
    """The requested transports by mount point: "rdma", "tcp" or "udp" (nfs(5))."""
    return {line.directory: transport(line.options) for line in nfs_lines(text)}


def transport(text: str) -> str:
    """The transport that options request: "rdma", "tcp" or "udp"."""
    # mount.nfs uses the last of several (nfs_nfs_protocol in nfs-utils' utils/mount/network.c)
    found = "tcp"
    for option in mountinfo.split_options(text):
        name, _, value = mountinfo.unescape(option).partition("=")
        if name in ("tcp", "udp", "rdma"):
            found = name
        elif name == "proto":
            found = family(value)
    return found


def family(proto: str) -> str:
    """``proto=`` without the 6 of IPv6: tcp6 and rdma6 name the same transports."""
    return proto.removesuffix("6")


def find(text: str, directory: Path) -> str | None:
    """The line of ``text`` that mounts NFS on ``directory``, or None.

    Raises UserError if there are several.
    """
    found = [line.text for line in nfs_lines(text) if line.directory == directory]
    if len(found) > 1:
        raise UserError(
            f"{len(found)} lines of fstab mount on {directory}, expected one", "keep only one"
        )
    return found[0] if found else None


def with_sizes(options: str, rsize: int | None, wsize: int | None) -> str:
    """Mount options with these transfer sizes (bytes; None: unchanged); other options stay."""
    for name, size in (("rsize", rsize), ("wsize", wsize)):
        if size is not None:
            options = _with(options, name, f"{name}={size}")
    return options


def _with(options: str, name: str, wanted: str) -> str:
    parts = mountinfo.split_options(options)
    places = [i for i, part in enumerate(parts) if part.partition("=")[0] == name]
    if not places:
        return ",".join([*parts, wanted])
    # mount(8) uses the last of several; keep one
    parts[places[0]] = wanted
    return ",".join(part for i, part in enumerate(parts) if i not in places[1:])


def line_with_sizes(line: str, rsize: int | None, wsize: int | None) -> str:
    """An fstab line with these transfer sizes; spacing and other fields stay."""
    match = _FIELDS.fullmatch(line)
    if match is None:
        raise UserError(f"not a line of fstab: {line!r}")
    head, options, tail = match.groups()
    gap = "" if head[-1] in " \t" else " "
    return f"{head}{gap}{with_sizes(options, rsize, wsize)}{tail}"


def replace(path: Path, before: str, after: str) -> None:
    """Replace the line ``before`` of ``path`` by ``after``, atomically.

    Raises MismatchError unless the file contains the line exactly once.
    """
    require(path, before)
    write_atomically(path, replaced(read(path), before, after))


def replaced(text: str, before: str, after: str) -> str:
    """A text of fstab with the line ``before`` replaced by ``after``."""
    return "\n".join(after if line == before else line for line in text.split("\n"))


def require(path: Path, line: str) -> list[str]:
    """The lines of a file; MismatchError unless it contains ``line`` exactly once."""
    lines = read(path).split("\n")
    hint = "the file has changed: restore that line by hand and try again"
    if lines.count(line) != 1:
        raise MismatchError(f"a line of {path}", repr(line), _nearest(lines, line), hint)
    return lines


def _nearest(lines: list[str], wanted: str) -> str:
    words = wanted.split()[:2]
    return next((repr(line) for line in lines if line.split()[:2] == words), "no such line")
