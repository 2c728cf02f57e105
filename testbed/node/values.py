# SPDX-License-Identifier: Apache-2.0
"""Values as JSON between a test and a node, of the same types when they arrive."""

from __future__ import annotations

import binascii
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

__all__ = ["pack", "unpack"]

_PLAIN = (type(None), bool, int, float, str)


def pack(value: object) -> Any:
    """Make JSON of plain values, bytes, paths, lists, tuples, dictionaries and records.

    A record is an object of a data class or of a NamedTuple.  TypeError for anything else.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, list) and kind is list:
        return [pack(item) for item in value]
    return _packed(value, kind)


def _packed(value: object, kind: type) -> dict[str, Any]:
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if isinstance(value, bytes):
        return {"bytes": binascii.b2a_base64(value, newline=False).decode()}
    if isinstance(value, tuple) and kind is tuple:
        return {"tuple": [pack(item) for item in value]}
    if isinstance(value, dict) and kind is dict:
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if (names := _fields(kind)) is not None:
        packed = {name: pack(getattr(value, name)) for name in names}
        return {"record": [kind.__module__, kind.__qualname__, packed]}
    raise TypeError(
        f"{kind.__qualname__}: found {repr(value)[:80]}, expected None, bool, int, float, str, "
        "bytes, Path, list, tuple, dict, a data class or a NamedTuple"
    )


def unpack(value: Any) -> Any:
    """Make the value of its JSON; LookupError for a record whose class is not imported."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    return _MADE[kind](inner)


def _made_record(inner: Any) -> Any:
    """The record with the same fields; its constructor, which may change them, does not run."""
    module, name, packed = inner
    kind, fields = _record(module, name), {field: unpack(item) for field, item in packed.items()}
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields.values())
    made = kind.__new__(kind)
    for field, item in fields.items():
        object.__setattr__(made, field, item)
    return made


_MADE: dict[str, Callable[[Any], Any]] = {
    "path": Path,
    "bytes": binascii.a2b_base64,
    "tuple": lambda inner: tuple(unpack(item) for item in inner),
    "dict": lambda inner: {unpack(key): unpack(item) for key, item in inner},
    "record": _made_record,
}


def _record(module: str, name: str) -> type:
    record = getattr(sys.modules.get(module), name, None)
    if not isinstance(record, type) or _fields(record) is None:
        raise LookupError(f"{module}.{name}: expected a data class or a NamedTuple of a test")
    return record


def _fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a record of this class; None if it is none."""
    if hasattr(kind, "__dataclass_fields__"):
        # imported already: the class is made by it
        return tuple(field.name for field in sys.modules["dataclasses"].fields(kind))
    return getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
