# SPDX-License-Identifier: Apache-2.0
"""Comma lists of mount(8), such as ``-o vers=4.1,proto=rdma,rsize=64k,noatime``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.nfs.mountinfo import split_options

__all__ = ["parse"]

# options of nfs(5), and the options of `nfsrdma mount` that mean the same
_SAME = {
    **{name: name for name in ("nconnect", "port", "rsize", "vers", "wsize")},
    "nfsvers": "vers",
    "proto": "transport",
}
_FLAGS = {"rdma": "transport", "tcp": "transport"}


def parse(
    lists: Iterable[str], given: Mapping[str, str | None]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The values of `nfsrdma mount`'s own options by name, and all other mount options.

    ``given`` are the values of the command line's own options.  Raises UsageError when an option
    has two different values.
    """
    values = {name: value for name, value in given.items() if value is not None}
    others = []
    for word in (word for text in lists for word in split_options(text)):
        name, equals, value = word.partition("=")
        same = (_SAME if equals else _FLAGS).get(name)
        if not same:
            others.append(word)
        elif values.setdefault(same, value or name) != (value or name):
            raise UsageError(f"{same} is both {values[same]} and {value or name}", "give one value")
    return values, tuple(others)
