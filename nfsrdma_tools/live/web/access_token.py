# SPDX-License-Identifier: Apache-2.0
"""The word that browsers and Prometheus have to know when more than this machine can reach us."""

from __future__ import annotations

import secrets
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.web.access_control import is_loopback

__all__ = ["token_for"]

_SHORTEST = 16


def token_for(address: str, file: Path | None) -> str:
    """The token in ``file``; a new one for an address that others reach, none for loopback.

    Raises UserError when the file cannot be read, others may read it, or its word is too short.
    """
    if file is None:
        return "" if is_loopback(address) else secrets.token_urlsafe(24)
    try:
        open_to_others = file.stat().st_mode & 0o077
        word = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise UserError(f"the token in {file} cannot be read: {error}") from error
    if open_to_others:
        raise UserError(f"others may read {file}", f"chmod 600 {file}")
    if len(word) < _SHORTEST or not word.isascii() or not word.isprintable() or " " in word:
        what = f"the token in {file} is not {_SHORTEST} letters or more, without blanks"
        raise UserError(what, f"openssl rand -hex 16 > {file}")
    return word
