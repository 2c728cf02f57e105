# SPDX-License-Identifier: Apache-2.0
"""An L2 adapter of LMCache: KV caches as blocks of an NFS server.

LMCache loads the class by its type "plugin"; ``adapter_params`` are the parameters of
``NfsRdmaL2Adapter``, see docs/how-to/frameworks.md.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from nfsrdma_tools.client.adapters.background import Background, Block, is_number

__all__ = ["NfsRdmaL2Adapter"]

_log = init_logger(__name__)
_STORE, _LOOKUP, _LOAD = _KINDS = "store", "lookup", "load"
# characters of a model's name that begin the name of its directory
_MODEL_MOST = 100


class NfsRdmaL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """Objects of LMCache in a directory of an NFS server, a file for each.

    ``target`` is SERVER:/DIRECTORY, ``timeout`` the seconds until a task ends with misses,
    ``capacity`` the bytes at which LMCache evicts (default: never); further parameters are those
    of blocks().  Other hosts share the directory.  An object that one of them removes between
    lookup and load is a miss, so that locks do nothing here.
    """

    def __init__(self, parameters: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        options = dict(parameters)
        super().__init__(max_capacity_bytes=_capacity(options.pop("capacity", 0)))
        self._target = options["target"]
        self._store = Background(**options)
        if l1_memory_desc is not None:
            memory = (ctypes.c_char * l1_memory_desc.size).from_address(l1_memory_desc.ptr)
            self._store.register(memory)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._results: dict[str, dict[int, Any]] = {kind: {} for kind in _KINDS}
        self._signals = {kind: create_event_notifier() for kind in _KINDS}

    # --- what LMCache polls ---

    def get_store_event_fd(self) -> int:
        """The eventfd of stores."""
        return int(self._signals[_STORE].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """The eventfd of lookups."""
        return int(self._signals[_LOOKUP].fileno())

    def get_load_event_fd(self) -> int:
        """The eventfd of loads."""
        return int(self._signals[_LOAD].fileno())

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """The results of stores since the last call."""
        with self._lock:
            done, self._results[_STORE] = self._results[_STORE], {}
        return done

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """The bitmap of a lookup, once; None while it is under way."""
        return self._result(_LOOKUP, task_id)

    def query_load_result(self, task_id: int) -> Any:
        """The bitmap of a load, once; None while it is under way."""
        return self._result(_LOAD, task_id)

    def _result(self, kind: str, number: int) -> Any:
        with self._lock:
            return self._results[kind].pop(number, None)

    # --- tasks ---

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Start to store objects; the server keeps those that it has."""
        return self._start(_STORE, self._do_store(keys, objects), L2StoreResult(False, 0))

    def submit_lookup_and_lock_task(
        self, keys: Sequence[Any], group_layout_descs: Mapping[int, Any]
    ) -> int:
        """Start to ask the server which objects it has."""
        del group_layout_descs
        return self._start(_LOOKUP, self._do_lookup(keys), Bitmap(len(keys)))

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Start to load objects into their memory."""
        return self._start(_LOAD, self._do_load(keys, objects), Bitmap(len(keys)))

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Do nothing: there are no locks."""

    def _start(self, kind: str, work: Coroutine[Any, Any, Any], failed: Any) -> int:
        number = next(self._numbers)
        self._store.start(self._finish(kind, number, work, failed))
        return number

    async def _finish(
        self, kind: str, number: int, work: Coroutine[Any, Any, Any], failed: Any
    ) -> None:
        try:
            result = await work
        except Exception as error:
            # LMCache waits for a result of each task
            self._store.log_failure(_log, f"{kind} of {self._target} failed", error)
            result = failed
        with self._lock:
            self._results[kind][number] = result
        self._signals[kind].notify()

    async def _do_store(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        given = _blocks(keys, objects)
        stored, written = await self._store.put(given)
        sizes = [memoryview(given[each][1]).nbytes for each in written]
        if written:
            self._notify_keys_stored([keys[each] for each in written], sizes)
        return L2StoreResult(all(stored), sum(sizes))

    async def _do_lookup(self, keys: Sequence[Any]) -> Any:
        sizes = await self._store.sizes([_name(key) for key in keys])
        return _bitmap([size is not None for size in sizes])

    async def _do_load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        loaded = await self._store.get(_blocks(keys, objects))
        if any(loaded):
            self._notify_keys_accessed(list(itertools.compress(keys, loaded)))
        return _bitmap(loaded)

    # --- the rest of the interface ---

    def delete(self, keys: Sequence[Any]) -> None:
        """Remove objects, and wait for the server; those that remain are reported as they are."""
        if keys:
            self._store.start(self._do_delete(keys)).result()

    async def _do_delete(self, keys: Sequence[Any]) -> None:
        names = [_name(key) for key in keys]
        sizes = await self._store.sizes(names)
        removed = await self._store.remove(names)
        gone = [
            (key, size)
            for key, size, done in zip(keys, sizes, removed, strict=True)
            if done and size is not None
        ]
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [size for _, size in gone])

    def report_status(self) -> dict[str, Any]:
        """Whether the thread of the store runs."""
        return {"is_healthy": self._store.alive, "type": "nfsrdma", "target": self._target}

    def close(self) -> None:
        """Cancel tasks, whose results LMCache does not collect any more, and close the store."""
        self._store.close()
        for each in self._signals.values():
            each.close()


def _capacity(given: Any) -> int:
    if not is_number(given) or not 0 <= given < math.inf:
        raise ValueError(f"capacity {given!r}: a number of bytes, or 0 for no eviction")
    return int(given)


def _blocks(keys: Sequence[Any], objects: Sequence[Any]) -> list[Block]:
    return [(_name(key), each.byte_array) for key, each in zip(keys, objects, strict=True)]


def _bitmap(bits: Sequence[bool]) -> Any:
    made = Bitmap(len(bits))
    made.batched_set([number for number, bit in enumerate(bits) if bit])
    return made


def _name(key: Any) -> str:
    """The name of an object: directories of its model and its slice, then its hash."""
    digits = key.chunk_hash.hex()
    folder = _folder(key.model_name, key.cache_salt)
    return f"{folder}/{key.kv_rank:08x}-{key.object_group_id:x}/{digits[:2]}/{digits}"


@functools.lru_cache(maxsize=1024)
def _folder(model: str, salt: str) -> str:
    """A directory for each model and salt: begins with the model, and fits any file system.

    A salt isolates users and may come from them, so that its hash stands for it.
    """
    digest = hashlib.blake2b(f"{model}\0{salt}".encode(errors="surrogatepass"), digest_size=16)
    return f"{quote(model, safe='', errors='surrogatepass')[:_MODEL_MOST]}@{digest.hexdigest()}"
