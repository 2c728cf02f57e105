# SPDX-License-Identifier: Apache-2.0
"""The copier of fastsafetensors under its own loader, on a small model."""

from collections.abc import Iterator
from typing import Any

import pytest
import safetensors.torch
import torch
from device import FOLDER, LINK, READ, Device
from fastsafetensors.frameworks._torch import TorchTensor
from fastsafetensors.parallel_loader import PipelineParallel
from fastsafetensors.st_types import DType
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client.adapters.fastsafetensors import NfsRdmaCopier, NfsRdmaLoader

__all__ = ["device", "device_library"]

# seconds, of a machine that is busy
TIMEOUT = 120
KINDS = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip


def layers(first: int) -> dict[str, torch.Tensor]:
    """Tensors of each type, of none, one and several dimensions, of odd sizes, and an empty one."""
    torch.manual_seed(first)
    made = {
        f"layer.{first}.{kind}": (torch.rand(2 * number + 1, 3, 77) * 100).to(kind)
        for number, kind in enumerate(KINDS)
    }
    made[f"layer.{first}.scalar"] = torch.tensor(first, dtype=torch.float32)
    made[f"layer.{first}.empty"] = torch.zeros((0, 5))
    made[f"layer.{first}.large"] = torch.rand(1 << 19)
    return made


MODEL = {f"model-{number}.safetensors": layers(number) for number in range(3)}


@pytest.fixture
def server(device: Device) -> Device:
    for name, tensors in MODEL.items():
        device.put(f"/export/{name}", safetensors.torch.save(tensors))
    return device


@pytest.fixture
def loader(server: Device) -> Iterator[NfsRdmaLoader]:
    made = NfsRdmaLoader(None, target="nas:/export", timeout=TIMEOUT, sessions=2)
    yield made
    made.close()
    assert not server.connections


def loaded(files: Any) -> dict[str, torch.Tensor]:
    return {name: files.get_tensor(name) for name in files.key_to_rank_lidx}


def test_the_model_is_loaded(server: Device, loader: NfsRdmaLoader) -> None:
    loader.add_filenames({0: list(MODEL)})
    files = loader.copy_files_to_device()
    found = loaded(files)
    expected = {name: each for tensors in MODEL.values() for name, each in tensors.items()}
    assert set(found) == set(expected) == set(loader.get_keys())
    # they outlive the buffer and the sessions
    files.close()
    loader.close()
    for name, each in expected.items():
        assert (found[name].dtype, found[name].shape) == (each.dtype, each.shape)
        assert torch.equal(found[name], each), name


def test_rdma_writes_to_the_memory_of_the_tensors(server: Device, loader: NfsRdmaLoader) -> None:
    loader.add_filenames({0: list(MODEL)})
    loader.copy_files_to_device().close()
    stats = [session.stats for session in loader._store._store._sessions]
    assert sum(each.copied for each in stats) == 0
    assert sum(each.direct for each in stats) > 0


def test_files_are_loaded_one_behind_the_other(server: Device, loader: NfsRdmaLoader) -> None:
    """As inference servers load a model: in batches, by threads of fastsafetensors."""
    pipeline = PipelineParallel(None, loader, list(MODEL), use_tqdm_on_load=False)
    found = {name: each.clone() for name, each in pipeline.iterate_weights()}
    pipeline.close()
    for tensors in MODEL.values():
        for name, each in tensors.items():
            assert torch.equal(found.pop(name), each), name
    assert not found


def test_tensors_are_converted(server: Device, loader: NfsRdmaLoader) -> None:
    tensors = {"a": torch.rand(100, 7), "b": torch.rand(5)}
    server.put("/export/single", safetensors.torch.save(tensors))
    loader.add_filenames({0: ["single"]})
    files = loader.copy_files_to_device(dtype=DType.BF16)
    for name, each in tensors.items():
        assert torch.equal(files.get_tensor(name), each.to(torch.bfloat16))
    files.close()


def test_a_filter_keeps_tensors(server: Device, loader: NfsRdmaLoader) -> None:
    loader.set_tensor_filter(lambda name: name.endswith("large"))
    loader.add_filenames({0: list(MODEL)})
    files = loader.copy_files_to_device()
    found = loaded(files)
    assert sorted(found) == [f"layer.{number}.large" for number in range(3)]
    assert torch.equal(found["layer.1.large"], layers(1)["layer.1.large"])
    files.close()


