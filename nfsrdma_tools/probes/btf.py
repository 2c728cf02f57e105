# SPDX-License-Identifier: Apache-2.0
"""Offsets of structure members from the kernel's type information (BTF).

A probe that follows pointers of the kernel, or reads a function's arguments, needs the layout of
structures, which no header of bpf/headers declares.  The kernel exports it in /sys/kernel/btf, one
file for the kernel and one for each module, whose types and strings go on where those of the kernel
end (Documentation/bpf/btf.rst).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["Btf", "load"]

_MAGIC = 0xEB9F
# kinds
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = range(1, 9)
_VOLATILE, _CONST, _RESTRICT, _FUNC, _PROTO, _VAR, _DATASEC, _FLOAT = range(9, 17)
_DECL_TAG, _TYPE_TAG, _ENUM64 = 17, 18, 19
# bytes behind the head of a type: fixed, per member
_SIZES = {
    _INT: (4, 0), _ARRAY: (12, 0), _STRUCT: (0, 12), _UNION: (0, 12), _ENUM: (0, 8),
    _PROTO: (0, 8), _VAR: (4, 0), _DATASEC: (0, 12), _DECL_TAG: (4, 0), _ENUM64: (0, 12),
}  # fmt: skip
_THROUGH = {_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG}


class _Type(NamedTuple):
    name: int
    kind: int
    flag: bool
    size: int
    """Or the type that it refers to."""
    members: tuple[tuple[int, int, int], ...]


class Btf:
    """Types of the kernel, or of a module with those of the kernel as ``base``."""

    def __init__(self, raw: bytes, base: Btf | None = None) -> None:
        magic, _, _, length, types, types_size, strings, strings_size = struct.unpack_from(
            "<HBBIIIII", raw
        )
        if magic != _MAGIC:
            raise ValueError("no BTF")
        self.base = base
        self.strings = raw[length + strings : length + strings + strings_size]
        self.first_string: int = base.next_string if base else 0
        self.next_string: int = self.first_string + strings_size
        self.first: int = base.next if base else 1
        self.types = list(_types(raw[length + types : length + types + types_size]))
        self.next: int = self.first + len(self.types)
        self.by_name: dict[str, int] = {}
        for number, btf_type in enumerate(self.types, self.first):
            if btf_type.kind in (_STRUCT, _FUNC) and btf_type.name:
                self.by_name.setdefault(self._string(btf_type.name), number)

    def offset(self, structure: str, *path: str) -> int:
        """The offset in bytes of a member, also of members of its members.

        Members of unnamed structures and unions count as members.  KeyError if there is none.
        """
        number, offset = self._named(structure), 0
        for name in path:
            member = self._member(number, name)
            if member is None:
                raise KeyError(f"struct {structure} has no {'.'.join(path)}")
            number, bits = member
            offset += bits // 8
        return offset

    def size(self, structure: str) -> int:
        """The size of a structure in bytes."""
        return self._type(self._named(structure)).size

    def argument(self, function: str, structure: str) -> int:
        """The number, from 0, of a function's argument that points to this structure."""
        prototype = self._type(self._type(self._named(function)).size)
        for number, (_, kind, _) in enumerate(prototype.members):
            pointer = self._type(kind) if kind else None
            if pointer and pointer.kind == _PTR and self._points_to(pointer, structure):
                return number
        raise KeyError(f"{function}() has no argument struct {structure}")

    def _points_to(self, pointer: _Type, structure: str) -> bool:
        number = pointer.size
        while number:
            btf_type = self._type(number)
            if btf_type.kind not in _THROUGH:
                return btf_type.kind in (_STRUCT, _FWD) and self._string(btf_type.name) == structure
            number = btf_type.size
        return False

    def has_function(self, name: str) -> bool:
        """Whether a function of this name is in the kernel or module."""
        return name in self.by_name or (self.base is not None and self.base.has_function(name))

    def _named(self, name: str) -> int:
        if name in self.by_name:
            return self.by_name[name]
        if self.base is None:
            raise KeyError(f"no struct {name}")
        return self.base._named(name)

    def _type(self, number: int) -> _Type:
        if number < self.first and self.base:
            return self.base._type(number)
        return self.types[number - self.first]

    def _string(self, offset: int) -> str:
        if offset < self.first_string and self.base:
            return self.base._string(offset)
        at = offset - self.first_string
        return self.strings[at : self.strings.index(b"\0", at)].decode()

    def _member(self, number: int, name: str) -> tuple[int, int] | None:
        """The type of a member, and its offset in bits."""
        btf_type = self._type(number)
        while btf_type.kind in _THROUGH:
            btf_type = self._type(btf_type.size)
        if btf_type.kind not in (_STRUCT, _UNION):
            return None
        for label, kind, bits in btf_type.members:
            # with the flag, the upper bits are the size of a bit field
            start = bits & 0xFFFFFF if btf_type.flag else bits
            if label and self._string(label) == name:
                return kind, start
            inner = None if label else self._member(kind, name)
            if inner:
                return inner[0], inner[1] + start
        return None


def _types(raw: bytes) -> Iterator[_Type]:
    at = 0
    while at < len(raw):
        name, info, size = struct.unpack_from("<III", raw, at)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        at += 12
        fixed, each = _SIZES.get(kind, (0, 0))
        members: tuple[tuple[int, int, int], ...] = ()
        if kind == _PROTO:
            pairs = struct.iter_unpack("<II", raw[at : at + each * count])
            members = tuple((name, kind, 0) for name, kind in pairs)
        elif kind in (_STRUCT, _UNION):
            members = tuple(struct.iter_unpack("<III", raw[at : at + each * count]))
        at += fixed + each * count
        yield _Type(name, kind, bool(info >> 31), size, members)


def load(modules: Sequence[str], machine: Machine = LIVE) -> dict[str, Btf]:
    """The types of loaded modules, by name.  UserError if the kernel exports none."""
    folder = machine.path("sys/kernel/btf")
    try:
        base = Btf(folder.joinpath("vmlinux").read_bytes())
        files = {name: folder / name for name in modules}
        return {name: Btf(file.read_bytes(), base) for name, file in files.items() if file.exists()}
    except (OSError, ValueError, struct.error) as error:
        message = f"cannot read the kernel's type information: {error}"
        raise UserError(message, "a kernel with CONFIG_DEBUG_INFO_BTF_MODULES") from error
