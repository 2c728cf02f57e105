# SPDX-License-Identifier: Apache-2.0
"""The tier of vLLM under vLLM's tiering manager, with its real primary tier in shared memory."""

import mmap
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from device import FOLDER, LOOKUP, READ, WRITE, Device
from unit.device_fixtures import device, device_library
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

__all__ = ["device", "device_library"]

CHUNKS, SIZE = 8, 16 * mmap.PAGESIZE
# seconds, of a machine that is busy; and a limit that passes
SECONDS, SHORT = 120, 0.5
REQUEST = ReqContext(req_id="request")


def config() -> OffloadingConfig:
    return OffloadingConfig(
        groups=(),
        worker_kv_bytes_per_block=SIZE,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig(name="org/model", dtype="float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    )  # fmt: skip


SPEC: Any = types.SimpleNamespace(config=config(), blocks_per_chunk=1)


class Instance:
    """A primary tier, the tier, and the manager that moves chunks between them."""

    def __init__(self, **options: Any) -> None:
        region = SharedOffloadRegion(uuid.uuid4().hex, CHUNKS, None, SIZE, SIZE)
        self.primary = CPUPrimaryTierOffloadingManager(CHUNKS, region)
        self.view = self.primary.get_kv_memoryview()
        self.chunks: Any = np.asarray(self.view).view(np.uint8)
        tier = {
            "type": "NfsRdmaTier",
            "module_path": "nfsrdma_tools.client.adapters.vllm",
            "target": "nas:/export/kv",
            **options,
        }
        self.tier = SecondaryTierFactory.create_secondary_tier(tier, self.view, SPEC)
        self.manager = TieringOffloadingManager(self.primary, [self.tier])
        self.manager.on_new_request(REQUEST)

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def store(self, keys: list[Any], rows: Any) -> None:
        """As the engine: space in the primary tier, a copy from the GPU, and its end."""
        made = self.manager.prepare_store(keys, REQUEST)
        assert list(made.keys_to_store) == keys
        self.chunks[made.store_spec.block_ids] = rows
        self.manager.complete_store(keys, REQUEST)
        self.step()
        self.tier.drain_jobs()
        self.step()

    def find(self, key: Any) -> Any:
        """Step until the answer of a lookup is final."""
        return until(lambda: self._find(key))

    def _find(self, key: Any) -> Any:
        found = self.manager.lookup(key, REQUEST)
        self.step()
        return found if found in (LookupResult.HIT, LookupResult.MISS) else None

    def row(self, key: Any) -> Any:
        made = self.manager.prepare_load([key], REQUEST)
        row = self.chunks[made.block_ids[0]].copy()
        self.manager.complete_load([key], REQUEST)
        return row

    def close(self) -> None:
        del self.chunks
        self.manager.on_request_finished(REQUEST)
        self.manager.shutdown()


def until(question: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while (answer := question()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


def keys(first: int, count: int) -> list[Any]:
    return [make_offload_key(number.to_bytes(32), 0) for number in range(first, first + count)]


def rows(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE), dtype=np.uint8)


@pytest.fixture
def server(device: Device) -> Device:
    device.put("/export/kv", kind=FOLDER)
    return device


@pytest.fixture
def instance(server: Device) -> Iterator[Instance]:
    made = Instance(timeout=SECONDS, sessions=2)
    yield made
    made.close()
    assert not server.connections


def test_it_is_a_tier(instance: Instance) -> None:
    assert isinstance(instance.tier, SecondaryTierManager)
    assert instance.tier.block_size_bytes == SIZE


def test_another_instance_loads_what_one_stored(server: Device, instance: Instance) -> None:
    wanted, data = keys(0, 4), rows(4)
    instance.store(wanted, data)
    other = Instance(timeout=SECONDS, checksum=False)
    for key, row in zip(wanted, data, strict=True):
        assert other.find(key) is LookupResult.HIT
        assert np.array_equal(other.row(key), row)
    assert other.find(keys(100, 1)[0]) is LookupResult.MISS
    stats = [session.stats for session in other.tier.store._store._sessions]
    assert sum(each.copied for each in stats) == 0
    assert sum(each.direct for each in stats) > 0
    other.close()


def test_files_are_those_of_the_tier_of_files(
    server: Device, instance: Instance, tmp_path: Any
) -> None:
    memory: Any = np.zeros((CHUNKS, SIZE), dtype=np.uint8)
    spec = types.SimpleNamespace(config=SPEC.config, blocks_per_chunk=1)
    tier = FileSystemTierManager(spec, memoryview(memory), "fs", str(tmp_path))
    (key,), data = keys(0, 1), rows(1)
    instance.store([key], data)
    name = tier.file_mapper.get_file_name(key).removeprefix(f"{tmp_path}/")
    assert server.get(f"/export/kv/{name}") == data.tobytes()
    tier.shutdown()


def test_more_chunks_than_the_primary_tier_has(server: Device, instance: Instance) -> None:
    every, data = keys(0, 3 * CHUNKS), rows(3 * CHUNKS)
    for first in range(0, len(every), CHUNKS):
        instance.store(every[first : first + CHUNKS], data[first : first + CHUNKS])
    for key, row in zip(every, data, strict=True):
        assert instance.find(key) is LookupResult.HIT
        assert np.array_equal(instance.row(key), row)


def job(number: int, wanted: list[Any], places: list[int], promotion: bool = True) -> TransferJob:
    return TransferJob(number, wanted, np.array(places), promotion, REQUEST)


def finished(instance: Instance) -> Any:
    instance.tier.drain_jobs()
    (result,) = instance.tier.get_finished_jobs()
    assert not list(instance.tier.get_finished_jobs())
    return result


def test_a_chunk_that_is_gone_fails_alone(server: Device, instance: Instance) -> None:
    good, missing = keys(0, 2), keys(100, 1)
    instance.store(good, rows(2))
    instance.tier.submit_load(job(7, [good[0], *missing, good[1]], [4, 5, 6]))
    result = finished(instance)
    assert (result.job_id, result.success) == (7, False)
    assert list(result.successful_keys) == good
    assert np.array_equal(instance.chunks[[4, 6]], rows(2))


def test_a_chunk_of_another_size_is_a_miss(server: Device, instance: Instance) -> None:
    (key,) = keys(0, 1)
    instance.store([key], rows(1))
    other = Instance(timeout=SECONDS)
    server.put(f"/export/kv/{instance.tier.name(key)}", b"short")
    assert other.find(key) is LookupResult.MISS
    other.close()


def test_a_chunk_that_is_damaged_is_written_again(server: Device) -> None:
    (key,), data = keys(0, 1), rows(1)
    first = Instance(timeout=SECONDS, checksum=True)
    first.store([key], data)
    path = f"/export/kv/{first.tier.name(key)}.crc32c"
    stored = server.get(path)
    assert stored
    server.put(path, bytes([stored[0] ^ 1]) + stored[1:])
    first.tier.submit_load(job(7, [key], [4]))
    assert not finished(first).success
    first.close()
    second = Instance(timeout=SECONDS, checksum=True)
    assert second.find(key) is LookupResult.MISS
    second.store([key], data)
    assert server.get(path) == stored
    second.close()


@pytest.mark.parametrize("wrong", ["2", 0, -1, float("nan"), None])
def test_a_wrong_timeout_is_an_error(server: Device, wrong: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Instance(timeout=wrong)


@pytest.mark.parametrize("procedure", [LOOKUP, READ, WRITE])
def test_a_server_that_is_silent_costs_misses(
    server: Device, instance: Instance, procedure: int
) -> None:
    known, new = keys(0, 2), keys(100, 2)
    instance.store(known, rows(2))
    late = Instance(timeout=SHORT)
    server.hold(procedure)
    if procedure == LOOKUP:
        assert late.find(new[0]) is LookupResult.MISS
    elif procedure == READ:
        late.tier.submit_load(job(7, known, [4, 5]))
        assert not finished(late).success
    else:
        late.tier.submit_store(job(7, new, [4, 5], promotion=False))
        assert not finished(late).success
    server.hold()
    late.close()
    instance.tier.submit_load(job(8, known, [4, 5]))
    assert finished(instance).success


def test_a_job_outside_of_the_primary_tier_is_refused(server: Device, instance: Instance) -> None:
    for place in (-1, CHUNKS):
        with pytest.raises(ValueError, match="not in the primary tier"):
            instance.tier.submit_load(job(7, keys(0, 1), [place]))


def test_no_chunks_are_a_job(server: Device, instance: Instance) -> None:
    instance.tier.submit_load(job(7, [], []))
    assert finished(instance).success
