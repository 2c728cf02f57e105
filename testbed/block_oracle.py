# SPDX-License-Identifier: Apache-2.0
"""Which versions of a block a get may return, and memory to which nothing may write.

A version of a block is random bytes, so that no mix of two versions is one.  The oracle knows which
versions a name may have: those of puts that succeeded last, of puts that are unfinished, and of
puts that ended without a result, which may take effect later.  Memory that the library has given
back is filled with other bytes, and nothing may write to it.
"""

from __future__ import annotations

import errno
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["EXISTS", "GET", "PUT", "REMOVE", "Oracle", "Started"]

# enum nfsrdma_block_operation
GET, PUT, EXISTS, REMOVE = 1, 2, 3, 4
# errors after which the old version is there for certain
_DEFINITE = {-errno.EACCES, -errno.ENOSPC}
_UNKNOWN = {-errno.ETIMEDOUT, -errno.ECANCELED}
_ERRORS = _DEFINITE | _UNKNOWN | {-errno.EIO, -errno.ESTALE, -errno.ENOENT}


@dataclass
class Started:
    """An operation that the library has."""

    kind: int
    name: str
    place: int
    value: bytes | None
    allowed: set[bytes | None]
    """Versions that a get may return: each put that starts meanwhile adds its own."""
    overlaps: bool = False
    """Another put or remove of the name was under way at a time."""


@dataclass
class Block:
    """The versions that a name may have now."""

    values: set[bytes | None] = field(default_factory=lambda: {None})
    uncertain: set[bytes | None] = field(default_factory=set)
    """Of puts and removes without a result."""
    changes: dict[int, Started] = field(default_factory=dict)
    """Puts and removes that are unfinished."""


class Oracle:
    """The blocks, and memory for the operations of some stores: ``places`` for each."""

    def __init__(
        self, chance: random.Random, stores: int, sizes: Sequence[int], places: int = 16
    ) -> None:
        self.random, self.sizes, self.room = chance, sizes, max(sizes)
        # another version begins elsewhere in it
        self._source = chance.randbytes(self.room * 4)
        self.slabs = [bytearray(self.room * places) for _ in range(stores)]
        self._views = [memoryview(slab) for slab in self.slabs]
        self.free = [list(range(places)) for _ in self.slabs]
        self._canaries: list[dict[int, bytes]] = [{} for _ in self.slabs]
        self.started: list[dict[int, Started]] = [{} for _ in self.slabs]
        self.blocks: defaultdict[str, Block] = defaultdict(Block)
        self.serial, self.unknown = 1, 0
        """The number of the next operation, and of puts and removes that ended without a result."""
        self.counts: Counter[tuple[int, int]] = Counter()
        """Operations by kind and error, or 0."""

    def _bytes(self, size: int) -> bytes:
        at = self.random.randrange(len(self._source) - size)
        return self._source[at : at + size]

    def memory(self, which: int, place: int, size: int = -1) -> memoryview:
        """The memory of a place of a store, or the begin of it."""
        at = place * self.room
        return self._views[which][at : at + (self.room if size < 0 else size)]

    def begin(self, which: int, kind: int, name: str) -> memoryview:
        """Begin an operation of a store, with the number ``serial``; returns its memory."""
        place = self.free[which].pop(self.random.randrange(len(self.free[which])))
        self._check_canary(which, place)
        self._canaries[which].pop(place, None)
        block, value = self.blocks[name], None
        memory = self.memory(which, place)
        if kind == PUT:
            value = self._bytes(self.random.choice(self.sizes))
            memory = self.memory(which, place, len(value))
            memory[:] = value
        started = Started(kind, name, place, value, block.values | block.uncertain)
        self.started[which][self.serial] = started
        if kind in (PUT, REMOVE):
            for each in block.changes.values():
                each.overlaps = started.overlaps = True
            block.changes[self.serial] = started
            # operations that are unfinished may see it
            for all_of_one in self.started:
                for each in all_of_one.values():
                    if each.name == name:
                        each.allowed.add(value)
        for each in block.changes.values():
            started.allowed.add(each.value)
        self.serial += 1
        return memory

    def end(self, which: int, serial: int, result: int) -> None:
        """An operation has ended: check its result, and fill its memory."""
        started = self.started[which].pop(serial)
        self._check(which, serial, started, result)
        canary = self._bytes(self.room)
        self.memory(which, started.place)[:] = canary
        self._canaries[which][started.place] = canary
        self.free[which].append(started.place)

    def _check(self, which: int, serial: int, started: Started, result: int) -> None:
        block = self.blocks[started.name]
        self.counts[started.kind, min(result, 0)] += 1
        assert result >= 0 or result in _ERRORS, (started.kind, started.name, result)
        if started.kind == GET and result >= 0:
            found = bytes(self.memory(which, started.place, result))
            assert found in started.allowed, (started.name, result)
        elif started.kind == EXISTS and result >= 0:
            assert result in {len(each) for each in started.allowed if each is not None}
        elif started.kind in (GET, EXISTS) and result == -errno.ENOENT:
            assert None in started.allowed, started.name
        elif started.kind in (PUT, REMOVE):
            del block.changes[serial]
            self._changed(block, started, result)

    def _changed(self, block: Block, started: Started, result: int) -> None:
        """A put or a remove has ended: which versions may the name have?"""
        done = result >= 0 or (started.kind == REMOVE and result == -errno.ENOENT)
        if done and started.kind == PUT:
            assert started.value is not None and result == len(started.value)
        if not done and result not in _DEFINITE:
            block.uncertain.add(started.value)
            self.unknown += 1
        # those that overlapped with it have no order
        if done and not started.overlaps:
            block.values = {started.value, *(each.value for each in block.changes.values())}
        elif done:
            block.values.add(started.value)

    def _check_canary(self, which: int, place: int) -> None:
        canary = self._canaries[which].get(place)
        # a comparison of views takes ten times as long
        assert canary is None or bytes(self.memory(which, place)) == canary, (which, place)

    def check_canaries(self, which: int) -> None:
        """Nothing has written to the memory of a store that no operation has."""
        for place in self._canaries[which]:
            self._check_canary(which, place)
