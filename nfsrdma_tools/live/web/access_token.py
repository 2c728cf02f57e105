# SPDX-License-Identifier: Apache-2.0
"""The token that browsers and Prometheus send to a server beyond loopback."""

from __future__ import annotations

import secrets
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["generated", "read"]

_SHORTEST = 16


def generated() -> str:
    """A new token."""
    return secrets.token_urlsafe(24)


def read(file: Path) -> str:
    """The token in ``file``.

    Raises UserError if the file is unreadable, if other users may read it, or if the token is
    shorter than 16 characters.
    """
    try:
        open_to_others = file.stat().st_mode & 0o077
        word = file.read_text().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        make = f"openssl rand -hex 16 > {file}; chmod 600 {file}"
        raise UserError(f"cannot read the token in {file}: {why}", make) from error
    if open_to_others:
        raise UserError(f"other users may read {file}", f"chmod 600 {file}")
    if len(word) < _SHORTEST or not word.isascii() or not word.isprintable() or " " in word:
        what = f"the token in {file} is not {_SHORTEST} or more ASCII characters without blanks"
        raise UserError(what, f"openssl rand -hex 16 > {file}")
    return word
