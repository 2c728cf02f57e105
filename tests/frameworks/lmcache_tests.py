# SPDX-License-Identifier: Apache-2.0
"""The adapter of LMCache under LMCache: its own check, and what the check leaves out."""

import asyncio
import errno
import json
import select
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device import FOLDER, LOOKUP, READ, WRITE, Device
from lmcache.v1 import basic_check
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client.adapters import lmcache as adapter

__all__ = ["device", "device_library"]

COUNT, FLOATS = 8, 65_536
# seconds, of a machine that is busy; and a limit that passes
TIMEOUT, SHORT = 120, 0.5
POLL_MS = 2 * TIMEOUT * 1000


def spec(**parameters: Any) -> dict[str, Any]:
    return {
        "type": "plugin",
        "module_path": "nfsrdma_tools.client.adapters.lmcache",
        "class_name": "NfsRdmaL2Adapter",
        "adapter_params": {"target": "nas:/export/kv", **parameters},
    }


@pytest.fixture
def server(device: Device) -> Device:
    device.put("/export/kv", kind=FOLDER)
    return device


@pytest.mark.parametrize("parameters", [{}, {"sessions": 4, "checksum": True}])
def test_its_own_check_passes(
    server: Device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    parameters: dict[str, Any],
) -> None:
    words = ["--mode", "test_l2_adapter", "--num-keys", str(COUNT), "--obj-size", str(FLOATS)]
    given = ["--l2-adapter", json.dumps(spec(timeout=TIMEOUT, **parameters))]
    monkeypatch.setattr(sys, "argv", ["basic_check", "--model", "org/model", *words, *given])
    asyncio.run(basic_check.main())
    printed = capsys.readouterr().out
    assert f"Validation: {COUNT}/{COUNT} correctly absent" in printed
    assert "Batch store OK" in printed
    assert f"Validation: {COUNT}/{COUNT} found" in printed
    assert f"Validation (loaded): {COUNT}/{COUNT}" in printed
    assert f"Validation (content): {COUNT}/{COUNT}" in printed
    assert not server.connections