def test_a_file_that_changes_is_an_error_and_the_next_load_works(
    server: Device, loader: NfsRdmaLoader
) -> None:
    name = next(iter(MODEL))
    loader.add_filenames({0: list(MODEL)})
    server.put(f"/export/{name}", b"short")
    with pytest.raises(OSError, match=name):
        loader.copy_files_to_device()
    server.put(f"/export/{name}", safetensors.torch.save(MODEL[name]))
    files = loader.copy_files_to_device()
    assert len(loaded(files)) == len(loader.get_keys())
    files.close()


def test_another_file_of_the_same_size_is_an_error(server: Device, loader: NfsRdmaLoader) -> None:
    """The header that was read would cut its tensors out at the wrong places."""
    first = safetensors.torch.save({"a": torch.zeros(1000), "b": torch.ones(500)})
    second = safetensors.torch.save({"a": torch.ones(500), "b": torch.zeros(1000)})
    assert len(first) == len(second)
    server.put("/export/single", first)
    loader.add_filenames({0: ["single"]})
    server.put("/export/single", second)
    with pytest.raises(OSError, match="single has changed since its header was read"):
        loader.copy_files_to_device()
    loader.reset()
    loader.add_filenames({0: ["single"]})
    files = loader.copy_files_to_device()
    assert files.get_tensor("a").shape == (500,)
    files.close()


def test_links_are_followed(server: Device) -> None:
    """As in a cache of models, whose files are links to those named by their hashes."""
    data = safetensors.torch.save({"a": torch.arange(10)})
    for folder in ("hub", "hub/blobs", "hub/snapshots", "hub/snapshots/1"):
        server.put(f"/export/{folder}", kind=FOLDER)
    server.put("/export/hub/blobs/hash", data)
    links = {
        "hub/snapshots/1/model": "../../blobs/hash",
        "hub/main": "snapshots/1",
        "absolute": "/export/hub/main/./model",
        "outside": "../secret",
        "elsewhere": "/exported/model",
        "circle": "circle",
    }
    for name, text in links.items():
        server.put(f"/export/{name}", text.encode(), kind=LINK)
    loader = NfsRdmaLoader(None, target="nas:/export", timeout=TIMEOUT)
    for name in ("hub/snapshots/1/model", "hub/main/model", "absolute", "/hub/./blobs//hash"):
        loader.add_filenames({0: [name]})
        files = loader.copy_files_to_device()
        assert torch.equal(files.get_tensor("a"), torch.arange(10))
        files.close()
        loader.reset()
    for name, error in (
        ("outside", "link out of"),
        ("elsewhere", "link out of"),
        ("circle", "Too"),
    ):
        with pytest.raises(OSError, match=error):
            loader.add_filenames({0: [name]})
    loader.close()


def test_the_timeout_is_that_of_headers_too(server: Device) -> None:
    loader = NfsRdmaLoader(None, target="nas:/export", timeout=0.5)
    server.hold(READ)
    with pytest.raises(TimeoutError, match="500 ms"):
        loader.add_filenames({0: list(MODEL)})
    server.hold()
    loader.close()


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 8, b"\x09" + bytes(7) + b"{}", b"abc"])
def test_a_file_of_another_kind_is_an_error(
    server: Device, loader: NfsRdmaLoader, data: bytes
) -> None:
    server.put("/export/other", data)
    with pytest.raises(ValueError, match="other is no file of safetensors"):
        loader.add_filenames({0: ["other"]})


def test_a_missing_file_is_an_error(server: Device, loader: NfsRdmaLoader) -> None:
    with pytest.raises(FileNotFoundError):
        loader.add_filenames({0: ["none"]})


def test_a_server_that_is_silent_is_an_error(server: Device) -> None:
    loader = NfsRdmaLoader(None, target="nas:/export", timeout=0.5)
    loader.add_filenames({0: list(MODEL)})
    server.hold(READ)
    with pytest.raises(OSError, match="in time"):
        loader.copy_files_to_device()
    server.hold()
    loader.close()


def test_another_device_gets_copies(
    server: Device, loader: NfsRdmaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, as far as a machine without one can go it."""
    monkeypatch.setattr(NfsRdmaCopier, "_is_direct", False)
    true_to = TorchTensor.to

    def to(self: Any, device: Any = None, dtype: Any = DType.AUTO) -> Any:
        copy = TorchTensor(self.device, self.dtype, self.real_tensor.clone())
        return true_to(copy, device, dtype)

    monkeypatch.setattr(TorchTensor, "to", to)
    loader.add_filenames({0: list(MODEL)})
    files = loader.copy_files_to_device()
    found = loaded(files)
    for tensors in MODEL.values():
        for name, each in tensors.items():
            assert torch.equal(found[name], each), name
    files.close()
    assert loader.framework.get_mem_used() == 0
