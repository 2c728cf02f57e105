# SPDX-License-Identifier: Apache-2.0
"""The values of labels: servers, paths and users choose them, so their length has a limit."""

from __future__ import annotations

import hashlib
from functools import lru_cache

__all__ = ["Labels", "cleaned"]

Labels = tuple[str, ...]

_LONGEST = 255
_KEPT = _LONGEST - len("...") - 16


@lru_cache(maxsize=1 << 15)
def cleaned(labels: Labels) -> Labels:
    """The labels as UTF-8 of a limited length; equal texts stay equal, others stay different."""
    return tuple(map(_clean, labels))


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    # a label is UTF-8, and a path may have other bytes
    label = text.encode("utf-8", "backslashreplace")
    if len(label) <= _LONGEST:
        return label.decode()
    # paths may differ at their ends only
    rest = hashlib.blake2b(label, digest_size=8).hexdigest()
    return f"{label[:_KEPT].decode('utf-8', 'ignore')}...{rest}"
