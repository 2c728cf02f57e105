# SPDX-License-Identifier: Apache-2.0
"""A store of blocks by the calls of the library alone, over the device of tests/device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nfsrdma_tools.client import library
from testbed.block_oracle import EXISTS, GET, PUT, REMOVE

__all__ = ["EXISTS", "GET", "PUT", "REMOVE", "Operation", "Store"]

_MOST = 4096


class Operation(NamedTuple):
    """An element of a batch."""

    kind: int
    name: str | bytes
    memory: Any = b""


class Store:
    """Sessions, and a store over them."""

    version = 3
    """Of NFS, unless a session's options say another one."""

    def __init__(self, sessions: int = 1, session: dict[str, int] | None = None, **options: int):
        self.ffi, self.functions, *_ = library.load()
        self.sessions = [self._connect(session or {}) for _ in range(sessions)]
        given = self._options("blocks_options", options)
        box = self.ffi.new("struct nfsrdma_blocks **")
        array = self.ffi.new("struct nfsrdma_session *[]", self.sessions)
        assert not self.functions.nfsrdma_blocks_open(array, sessions, given, box), self.message()
        self.handle = box[0]
        self._done = self.ffi.new("struct nfsrdma_completion[]", _MOST)
        self._kept: list[Any] = []

    def _options(self, name: str, options: dict[str, int]) -> Any:
        kind = f"struct nfsrdma_{name}"
        return self.ffi.new(f"{kind} *", {"size": self.ffi.sizeof(kind), **options})

    def _connect(self, options: dict[str, int]) -> Any:
        box = self.ffi.new("struct nfsrdma_session **")
        given = self._options("options", {"version": self.version, **options})
        assert not self.functions.nfsrdma_connect(b"server:/export", given, box), self.message()
        return box[0]

    def message(self) -> str:
        """The text of the last failure."""
        return bytes(self.ffi.string(self.functions.nfsrdma_message())).decode()

    def register(self, memory: Any) -> Any:
        """A registered region."""
        box = self.ffi.new("struct nfsrdma_blocks_region **")
        data = self.ffi.from_buffer(memory)
        status = self.functions.nfsrdma_blocks_register(self.handle, data, len(memory), box)
        assert not status, self.message()
        return box[0]

    def unregister(self, region: Any) -> int:
        """End a registration."""
        return int(self.functions.nfsrdma_blocks_unregister(region))

    def submit(
        self, operations: Iterable[Operation], deadline: int = 0, first: int = 0
    ) -> tuple[int, int]:
        """Start a batch, whose user_data count from ``first``: the result and its number."""
        rows = list(operations)
        array = self.ffi.new("struct nfsrdma_block[]", len(rows))
        for index, row in enumerate(rows):
            raw = row.name.encode() if isinstance(row.name, str) else row.name
            name, memory = self.ffi.new("char[]", raw), self.ffi.from_buffer(row.memory)
            self._kept.extend((name, memory))
            array[index].name, array[index].operation = name, row.kind
            array[index].buf, array[index].length = memory, len(memory)
            array[index].user_data = first + index
        box = self.ffi.new("uint64_t *")
        words = (self.handle, array, len(rows), deadline, box)
        return int(self.functions.nfsrdma_blocks_submit(*words)), int(box[0])

    def wait(self, least: int, timeout: int = 60_000) -> dict[int, int]:
        """Results by user_data."""
        count = self.functions.nfsrdma_blocks_wait(self.handle, self._done, _MOST, least, timeout)
        assert count >= 0, self.message()
        return {self._done[i].user_data: self._done[i].result for i in range(count)}

    def turn(self) -> None:
        """Handle what has arrived, and take no completion."""
        assert not self.functions.nfsrdma_blocks_wait(self.handle, self._done, 0, 0, 0)

    def run(self, *operations: Operation, deadline: int = 0) -> list[int]:
        """Results of a batch."""
        count, _ = self.submit(operations, deadline)
        assert count == len(operations), self.message()
        results = self.wait(count)
        assert sorted(results) == list(range(count)), results
        self._kept.clear()
        return [results[index] for index in range(count)]

    def one(self, kind: int, name: str | bytes, memory: Any = b"", deadline: int = 0) -> int:
        """The result of an operation."""
        return self.run(Operation(kind, name, memory), deadline=deadline)[0]

    def read(self, name: str, most: int = 1 << 22) -> bytes | int:
        """A block, or a negative errno value."""
        memory = bytearray(most)
        result = self.one(GET, name, memory)
        return bytes(memory[:result]) if result >= 0 else result

    def cancel(self, batch: int) -> int:
        """End a batch."""
        return int(self.functions.nfsrdma_blocks_cancel(self.handle, batch))

    def close(self) -> None:
        """Close the store and its sessions."""
        assert self.functions.nfsrdma_blocks_close(self.handle) == 0
        self.end_sessions()

    def end_sessions(self) -> None:
        """Close the sessions."""
        for session in self.sessions:
            assert self.functions.nfsrdma_disconnect(session) == 0
