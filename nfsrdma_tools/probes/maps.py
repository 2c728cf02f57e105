# SPDX-License-Identifier: Apache-2.0
"""A program's maps per CPU, read in batches; of a row that did not change nothing is read anew.

bcc asks the kernel twice for each row, and each counter is an object of Python's by then.  Here 64
rows come at once, as bytes (BPF_MAP_LOOKUP_BATCH, Linux 5.6 on; kernel/bpf/hashtab.c), and only
those that differ from what came before are taken apart.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeVar

__all__ = ["decoded", "named", "rows"]

_AT_ONCE = 64


class _Named(Protocol):
    @property
    def procedure(self) -> str: ...


_Name = TypeVar("_Name", bound=_Named)
_Row = TypeVar("_Row")


def rows(
    session: Any,
    table: str,
    name: Callable[[Any], _Name],
    decode: Callable[[_Name, list[Any]], _Row],
) -> list[_Row]:
    """What ``decode`` makes of each name's leaves in a map whose keys are numbers made of names."""

    def of_number(_number: Any, leaves: Any) -> list[_Row]:
        return [decode(key, own) for key, own in named(leaves, name).items()]

    return list(chain.from_iterable(decoded(session, table, of_number)))


def named(leaves: Iterable[Any], name: Callable[[Any], _Name]) -> dict[_Name, list[Any]]:
    """The leaves of one number, by the name in each.

    A row's number may be another one's on another CPU (row_is() of bpf/account.h), and a leaf of a
    CPU that never counted there has no name, and nothing in it: it is left out.
    """
    found: dict[_Name, list[Any]] = {}
    for leaf in leaves:
        if (key := name(leaf)).procedure:
            found.setdefault(key, []).append(leaf)
    return found


def decoded(session: Any, name: str, decode: Callable[[Any, Any], _Row]) -> list[_Row]:
    """What ``decode`` makes of each row's key and leaves, one leaf per CPU.

    Of a row that is as it was at the last reading of this session, it is what was made then.
    """
    table = session.table(name)
    known: dict[bytes, tuple[bytes, _Row]] = session.state.get(f"rows of {name}", {})
    found: dict[bytes, tuple[bytes, _Row]] = {}
    for key, leaves in _entries(table):
        have = known.get(key)
        if have is None or have[0] != leaves:
            have = leaves, decode(table.Key.from_buffer_copy(key), _leaves(table, leaves))
        found[key] = have
    session.state[f"rows of {name}"] = found
    return [row for _, row in found.values()]


def _leaves(table: Any, raw: bytes) -> Any:
    return table.Leaf.from_buffer_copy(raw)


def _entries(table: Any) -> Iterator[tuple[bytes, bytes]]:
    try:
        return iter(list(_batches(table)))
    except OSError:
        # an older kernel, or a bucket that has more rows than are asked for at once
        return ((bytes(key), bytes(leaves)) for key, leaves in table.items())


def _batches(table: Any) -> Iterator[tuple[bytes, bytes]]:
    from bcc.libbcc import lib

    keys, values = (table.Key * _AT_ONCE)(), (table.Leaf * _AT_ONCE)()
    place = ctypes.c_uint32(0)
    begun = False
    while True:
        count = ctypes.c_uint32(_AT_ONCE)
        before = ctypes.byref(place) if begun else None
        failed = lib.bpf_lookup_batch(
            table.map_fd,
            before,
            ctypes.byref(place),
            ctypes.byref(keys),
            ctypes.byref(values),
            ctypes.byref(count),
        )
        error = ctypes.get_errno()
        if failed and error != errno.ENOENT:
            raise OSError(error, os.strerror(error))
        yield from _cut(keys, values, count.value)
        if failed:
            # that was all
            return
        begun = True


def _cut(keys: Any, values: Any, count: int) -> Iterator[tuple[bytes, bytes]]:
    wide, long = ctypes.sizeof(keys) // _AT_ONCE, ctypes.sizeof(values) // _AT_ONCE
    all_keys, all_values = memoryview(keys).cast("B"), memoryview(values).cast("B")
    for n in range(count):
        key = bytes(all_keys[n * wide : (n + 1) * wide])
        yield key, bytes(all_values[n * long : (n + 1) * long])
