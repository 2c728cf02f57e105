# SPDX-License-Identifier: Apache-2.0
"""A store of blocks for callers that must not wait: its batches run in one thread of its own.

LMCache and vLLM submit work from threads that schedule requests, and collect the results later.
Several batches are under way at a time; each has a deadline, so that a server that does not reply
costs misses and no stall.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import math
import threading
from collections.abc import Coroutine, Iterator, Sequence
from time import monotonic
from typing import Any

from nfsrdma_tools.client.blocks import TIMEOUT_MOST, Blocks, blocks

__all__ = ["TIMEOUT", "Background", "Block", "is_number"]

_log = logging.getLogger(__name__)
Block = tuple[str, Any]
"""Name and memory of a block."""
TIMEOUT = 2.0
"""Seconds until a batch ends with misses, unless the caller has another limit."""


# seconds between two lines of the log about failures of one kind
_QUIET = 10.0
# ends the names of blocks that have a checksum: stores without one cannot read them
_CHECKED = ".crc32c"


class Background:
    """A store, and the event loop that runs its batches in a thread.

    With ``checksum``, blocks have other names, so that stores with and without it do not replace
    each other's.
    """

    def __init__(self, target: str, timeout: float = TIMEOUT, **options: Any) -> None:
        self.timeout = _seconds(timeout)
        self._suffix = _CHECKED if options.get("checksum") else ""
        self._logged: dict[Any, tuple[float, int]] = {}
        self._ends = contextlib.ExitStack()
        self._store: Blocks = self._ends.enter_context(blocks(target, **options))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nfsrdma", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def register(self, buffer: Any) -> None:
        """Register memory for RDMA until close(), see registered()."""
        self._ends.enter_context(self.registered(buffer))

    @contextlib.contextmanager
    def registered(self, buffer: Any) -> Iterator[None]:
        """Register memory for RDMA; if the process may not lock so much, data is copied."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._store.register(buffer))
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                _log.warning("memory is not registered, and data is copied: %s", error)
            yield

    def start(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Run a coroutine in the thread; any thread may call this."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the store is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def log_failure(self, log: logging.Logger, what: str, error: Exception) -> None:
        """Log a failure in one line, unless there was a line about its kind a few seconds ago."""
        kind = (type(error), getattr(error, "errno", None))
        # what is no error of the server is a fault of the adapter
        self._log(log, kind, f"{what}: {error}", None if isinstance(error, OSError) else error)

    def _log(
        self, log: logging.Logger, kind: Any, text: str, trace: Exception | None = None
    ) -> None:
        now = monotonic()
        last, count = self._logged.get(kind, (-math.inf, 0))
        if now < last + _QUIET:
            self._logged[kind] = last, count + 1
            return
        self._logged[kind] = now, 0
        more = f" ({count} more like it before)" if count else ""
        log.error("%s%s", text, more, exc_info=trace)

    def close(self) -> None:
        """Cancel what is under way, end the thread, and close the store."""
        if not self._loop.is_closed():
            self.start(_cancel_others()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._ends.close()

    async def get(self, wanted: Sequence[Block]) -> list[bool]:
        """Read blocks; a block of another size than its memory is a miss.

        Damaged ones are removed: puts of all hosts write them again.
        """
        until = monotonic() + self.timeout
        rows = [(name + self._suffix, memory) for name, memory in wanted]
        damaged: list[str] = []
        # one that is longer must not cost the others
        sizes = await self._store.get_async(
            rows, self.timeout, longer_is_a_miss=True, damaged=damaged
        )
        if damaged and self._suffix:
            await self._remove_damaged(damaged, until - monotonic())
        return _whole(wanted, sizes)

    async def _remove_damaged(self, names: Sequence[str], timeout: float) -> None:
        rest = f" and {len(names) - 1} others" if len(names) > 1 else ""
        self._log(_log, "damaged", f"the checksum of {names[0]}{rest} is wrong: remove")
        try:
            await self._store.remove_async(names, timeout=timeout)
        except OSError as error:
            self.log_failure(_log, "damaged blocks stay", error)

    async def put(self, given: Sequence[Block]) -> tuple[list[bool], list[int]]:
        """Write blocks that the server does not have with this size.

        Returns for each block whether the server has it, and the numbers of those that were
        written.
        """
        sizes = await self.sizes([name for name, _ in given])
        stored = _whole(given, sizes)
        missing = [number for number, is_there in enumerate(stored) if not is_there]
        batch = [(given[number][0] + self._suffix, given[number][1]) for number in missing]
        outcomes = await self._store.put_async(batch, timeout=self.timeout)
        written = [number for number, done in zip(missing, outcomes, strict=True) if done]
        for number in written:
            stored[number] = True
        return stored, written

    async def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The size of each block, None for a miss."""
        named = [name + self._suffix for name in names]
        return await self._store.exists_async(named, timeout=self.timeout)

    async def remove(self, names: Sequence[str]) -> list[bool]:
        """Remove blocks; False for those that the server did not remove."""
        named = [name + self._suffix for name in names]
        return await self._store.remove_async(named, timeout=self.timeout)


def is_number(given: Any) -> bool:
    """Whether a parameter of a framework's configuration is a number."""
    return isinstance(given, int | float) and not isinstance(given, bool)


def _seconds(timeout: Any) -> float:
    """A timeout of an adapter."""
    if not is_number(timeout) or not 0 < timeout <= TIMEOUT_MOST:
        raise ValueError(f"timeout {timeout!r}: more than 0 and at most {TIMEOUT_MOST} seconds")
    return float(timeout)


def _whole(batch: Sequence[Block], sizes: Sequence[int | None]) -> list[bool]:
    """Whether each block has the size of its memory."""
    return [
        size == memoryview(memory).nbytes for (_, memory), size in zip(batch, sizes, strict=True)
    ]


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
