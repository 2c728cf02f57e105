# SPDX-License-Identifier: Apache-2.0
"""Targets of commands: ``server:port`` and ``server:/export/path``, and sessions for them."""

from __future__ import annotations

import errno
import posixpath
import re
from typing import NamedTuple, Self

from nfsrdma_tools.client.session import Session, connect
from nfsrdma_tools.errors import UsageError

__all__ = ["NO_DIRECTORY", "Place", "is_remote", "open_place", "split_server", "split_target"]

_TARGET = re.compile(r"(\[[^\]/]+\]|[^:/\[\]]+):(/.*)", re.DOTALL)
NO_DIRECTORY = (errno.EACCES, errno.EINVAL, errno.ENOENT, errno.ENOTDIR)
"""Errors of a path that is no directory, or none that a mount daemon returns."""
# a mount daemon refuses this user, or there is none
_NOT_ANSWERED = (errno.EACCES, errno.ECONNREFUSED)


class Place(NamedTuple):
    """A path below the directory of a session; "" is the directory itself."""

    session: Session
    path: str
    name: str
    """The last component, for the name of a copy."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


def is_remote(text: str) -> bool:
    """Whether a text is SERVER:/PATH; a local file of that name is ./SERVER:/PATH."""
    return bool(_TARGET.fullmatch(text))


def split_target(text: str) -> tuple[str, str]:
    """Server and path of SERVER:/PATH, where an IPv6 address has brackets."""
    match = _TARGET.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not of the form SERVER:/PATH")
    return match[1], match[2]


def split_server(text: str) -> tuple[str, int]:
    """Host and port of SERVER[:PORT]; port 0 stands for the default."""
    match = re.fullmatch(r"(\[[^\]/]+\]|[^:/\[\]]+)(?::(\d{1,5}))?", text, re.ASCII)
    # an IPv6 address without brackets has no port
    if not match and text.count(":") > 1 and "/" not in text and "[" not in text:
        return text, 0
    if not match or (match[2] and not 0 < int(match[2]) < 1 << 16):
        raise UsageError(f"{text!r} is not of the form SERVER[:PORT]")
    return match[1], int(match[2] or 0)


def open_place(target: str) -> Place:
    """Open a session for SERVER:/PATH: with that directory, else with the one above.

    A mount daemon knows directories, and most answer root only.  NFSv4.1 is next: it needs no mount
    daemon.
    """
    try:
        return _open(target, "3")
    except OSError as error:
        if error.errno not in _NOT_ANSWERED:
            raise
        first = error
    try:
        return _open(target, "4.1")
    except FileNotFoundError:
        raise
    except OSError:
        raise first from None


def _open(target: str, vers: str) -> Place:
    server, path = split_target(target)
    above, name = posixpath.split(path.rstrip("/"))
    try:
        return Place(connect(f"{server}:{path}", vers=vers), "", name)
    except OSError as error:
        if error.errno not in NO_DIRECTORY or name in ("", ".", ".."):
            raise
        first = error
    try:
        return Place(connect(f"{server}:{above}", vers=vers), name, name)
    except OSError:
        # the error of the path that was given says more
        raise first from None
