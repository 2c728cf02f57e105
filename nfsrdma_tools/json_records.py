# SPDX-License-Identifier: Apache-2.0
"""Records in JSON that another program, version or person may have written."""

from __future__ import annotations

from dataclasses import MISSING, fields
from json import JSONDecodeError
from typing import Any, TypeVar

from nfsrdma_tools.errors import one_line

__all__ = ["INVALID", "fault", "record"]

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
    known = {one.name: one for one in fields(kind) if one.init}  # type: ignore[arg-type]
    for name in row:
        if name not in known:
            raise ValueError(f"unknown key {repr(name)[:80]}")
    for name, one in known.items():
        if name not in row and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{name!r} is missing")
    return kind(**row)
