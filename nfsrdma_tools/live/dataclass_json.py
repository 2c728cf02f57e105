# SPDX-License-Identifier: Apache-2.0
"""Convert frozen dataclasses to JSON values and back.  Fields with default values are omitted."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

from nfsrdma_tools.errors import UserError

__all__ = ["from_plain", "to_plain"]

_T = TypeVar("_T")
_SIMPLE = (int, float, str, bool)
_UNCHANGED = frozenset((*_SIMPLE, type(None)))


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, numbers and strings."""
    kind = value.__class__
    if kind in _UNCHANGED:
        return value
    if isinstance(value, (tuple, list)):
        return [to_plain(part) for part in value]
    if kind is dict:
        parts = value
    else:
        stated = ((name, getattr(value, name), default) for name, default in _defaults(kind))
        parts = {name: part for name, part, default in stated if part != default}
    return {k: x if x.__class__ in _UNCHANGED else to_plain(x) for k, x in parts.items()}


def from_plain(kind: type[_T], plain: Any) -> _T:
    """The dataclass again; unknown fields are ignored, so that old versions read new files.

    Raises UserError if ``to_plain`` cannot have made ``plain``.
    """
    try:
        value: _T = _from_plain(kind, plain)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"invalid {kind.__name__}: {error}") from error
    return value


@lru_cache(maxsize=64)
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((member.name, _default(member)) for member in fields(kind))


def _default(member: Field[Any]) -> Any:
    if member.default_factory is not MISSING:
        return member.default_factory()
    return member.default


@lru_cache(maxsize=64)
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _from_plain(kind: Any, plain: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        wanted = next(argument for argument in arguments if argument is not type(None))
        return None if plain is None else _from_plain(wanted, plain)
    if origin is dict:
        return {key: _from_plain(arguments[1], part) for key, part in dict(plain).items()}
    if origin is tuple:
        return _tuple(arguments, plain)
    if is_dataclass(kind):
        known, make = _types(typing.cast(type, kind)), typing.cast(type, kind)
        return make(
            **{n: _from_plain(known[n], part) for n, part in dict(plain).items() if n in known}
        )
    return _simple(kind, plain)


def _tuple(arguments: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise ValueError(f"expected a list, got {plain!r:.40}")
    if arguments[-1] is Ellipsis:
        return tuple(_from_plain(arguments[0], part) for part in plain)
    return tuple(_from_plain(kind, part) for kind, part in zip(arguments, plain, strict=True))


def _simple(kind: Any, plain: Any) -> Any:
    fits = isinstance(plain, (int, float)) if kind is float else type(plain) is kind
    if not fits or (kind is float and isinstance(plain, bool)):
        raise ValueError(f"expected {kind.__name__}, got {plain!r:.40}")
    return plain
