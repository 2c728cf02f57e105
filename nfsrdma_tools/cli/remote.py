# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma ls``, ``stat`` and ``cat``: files of a server without a mount."""

from __future__ import annotations

import os
import signal
import stat as modes
import sys
import time
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, default_signals, flag
from nfsrdma_tools.cli.output import aligned, print_json
from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cat", "ls", "stat"]

_Target = Annotated[str, argument("SERVER:/PATH", "File or directory on the server.")]


def ls(
    target: _Target,
    long: Annotated[
        bool, flag("Also print mode, links, owner, group, size and time of change.", "--long", "-l")
    ] = False,
    as_json: Json = False,
) -> None:
    """List a directory of a server without a mount.

    The server has to export the directory, or one above it, over NFSv3 and RDMA.  On a terminal, a
    ? replaces each control character of a name.
    """
    from nfsrdma_tools.client.listing import listing

    with default_signals():
        rows = listing(target, attributes=long or as_json)
    if as_json:
        print_json({"entries": [{"name": name, **_facts(status)} for name, status in rows]})
    elif long:
        for line in _long(rows):
            print(line)
    else:
        _print_names([name for name, _ in rows])


def stat(target: _Target, as_json: Json = False) -> None:
    """Print the attributes of a file of a server without a mount.

    Does not follow symbolic links.
    """
    from nfsrdma_tools.client.listing import attributes

    with default_signals():
        status = attributes(target)
    facts = {"path": target, **_facts(status)}
    if as_json:
        print_json(facts)
        return
    facts["mode"] = f"{modes.filemode(status.st_mode)} ({status.st_mode & 0o7777:04o})"
    for name in ("accessed", "modified", "changed"):
        facts[name] = _time(facts.pop(f"{name}_ns"))
    for name, value in facts.items():
        print(f"{name:9} {printable(str(value))}")


def cat(
    targets: Annotated[
        list[str], argument("SERVER:/PATH", "File on the server; repeatable, in this order.")
    ],
) -> None:
    """Write files of a server to standard output without a mount."""
    from nfsrdma_tools.client.listing import content

    try:
        with default_signals():
            for target in targets:
                for piece in content(target):
                    sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        # a reader such as head(1) has enough: end as cat(1) does, and have Python flush nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _facts(status: os.stat_result | None) -> dict[str, object]:
    if status is None:
        return {}
    return {
        "type": _type(status.st_mode),
        "mode": f"{status.st_mode & 0o7777:04o}",
        "links": status.st_nlink,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": status.st_size,
        "inode": status.st_ino,
        "accessed_ns": status.st_atime_ns,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
    }


def _type(mode: int) -> str:
    names = {
        modes.S_IFREG: "file",
        modes.S_IFDIR: "directory",
        modes.S_IFLNK: "link",
        modes.S_IFBLK: "block device",
        modes.S_IFCHR: "character device",
        modes.S_IFIFO: "fifo",
        modes.S_IFSOCK: "socket",
    }
    return names.get(modes.S_IFMT(mode), "unknown")


def _long(rows: Sequence[tuple[str, os.stat_result | None]]) -> list[str]:
    cells = [(*_cells(status), name) for name, status in rows]
    # text to the left, numbers to the right
    return aligned(cells, right=range(1, 5), separator=" ")


def _cells(status: os.stat_result | None) -> tuple[str, ...]:
    if status is None:
        return ("?",) * 6
    numbers = (status.st_nlink, status.st_uid, status.st_gid, status.st_size)
    return (modes.filemode(status.st_mode), *map(str, numbers), _time(status.st_mtime_ns)[:19])


def _time(ns: object) -> str:
    seconds, rest = divmod(int(str(ns)), 10**9)
    local = time.localtime(seconds)
    text = time.strftime("%Y-%m-%d %H:%M:%S", local)
    return f"{text}.{rest:09} {time.strftime('%z', local)}"


def _print_names(names: Sequence[str]) -> None:
    if sys.stdout.isatty():
        for name in names:
            print(printable(name))
        return
    # the names as they are, for programs
    text = "".join(f"{name}\n" for name in names)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