class Cache:
    """An adapter with L1 memory, and tasks that are waited for."""

    def __init__(self, **parameters: Any) -> None:
        self.memory = torch.zeros((2 * COUNT, FLOATS))
        described = L1MemoryDesc(self.memory.data_ptr(), self.memory.nbytes, 4096)
        config = get_l2_adapter_config_class("plugin").from_dict(spec(**parameters))
        self.adapter = create_l2_adapter(config, l1_memory_desc=described)

    def objects(self, first: int, count: int = COUNT) -> list[TensorMemoryObj]:
        return [self.object(each) for each in self.memory[first : first + count]]

    @staticmethod
    def object(row: torch.Tensor) -> TensorMemoryObj:
        data = MemoryObjMetadata(
            shape=row.shape, dtype=row.dtype, address=row.data_ptr(), phy_size=row.nbytes,
            fmt=MemoryFormat.KV_2LTD, ref_count=1,
        )  # fmt: skip
        return TensorMemoryObj(row, data, parent_allocator=None)

    def store(self, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> Any:
        number = self.adapter.submit_store_task(keys, objects)
        wait(self.adapter.get_store_event_fd())
        return self.adapter.pop_completed_store_tasks()[number]

    def lookup(self, keys: list[ObjectKey]) -> list[bool]:
        number = self.adapter.submit_lookup_and_lock_task(keys, {})
        wait(self.adapter.get_lookup_and_lock_event_fd())
        return bits(self.adapter.query_lookup_and_lock_result(number), len(keys))

    def load(self, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> list[bool]:
        number = self.adapter.submit_load_task(keys, objects)
        wait(self.adapter.get_load_event_fd())
        found = bits(self.adapter.query_load_result(number), len(keys))
        assert self.adapter.query_load_result(number) is None
        return found


def wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(POLL_MS)
    consume_fd(descriptor)


def bits(bitmap: Any, count: int) -> list[bool]:
    return [bitmap.test(number) for number in range(count)]


def keys(model: str = "org/model", salt: str = "", first: int = 0) -> list[ObjectKey]:
    return [
        ObjectKey(ObjectKey.IntHash2Bytes(number), model, kv_rank=3, cache_salt=salt)
        for number in range(first, first + COUNT)
    ]


@pytest.fixture
def cache(server: Device) -> Iterator[Cache]:
    del server
    made = Cache(timeout=TIMEOUT, sessions=2, capacity=1 << 30)
    yield made
    made.adapter.close()


def test_l1_memory_is_read_and_written_without_a_copy(server: Device, cache: Cache) -> None:
    cache.memory[:COUNT] = torch.rand((COUNT, FLOATS))
    stored = cache.store(keys(), cache.objects(0))
    assert stored.bytes_transferred() == cache.memory[:COUNT].nbytes
    assert all(cache.load(keys(), cache.objects(COUNT)))
    assert torch.equal(cache.memory[:COUNT], cache.memory[COUNT:])
    stats = [session.stats for session in cache.adapter._store._store._sessions]
    assert sum(each.copied for each in stats) == 0
    assert sum(each.direct for each in stats) > 0


def test_an_object_is_written_once(server: Device, cache: Cache) -> None:
    assert cache.store(keys(), cache.objects(0)).bytes_transferred() > 0
    again = cache.store(keys(), cache.objects(0))
    assert again.is_successful()
    assert again.bytes_transferred() == 0
    assert cache.adapter.get_usage().total_bytes_used == cache.memory[:COUNT].nbytes


def test_an_object_of_another_size_is_a_miss_and_is_replaced(server: Device, cache: Cache) -> None:
    small = [cache.object(each) for each in cache.memory[:COUNT, : FLOATS // 2]]
    assert cache.store(keys(), small).is_successful()
    assert not any(cache.load(keys(), cache.objects(COUNT)))
    assert cache.store(keys(), cache.objects(0)).bytes_transferred() > 0
    assert all(cache.load(keys(), cache.objects(COUNT)))


def test_an_object_that_is_too_long_costs_no_others(server: Device, cache: Cache) -> None:
    assert cache.store(keys(), cache.objects(0)).is_successful()
    small = [cache.object(each) for each in cache.memory[COUNT:, : FLOATS // 2]]
    mixed = [*small[:2], *cache.objects(COUNT + 2, COUNT - 2)]
    assert cache.load(keys(), mixed) == [False] * 2 + [True] * (COUNT - 2)
    assert not any(cache.load(keys(), small))


def files_below(server: Device, folder: str) -> list[str]:
    paths = [f"{folder}/{name}" for name in server.names(folder)]
    found: list[str] = []
    for path in paths:
        found += [path] if server.get(path) else files_below(server, path)
    return found


def test_an_object_that_is_damaged_is_written_again(server: Device) -> None:
    cache = Cache(timeout=TIMEOUT, checksum=True)
    cache.memory[:COUNT] = torch.rand((COUNT, FLOATS))
    assert cache.store(keys(), cache.objects(0)).is_successful()
    damaged = files_below(server, "/export/kv")[0]
    data = server.get(damaged)
    assert data
    server.put(damaged, bytes([data[0] ^ 1]) + data[1:])
    other = Cache(timeout=TIMEOUT, checksum=True)
    assert other.load(keys(), other.objects(COUNT)).count(False) == 1
    assert cache.lookup(keys()).count(False) == 1
    assert cache.store(keys(), cache.objects(0)).bytes_transferred() == cache.memory[0].nbytes
    for each in (cache, other):
        assert all(each.load(keys(), each.objects(COUNT)))
        each.adapter.close()


def test_failures_of_a_kind_are_one_line(
    server: Device, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        adapter._log, "error", lambda text, *words, **more: lines.append(text % words)
    )
    server.error(WRITE, errno.ENOSPC, times=1000)
    for _ in range(5):
        assert not cache.store(keys(), cache.objects(0)).is_successful()
    server.no_errors()
    assert len(lines) == 1
    assert "store of nas:/export/kv failed" in lines[0]
    assert "No space left" in lines[0]


@pytest.mark.parametrize("wrong", [{"timeout": "2"}, {"timeout": 0}, {"capacity": "5G"}])
def test_a_wrong_parameter_is_an_error(server: Device, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Cache(**wrong)


def test_users_and_models_are_apart(server: Device, cache: Cache) -> None:
    assert cache.store(keys(), cache.objects(0)).is_successful()
    for other in (keys("org-model"), keys(salt="u"), keys(salt="\u00e9" * 128), keys("../model")):
        assert not any(cache.lookup(other))
        assert cache.store(other, cache.objects(0)).bytes_transferred() > 0
        assert all(cache.lookup(other))


def test_objects_of_another_host_are_found_and_those_that_are_gone_are_misses(
    server: Device, cache: Cache
) -> None:
    other = Cache(timeout=TIMEOUT)
    cache.memory[:COUNT] = torch.rand((COUNT, FLOATS))
    assert cache.store(keys(), cache.objects(0)).is_successful()
    assert all(other.lookup(keys()))
    other.adapter.delete(keys()[:1])
    expected = [number != 0 for number in range(COUNT)]
    assert cache.load(keys(), cache.objects(COUNT)) == expected
    assert torch.equal(cache.memory[1:COUNT], cache.memory[COUNT + 1 :])
    assert cache.lookup(keys()) == expected
    other.adapter.close()


def test_a_delete_is_counted(server: Device, cache: Cache) -> None:
    assert cache.store(keys(), cache.objects(0)).is_successful()
    cache.adapter.delete([*keys(), *keys(first=100)])
    assert cache.adapter.get_usage().total_bytes_used == 0
    assert not any(cache.lookup(keys()))


@pytest.mark.parametrize("procedure", [LOOKUP, READ, WRITE])
def test_a_server_that_is_silent_costs_misses(server: Device, cache: Cache, procedure: int) -> None:
    assert cache.store(keys(), cache.objects(0)).is_successful()
    late = Cache(timeout=SHORT)
    server.hold(procedure)
    if procedure == WRITE:
        assert not late.store(keys(first=100), late.objects(0)).is_successful()
    elif procedure == READ:
        assert not any(late.load(keys(), late.objects(COUNT)))
    else:
        assert not any(late.lookup(keys(first=100)))
    server.hold()
    late.adapter.close()
    assert all(cache.load(keys(), cache.objects(COUNT)))


def test_close_waits_for_no_reply(server: Device) -> None:
    cache = Cache(timeout=3600)
    assert cache.store(keys(), cache.objects(0)).is_successful()
    server.hold(READ)
    cache.adapter.submit_load_task(keys(), cache.objects(COUNT))
    cache.adapter.close()
    server.hold()
