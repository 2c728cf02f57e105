# SPDX-License-Identifier: Apache-2.0
"""A secondary tier of vLLM's KV offload: chunks of KV cache as blocks of an NFS server.

vLLM loads the class by the ``module_path`` of a tier, see docs/how-to/frameworks.md.  Its interface
is experimental in vLLM.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, ClassVar

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from nfsrdma_tools.client.adapters.background import TIMEOUT, Background, Block

__all__ = ["NfsRdmaTier"]

_log = init_logger(__name__)
_Work = Callable[[Sequence[Block]], Coroutine[Any, Any, list[bool]]]


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    """Asks the server in the thread that vLLM has for it."""

    def __init__(self, tier: NfsRdmaTier) -> None:
        super().__init__(tier_type=tier.tier_type)
        self._tier = tier

    def batch_lookup(self, keys: list[Any], req_context: Any) -> Iterable[bool]:
        """Whether the server has each chunk, with the size of one."""
        del req_context
        sizes = self._tier.store.sizes([self._tier.name(key) for key in keys])
        size = self._tier.block_size_bytes
        return [each == size for each in self._tier.store.start(sizes).result()]


class NfsRdmaTier(SecondaryTierManager):  # type: ignore[misc]
    """Chunks of vLLM's primary tier in a directory of an NFS server, a file for each.

    ``target`` is SERVER:/DIRECTORY, ``timeout`` the seconds until a job ends with misses; further
    options are those of blocks().  Files have the names and the content of those that vLLM's own
    tier "fs" has below its ``root_dir``, as long as ``checksum`` is off: instances with a mount and
    without one share them.
    """

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        target: str,
        *,
        timeout: float = TIMEOUT,
        locality: str = "REMOTE",
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality)
        mapper = FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self._file_name = mapper.get_file_name
        self._memory = primary_kv_view.cast("B")
        self._target = target
        self.store = Background(target, timeout, **options)
        self.store.register(primary_kv_view)
        self._lookups = _Lookups(self)
        self._jobs: set[Future[None]] = set()
        # results, and the keys of a load that failed
        self._finished: queue.SimpleQueue[tuple[Any, list[Any]]] = queue.SimpleQueue()

    def name(self, key: Any) -> str:
        """The name of a chunk."""
        return str(self._file_name(key)).lstrip("/")

    # --- what the scheduler calls ---

    def on_new_request(self, req_context: Any) -> Any:
        """Return no preference for a request."""
        del req_context
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> Any:
        """HIT, MISS, or RETRY until the server has replied."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Ask the server about the chunks of this step."""
        del context
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what a request asked."""
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: Any) -> None:
        """Start to write chunks; the server keeps those that it has."""
        self._start(job_metadata, self._put)

    def submit_load(self, job_metadata: Any) -> None:
        """Start to read chunks into the primary tier."""
        self._start(job_metadata, self.store.get)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that have ended since the last call."""
        results: list[Any] = []
        while True:
            try:
                result, failed = self._finished.get_nowait()
            except queue.Empty:
                return results
            # the scheduler would load them again, without end
            self._lookups.mark_miss(failed)
            results.append(result)

    def drain_jobs(self) -> None:
        """Wait until no job is under way; each ends by its timeout."""
        wait(self._jobs)

    def shutdown(self) -> None:
        """End lookups and jobs, and close the store."""
        self._lookups.shutdown()
        wait(self._jobs)
        self.store.close()
        # vLLM unmaps it after this
        self._memory.release()

    # --- jobs ---

    def _start(self, job: Any, work: _Work) -> None:
        size = self.block_size_bytes
        # a slice would be short without an error
        if any(not 0 <= int(place) < len(self._memory) // size for place in job.chunk_ids):
            raise ValueError(f"a chunk of job {job.job_id} is not in the primary tier")
        places = [int(place) * size for place in job.chunk_ids]
        keys = list(job.keys)
        batch = [
            (self.name(key), self._memory[place : place + size])
            for key, place in zip(keys, places, strict=True)
        ]
        future = self.store.start(self._run(job, keys, batch, work))
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)

    async def _run(self, job: Any, keys: list[Any], batch: list[Block], work: _Work) -> None:
        begun = monotonic()
        try:
            done = await work(batch)
        except Exception as error:
            # the scheduler waits for a result of each job
            kind = "load" if job.is_promotion else "store"
            self.store.log_failure(_log, f"{kind} of {self._target} failed", error)
            done = [False] * len(keys)
        good = tuple(key for key, each in zip(keys, done, strict=True) if each)
        failed = [key for key, each in zip(keys, done, strict=True) if not each]
        result = JobResult(
            job_id=job.job_id,
            success=not failed,
            successful_keys=good if failed and good and job.is_promotion else None,
            transfer_time=monotonic() - begun,
            transfer_bytes=len(good) * self.block_size_bytes,
        )
        self._finished.put((result, failed if job.is_promotion else []))

    async def _put(self, batch: Sequence[Block]) -> list[bool]:
        stored, _ = await self.store.put(batch)
        return stored
