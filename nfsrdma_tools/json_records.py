# SPDX-License-Identifier: Apache-2.0
"""Records in JSON that another program, version or person may have written."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from json import JSONDecodeError
from typing import Any, TypeVar

from nfsrdma_tools.errors import one_line

__all__ = ["INVALID", "fault", "record", "typed"]

_T = TypeVar("_T")
INVALID = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""The exceptions that a reader raises for a document of another form."""

_TEXTS: dict[type[Exception], str] = {
    RecursionError: "JSON is nested too deeply",
    UnicodeDecodeError: "not a text in UTF-8",
    OverflowError: "a number is too large",
}


def fault(error: Exception) -> str:
    """One of ``INVALID`` in plain words; Python's own texts name its types and functions."""
    if isinstance(error, JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    for kind, text in _TEXTS.items():
        if isinstance(error, kind):
            return text
    if isinstance(error, ValueError):
        return one_line(str(error))
    return "a value has another type than expected"


def record(kind: type[_T], row: Any) -> _T:
    """The dataclass ``kind`` of a JSON object; ValueError for unknown and missing keys."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object of {kind.__name__}, found {repr(row)[:80]}")
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    for name in row:
        if name not in known:
            raise ValueError(f"unknown key {repr(name)[:80]}")
    for name, field in known.items():
        if name not in row and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name!r} is missing")
    return kind(**row)


def typed(kind: type[_T], plain: Any) -> _T:
    """The value of ``kind``, such as a dataclass, that a JSON value is; unknown fields are ignored.

    Raises one of ``INVALID`` for a value of another type.
    """
    value: _T = _typed(kind, plain)
    return value


@lru_cache(maxsize=64)
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _typed(kind: Any, plain: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        wanted = next(argument for argument in arguments if argument is not type(None))
        return None if plain is None else _typed(wanted, plain)
    if origin is dict:
        return {key: _typed(arguments[1], part) for key, part in dict(plain).items()}
    if origin is tuple:
        return _tuple(arguments, plain)
    if is_dataclass(kind):
        known, make = _types(typing.cast(type, kind)), typing.cast(type, kind)
        return make(**{n: _typed(known[n], part) for n, part in dict(plain).items() if n in known})
    return _simple(kind, plain)


def _tuple(arguments: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise ValueError(f"expected a list, got {plain!r:.40}")
    if arguments[-1] is Ellipsis:
        return tuple(_typed(arguments[0], part) for part in plain)
    if len(arguments) != len(plain):
        raise ValueError(f"expected {len(arguments)} values, got {len(plain)}")
    return tuple(_typed(kind, part) for kind, part in zip(arguments, plain))


def _simple(kind: Any, plain: Any) -> Any:
    fits = isinstance(plain, (int, float)) if kind is float else type(plain) is kind
    if not fits or (kind is float and isinstance(plain, bool)):
        raise ValueError(f"expected {kind.__name__}, got {plain!r:.40}")
    return plain
