# SPDX-License-Identifier: Apache-2.0
"""The lines of /etc/fstab that mount NFS: what they request; changes, replaces and restores them.

Format: fstab(5).  Fields are separated by blanks and tabs; blanks, tabs, newlines and backslashes
in a field are written as a backslash and three octal digits.  Bytes that are not UTF-8 become
surrogates, so that a restored line equals the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import read, write_atomically
from nfsrdma_tools.host.nfs import mountinfo

__all__ = [
    "LIMIT",
    "Line",
    "RequestedOptions",
    "family",
    "find",
    "is_cut",
    "line_with_sizes",
    "mounted_type",
    "nfs_lines",
    "replace",
    "replaced",
    "require",
    "transport",
    "with_sizes",
]

_MOST_CHARACTERS, _MOST_LINES = 1 << 20, 10_000
"""Of a text; util-linux has no limit, but a large one is the work of a broken program."""
LIMIT = f"it has more than {_MOST_LINES} lines or {_MOST_CHARACTERS >> 20} MiB"
_BARE_VERSION = re.compile(r"v([234](?:\.[0-9])?)")
_REMOTE = re.compile(r"(\[[^\]]+\]|[^/:=]+):/.*", re.DOTALL)
_FIELDS = re.compile(r"([ \t]*[^ \t]+[ \t]+[^ \t]+[ \t]+[^ \t]+[ \t]*)([^ \t]*)(.*)", re.DOTALL)


class Line(NamedTuple):
    """The text of a line, its mount point, options, type ("nfs" or "nfs4") and source."""

    text: str
    directory: Path
    options: str
    fstype: str
    source: str


# several checks need the lines of one file
@lru_cache(maxsize=2)
def nfs_lines(text: str) -> tuple[Line, ...]:
    """The lines that mount NFS, in file order; a line without options has "defaults".

    Of a large text (``is_cut``) they are those of its beginning.
    """
    return tuple(_nfs_lines(text))


def is_cut(text: str) -> bool:
    """Whether a text is so large that ``nfs_lines`` reads its beginning only."""
    return len(text) > _MOST_CHARACTERS or text.rstrip("\n").count("\n") >= _MOST_LINES


def _nfs_lines(text: str) -> Iterator[Line]:
    # the last line of a cut text may be a part of one
    whole = text[: text.rfind("\n", 0, _MOST_CHARACTERS) + 1] if is_cut(text) else text
    for line in whole.split("\n", _MOST_LINES)[:_MOST_LINES]:
        fields = [field for field in re.split(r"[ \t]+", line) if field]
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        source, directory = map(mountinfo.unescape, fields[:2])
        fstype = mounted_type(fields[2], source)
        if fstype in ("nfs", "nfs4"):
            options = fields[3] if len(fields) > 3 else "defaults"
            yield Line(line, Path(directory), options, fstype, source)


def mounted_type(fstype: str, source: str) -> str:
    """The type that mount(8) mounts: "nfs" if it guesses, and the source is ``HOST:/PATH``.

    It guesses if the type is "auto" or absent (""); other types stay.
    """
    # mnt_context_guess_srcpath_fstype in util-linux' libmount/src/context.c: "nfs" for each source
    # with a colon that is no existing path. "=" is no part of a host, but of LABEL= and its like.
    return "nfs" if fstype in ("", "auto") and _REMOTE.fullmatch(source) else fstype


class RequestedOptions(NamedTuple):
    """What mount options request (nfs(5)); None: they leave it to mount.nfs and the kernel.

    Sizes are in bytes.  ``proto`` has the address family, as in mountinfo; ``tcp`` and ``rdma``
    without ``proto=`` leave the family open.
    """

    transport: str | None = None
    proto: str | None = None
    vers: str | None = None
    rsize: int | None = None
    wsize: int | None = None
    nconnect: int | None = None
    port: int | None = None
    sec: tuple[str, ...] = ()

    # the same options stand in many lines of fstab
    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, text: str, fstype: str = "nfs") -> RequestedOptions:
        """Parse mount options; of several that conflict, mount.nfs uses the last one."""
        # nfs_nfs_protocol and nfs_nfs_version in nfs-utils' utils/mount/network.c
        values: dict[str, str] = {}
        vers = "4" if fstype == "nfs4" else None
        transport = proto = None
        for option in mountinfo.split_options(text):
            name, _, value = mountinfo.unescape(option).partition("=")
            if name in ("tcp", "udp", "rdma"):
                transport, proto = name, None
            elif name == "proto":
                transport, proto = family(value), value
            elif name in ("vers", "nfsvers"):
                vers = value
            elif match := _BARE_VERSION.fullmatch(option):
                vers = match[1]
            else:
                values[name] = value
        if vers == "4" and (minor := values.get("minorversion", "")).isdecimal():
            vers = f"4.{minor}"
        return cls(
            transport=transport,
            proto=proto,
            vers=vers,
            rsize=_number(values.get("rsize", "")),
            wsize=_number(values.get("wsize", "")),
            nconnect=_number(values.get("nconnect", "")),
            port=_number(values.get("port", "")),
            # mountinfo has "null" for both names (nfs_pseudoflavour_to_name in fs/nfs/super.c)
            sec=tuple(
                "null" if name == "none" else name
                for name in filter(None, values.get("sec", "").split(":"))
            ),
        )

    def __str__(self) -> str:
        """The requested values, for example "rdma, vers 4.2, nconnect 16"."""
        transport = self.proto or self.transport
        values = {
            "vers": self.vers,
            "rsize": self.rsize,
            "wsize": self.wsize,
            "nconnect": self.nconnect,
            "port": self.port,
            "sec": ":".join(self.sec),
        }
        words = [f"{name} {value}" for name, value in values.items() if value]
        return ", ".join([transport, *words] if transport else words)


def _number(text: str) -> int | None:
    # 0 leaves the value to the kernel
    return int(text) or None if re.fullmatch(r"[0-9]{1,10}", text) else None


def transport(text: str) -> str:
    """The transport that options request: "rdma", "tcp" or "udp"; "tcp" is the default."""
    return RequestedOptions.of(text).transport or "tcp"


def family(proto: str) -> str:
    """``proto=`` without the 6 of IPv6: tcp6 and rdma6 name the same transports."""
    return proto.removesuffix("6")


def find(text: str, directory: Path) -> str | None:
    """The line of ``text`` that mounts NFS on ``directory``, or None.

    Raises UserError if there are several, or if the text is too large to know.
    """
    if is_cut(text):
        raise UserError(f"fstab is not searched: {LIMIT}", "remove what is not needed")
    lines = [line.text for line in nfs_lines(text) if line.directory == directory]
    if len(lines) > 1:
        raise UserError(
            f"{len(lines)} lines of fstab mount on {directory}, expected one", "keep only one"
        )
    return lines[0] if lines else None


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
