# SPDX-License-Identifier: Apache-2.0
"""The coroutines of fsspec's asynchronous file systems, for a file system that is synchronous.

A session has one call for names or attributes at a time, in a thread or not, so that coroutines of
their own would gain nothing: each runs the synchronous function in a thread, and the event loop
never waits.  Reads gain: those that start together travel in one batch, by one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fsspec.asyn import AsyncFileSystem, get_loop

__all__ = ["Coroutines"]

# those that fsspec calls; _cat() and others are made of them
_NAMES = {
    **{
        name: name for name in (
            "cat_ranges", "copy", "cp_file", "du", "exists", "expand_path", "find", "get",
            "get_file", "glob", "info", "isdir", "isfile", "ls", "makedirs", "mkdir", "pipe",
            "pipe_file", "put", "put_file", "rm", "rm_file", "size", "sizes",
        )
    },
    "mv_file": "mv",
}  # fmt: skip
# about as many as are under way at a time
_BATCH = 64


class _Batch(NamedTuple):
    """Reads that travel together, and the task that has their results."""

    rows: list[tuple[str, int | None, int | None]]
    task: asyncio.Task[list[Any]]


class Coroutines(AsyncFileSystem):  # type: ignore[misc]
    """A file system with synchronous functions and, on request, coroutines beside them.

    ``asynchronous=True`` makes an instance for coroutines, which may run in any event loop.
    Any other instance is synchronous to fsspec: it needs no thread with a loop, and a forked
    process may use it.
    """

    async_impl = False
    mirror_sync_methods = False

    def __init__(self, asynchronous: bool = False, loop: Any = None, **options: Any) -> None:
        # with False, it would start a thread
        super().__init__(asynchronous=True, **options)
        self.asynchronous = self.async_impl = asynchronous
        self._loop = loop
        self._batches: dict[asyncio.AbstractEventLoop, _Batch] = {}

    @property
    def loop(self) -> Any:
        """The event loop for fsspec's sync()."""
        return None if self.asynchronous else self._loop or get_loop()

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of a file; the reads of this turn of the event loop are one batch."""
        loop = asyncio.get_running_loop()
        batch = self._batches.get(loop)
        if batch is None or batch.task.done() or len(batch.rows) == _BATCH:
            rows: list[Any] = []
            batch = _Batch(rows, loop.create_task(self._read_batch(loop, rows)))
            self._batches[loop] = batch
        number = len(batch.rows)
        batch.rows.append((path, start, end))
        # the others read on if this one is canceled
        outcome = (await asyncio.shield(batch.task))[number]
        if isinstance(outcome, BaseException):
            raise outcome
        return bytes(outcome)

    async def _read_batch(self, loop: asyncio.AbstractEventLoop, rows: list[Any]) -> list[Any]:
        # a task begins after all that were ready before it
        if self._batches[loop].rows is rows:
            del self._batches[loop]
        outcomes: list[Any] = await asyncio.to_thread(self.cat_ranges, *zip(*rows, strict=True))
        return outcomes


def _in_thread(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: Coroutines, *words: Any, **options: Any) -> Any:
        # of coroutines that run together
        options.pop("batch_size", None)
        return await asyncio.to_thread(getattr(self, name), *words, **options)

    return call


for _coroutine, _function in _NAMES.items():
    setattr(Coroutines, f"_{_coroutine}", _in_thread(_function))
