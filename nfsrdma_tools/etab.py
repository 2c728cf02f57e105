# SPDX-License-Identifier: Apache-2.0
"""The exports in effect (etab of exportfs(8)), changed one by one.

``exportfs -r``, and systemd's nfs-server.service with it, drops all exports that no file has, such
as those of a cluster's resource agent.  So nothing here rereads files: an export is added with
``exportfs -i -o OPTIONS CLIENT:PATH`` and removed with ``exportfs -u CLIENT:PATH``.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError

__all__ = [
    "ETAB",
    "EXPORTS_D",
    "Exported",
    "add",
    "add_command",
    "argument",
    "effective",
    "is_client",
    "is_named",
    "named",
    "of_file",
    "parse",
    "remove",
    "remove_command",
]

ETAB = Path("/var/lib/nfs/etab")
EXPORTS = Path("/etc/exports")
EXPORTS_D = Path("/etc/exports.d")
_COMMENT = re.compile(r"#[^\n]*")
# quotes may enclose blanks
_WORD = re.compile(r'(?:"[^"\n]*"|[^\s"])+')


@dataclass(frozen=True)
class Exported:
    """One export in effect: a path, one client range and its options."""

    path: str
    client: str
    options: tuple[str, ...]


def effective(etab: Path | None = None) -> list[Exported]:
    """The exports in effect, from the table that rpc.mountd uses."""
    try:
        return parse(files.text(etab or ETAB, "surrogateescape"))
    except FileNotFoundError:
        return []


def parse(text: str) -> list[Exported]:
    """Parse lines of path, tab, client(options); the path has octal escapes."""
    exports = []
    for line in text.split("\n"):
        path, tab, rest = line.partition("\t")
        client, bracket, options = rest.rpartition("(")
        if tab and bracket:
            given = tuple(options.rstrip(")").split(","))
            exports.append(Exported(files.unescape(path), client, given))
    return exports


def is_client(printed: str, requested: Iterable[str]) -> bool:
    """Whether exportfs prints one of the ``requested`` clients as ``printed``."""
    plain, clients = _plain(printed), tuple(requested)
    return plain in {_plain(client) for client in clients} or plain in map(_canonical, clients)


def add(exports: Iterable[Exported]) -> None:
    """Export each one with its options.  CommandError if exportfs refuses one."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in exports:
        groups.setdefault(each.options, []).append(argument(each.client, each.path))
    for options, arguments in groups.items():
        run(*_adding(options, arguments))


def add_command(export: Exported) -> tuple[str, ...]:
    """The command that ``add`` runs for one export."""
    return _adding(export.options, [_joined(export.client, export.path)])


def _adding(options: Iterable[str], arguments: Iterable[str]) -> tuple[str, ...]:
    return ("exportfs", "-i", "-o", ",".join(options), *arguments)


def remove(exports: Iterable[Exported], own: Path | None = None) -> None:
    """Stop exporting each one; those that are not in effect are left alone.

    One that a file other than ``own`` has gets the options of that file.
    """
    there = effective()
    for each in (each for each in exports if each in there):
        argument(each.client, each.path)
        run(*remove_command(each, own))


def remove_command(export: Exported, own: Path | None = None) -> tuple[str, ...]:
    """The command that ``remove`` runs for one export."""
    words = () if is_named(export, named(own)) else ("-u",)
    return ("exportfs", *words, _joined(export.client, export.path))


def named(without: Path | None = None) -> list[Exported]:
    """The exports of /etc/exports and /etc/exports.d; ``without`` is a file to leave out."""
    files_ = [EXPORTS, *sorted(EXPORTS_D.glob("*.exports"))]
    return [each for file in files_ if file != without for each in of_file(file)]


def is_named(export: Exported, exports: Iterable[Exported]) -> bool:
    """Whether ``exports``, as files name them, have the path and the client of ``export``."""
    return any(e.path == export.path and is_client(export.client, [e.client]) for e in exports)


def of_file(file: Path) -> list[Exported]:
    """The exports of a file, exports(5); [] without the file."""
    exports = []
    for line in _COMMENT.sub("", files.readable(file).replace("\\\n", " ")).split("\n"):
        words = [word.replace('"', "") for word in _WORD.findall(line)]
        for word in (word for word in words[1:] if not word.startswith("-")):
            client, _, options = word.partition("(")
            given = tuple(options.removesuffix(")").split(","))
            exports.append(Exported(files.unescape(words[0]), client or "*", given))
    return exports


def argument(client: str, path: str) -> str:
    """An export as exportfs takes it.  UserError for a client that it does not take."""
    # exportfs_ipv6() in nfs-utils' utils/exportfs/exportfs.c
    if client.startswith("["):
        message = f"exportfs cannot export {path} to {client} without all other exports"
        raise UserError(message, "begin the name of the client with a letter, a digit, * or ?")
    return _joined(client, path)


def _joined(client: str, path: str) -> str:
    name = _plain(client) if "/" in client else client
    return f"[{name}]:{path}" if ":" in name else f"{name}:{path}"


def _canonical(client: str) -> str:
    # exportfs prints the canonical name of a host, not the requested one (its hostname.c)
    try:
        return socket.getaddrinfo(client, None, flags=socket.AI_CANONNAME)[0][3]
    except (OSError, UnicodeError):
        return client


def _plain(text: str) -> str:
    # exportfs normalises networks and addresses: it prints 10.0.0.0/255.0.0.0 as /8
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return text
