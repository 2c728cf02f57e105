# SPDX-License-Identifier: Apache-2.0
"""Memory without the buffer protocol: tensors of this host and of GPUs, and dma-bufs."""

import asyncio
import ctypes
import errno
import gc
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device import READ, Device
from unit.device_fixtures import DATA, device, device_library, each_version
from wire.native import COMPILER

from nfsrdma_tools.client import Session, connect, memory
from nfsrdma_tools.client.blocks import blocks
from nfsrdma_tools.client.memory import Memory
from nfsrdma_tools.command import run
from testbed.node.dmabufs import Unreachable

__all__ = ["device", "device_library", "each_version"]

HERE = Path(__file__).parent
PAGE = mmap.PAGESIZE
SPACE = 64 * PAGE
CPU, CUDA, CUDA_HOST, ROCM = 1, 2, 3, 10
READ_ONLY, COPIED, PADDED = 1, 2, 4
FLOAT = (2, 32, 1)

_NEW = ctypes.pythonapi.PyCapsule_New
_NEW.restype, _NEW.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@pytest.fixture
def unreachable() -> Iterator[Unreachable]:
    made = Unreachable(SPACE)
    yield made
    made.close()


@pytest.fixture
def opened(device: Device) -> Iterator[Session]:
    del device
    # what a test has dropped is closed before the device looks
    with connect("server:/export") as made:
        yield made
    gc.collect()


# --- dma-bufs ---


@pytest.mark.usefixtures("each_version")
def test_a_dmabuf_is_read_and_written(
    device: Device, opened: Session, unreachable: Unreachable
) -> None:
    device.put("/export/out")
    with (
        opened.register_dmabuf(unreachable.fd, 0, SPACE, unreachable.address) as region,
        opened.open("data") as file, opened.open("out", "r+") as out,
    ):  # fmt: skip
        assert file.pread_into(region.memory(5, 100), 7) == 100
        assert unreachable.get(5, 100) == DATA[7:107]
        device.set(shortened=1)
        assert file.pread_into(region.memory(), 0) == len(DATA)
        assert unreachable.get(0, len(DATA)) == DATA
        assert opened.read_ranges([(file, 3, 1000), (file, 0, 9)], region.memory(PAGE)) == [1000, 9]
        assert unreachable.get(PAGE, 1009) == DATA[3:1003] + DATA[:9]
        assert out.pwrite(region.memory(0, 300), 2) == 300
        assert asyncio.run(file.readinto_async(region.memory(1, 50), 40_000)) == 50
        assert unreachable.get(1, 50) == DATA[40_000:40_050]
        assert asyncio.run(out.pwrite_async(region.memory(1, 50), 2)) == 50
    assert device.get("/export/out") == bytes(2) + DATA[40_000:40_050] + DATA[50:300]
    assert opened.stats.copied_bytes == 0


def test_a_part_of_a_region_is_within_it(opened: Session, unreachable: Unreachable) -> None:
    region = opened.register_dmabuf(unreachable.fd, 0, PAGE, unreachable.address)
    assert region.memory(PAGE) == (unreachable.address + PAGE, 0, True, True, region)
    for offset, length in ((-1, None), (PAGE + 1, None), (0, PAGE + 1), (1, PAGE), (0, -1)):
        with pytest.raises(ValueError, match=f"the region has {PAGE} bytes"):
            region.memory(offset, length)
    for words in ((-1, PAGE, 1), (0, -1, 1), (0, 1, -1)):
        with pytest.raises(ValueError, match="is negative"):
            opened.register_dmabuf(unreachable.fd, *words)


def test_memory_of_a_device_needs_a_region(
    device: Device, opened: Session, unreachable: Unreachable
) -> None:
    place = Memory(unreachable.address, PAGE, on_device=True)
    file = opened.open("data", "r+")
    region = opened.register_dmabuf(unreachable.fd, 0, PAGE // 2, unreachable.address)

    def fails() -> None:
        for call in (
            lambda: file.pread_into(place, 0),
            lambda: file.pwrite(place, 0),
            lambda: opened.read_ranges([(file, 0, 10)], place),
            lambda: asyncio.run(file.readinto_async(place, 0)),
        ):
            with pytest.raises(OSError, match="memory of the GPU is not registered") as caught:
                call()
            assert caught.value.errno == errno.EOPNOTSUPP

    fails()
    region.close()
    fails()
    assert device.get("/export/data") == DATA


def test_a_region_that_ends_takes_its_transfers_with_it(
    device: Device, opened: Session, unreachable: Unreachable
) -> None:
    # a call has one beside the reads
    device.set(credits=100)
    file = opened.open("data")
    for drop in (False, True):
        region = opened.register_dmabuf(unreachable.fd, 0, SPACE, unreachable.address)
        part = region.memory()._replace(owner=None)
        # more operations than the library takes at a time
        device.hold(READ)
        transfer = opened.start_read([(file, 0, 7)] * 500, part)
        if drop:
            del region
            gc.collect()
            # the next call ends it
            opened.stat("data")
            device.hold()
        else:
            device.hold()
            region.close()
        with pytest.raises(OSError, match="the region is closed"):
            transfer.result()
        with pytest.raises(OSError, match="is not registered"):
            file.pread_into(part, 0)


def test_blocks_of_a_dmabuf(device: Device, unreachable: Unreachable) -> None:
    with blocks("server:/export", sessions=2) as store:
        region = store.register_dmabuf(unreachable.fd, 0, SPACE, unreachable.address)
        data = os.urandom(3000)
        unreachable.fill(data, 77)
        host = bytearray(b"x" * 100)
        rows = [("a", region.memory(77, 3000)), ("b", host)]
        assert store.put(rows) == [True, True]
        assert device.get("/export/a") == data
        unreachable.fill(bytes(SPACE))
        got = bytearray(200)
        rows = [("a", region.memory(1, 5000)), ("b", got), ("none", region.memory(0, 1))]
        assert store.get(rows) == [3000, 100, None]
        assert (unreachable.get(1, 3000), got[:101]) == (data, host + b"\0")
        assert asyncio.run(store.get_async([("a", region.memory(2))])) == [3000]
        assert unreachable.get(2, 3000) == data
        region.close()
        with pytest.raises(OSError, match="memory of the GPU is not registered"):
            store.get([("a", Memory(unreachable.address, 10, on_device=True))])
        with pytest.raises(ValueError, match="is negative"):
            store.register_dmabuf(unreachable.fd, 0, -1, unreachable.address)
    with (
        blocks("server:/export", checksum=True) as store,
        pytest.raises(OSError, match="the store has checksums"),
    ):
        store.register_dmabuf(unreachable.fd, 0, SPACE, unreachable.address)


def test_a_region_of_blocks_is_busy_until_all_of_a_batch_is_done(
    device: Device, unreachable: Unreachable
) -> None:
    device.put("/export/block", b"y" * 500)
    with blocks("server:/export", in_flight=4) as store:
        region = store.register_dmabuf(unreachable.fd, 0, SPACE, unreachable.address)
        rows = [("block", region.memory(number, 500)) for number in range(40)]
        batch = store._batch(store._functions.NFSRDMA_BLOCK_GET, rows)
        for least in (0, 4):
            with store._lock:
                store._submit(batch, math.inf)
                store._wait(least, 60_000)
            # the library has four, and then none: it gets the others later
            with pytest.raises(OSError, match="unfinished operations use the region"):
                region.close()
        store._stop(batch)
        region.close()


# --- DLPack ---


class Tensor:
    """An object that exports memory by DLPack and has no buffer protocol."""

    def __init__(self, array: Any, **words: Any) -> None:
        self._array = array
        self._words = words

    def __dlpack__(self, **words: Any) -> Any:
        return self._array.__dlpack__(**(words | self._words))

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


class Made:
    """A capsule with any words; numbers of the DLPack header."""

    def __init__(
        self, address: int | None, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
        *, kind: int = CPU, says: int = 0, item: tuple[int, int, int] = FLOAT, flags: int = 0,
        version: int | None = 1, count: int | None = None, offset: int = 0, name: bytes = b"",
    ):  # fmt: skip
        self.says = says or kind
        self.streams: list[int | None] = []
        many = len(shape) or 1
        self.shape = (ctypes.c_int64 * many)(*shape)
        self.strides = (ctypes.c_int64 * many)(*strides) if strides else None
        tensor = memory._Tensor(
            address, memory._Device(kind, 0), len(shape) if count is None else count,
            memory._Type(*item), self.shape, self.strides, offset,
        )  # fmt: skip
        self.struct: ctypes.Structure = tensor
        if version is not None:
            self.struct = memory._Versioned(version, 1, None, None, flags, tensor)
        self.name = name or (b"dltensor" if version is None else b"dltensor_versioned")
        self.version = version

    def __dlpack__(self, *, stream: int | None = None, **words: Any) -> Any:
        if self.version is None and words:
            raise TypeError("an unexpected keyword argument")
        self.streams.append(stream)
        return _NEW(ctypes.addressof(self.struct), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.says, 0


@pytest.mark.usefixtures("each_version")
def test_tensors_of_this_host_are_not_copied(device: Device, opened: Session) -> None:
    array = np.zeros((10, 100), "f4")
    tensor = Tensor(array)
    with opened.register(tensor), opened.open("data", "r+") as file:
        assert file.pread_into(tensor, 5) == array.nbytes
        assert array.tobytes() == DATA[5:4005]
        assert file.pwrite(tensor, 0) == array.nbytes
        assert opened.read_ranges([(file, 9000, 4000)], tensor) == [4000]
        assert array.tobytes() == DATA[9000:13_000]
    assert device.get("/export/data") == DATA[5:4005] + DATA[4000:]


def test_tensors_of_this_host_in_a_store(device: Device) -> None:
    array = np.frombuffer(bytearray(DATA[:4000]), "u1")
    tensor = Tensor(array)
    with blocks("server:/export") as store:
        assert store.put([("block", tensor)]) == [True]
        array[:] = 0
        assert store.get([("block", tensor)]) == [4000]
    assert array.tobytes() == device.get("/export/block") == DATA[:4000]


def test_a_long_read_goes_on_in_a_tensor(device: Device) -> None:
    array = np.zeros(len(DATA), "u1")
    device.set(read_max=4096)
    with connect("server:/export") as session, session.open("data") as file:
        assert file.pread_into(Tensor(array), 0) == len(DATA)
        assert array.tobytes() == DATA
        assert file.pread_into(Tensor(array), len(DATA) - 3) == 3


def test_a_tensor_keeps_its_memory_until_it_is_not_used(opened: Session) -> None:
    class Watched(np.ndarray):
        pass

    gone: list[int] = []
    array = np.zeros(50_001, "u1").view(Watched)
    import weakref

    weakref.finalize(array, gone.append, 1)
    tensor = Tensor(array)
    region = opened.register(tensor)
    del array, tensor
    gc.collect()
    assert not gone
    region.close()
    del region
    gc.collect()
    assert gone == [1]


def test_forms_of_dlpack(opened: Session) -> None:
    room = (ctypes.c_uint8 * 4000)()
    address = ctypes.addressof(room)
    with opened.open("data") as file:
        for made, size in (
            (Made(address, (1000,)), 4000),
            (Made(address, (1000,), version=None), 4000),
            (Made(address, (10, 100), (100, 1)), 4000),
            (Made(address, (10, 1, 100), (100, -7, 1)), 4000),
            (Made(address, (), count=0), 4),
            (Made(address, (10, 0, 5)), 0),
            (Made(None, (0,)), 0),
            (Made(address, (7,), item=(4, 4, 1), flags=PADDED), 7),
            (Made(address, (7,), item=(4, 4, 2)), 7),
            (Made(address, (7,), item=(2, 16, 2)), 28),
            (Made(address, (900,), offset=400), 3600),
            (Made(address, (1000,), kind=CUDA_HOST), 4000),
        ):
            ctypes.memset(address, 0, 4000)
            assert file.pread_into(made, 0) == size
            at = made.struct.tensor.offset if made.version else 0
            assert bytes(room) == bytes(at) + DATA[:size] + bytes(4000 - at - size)
            assert set(made.streams) == {None}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"strides": (2,)}, "not contiguous"),
    ({"strides": (-1,)}, "not contiguous"),
    ({"strides": (0,)}, "not contiguous"),
    ({"shape": (10, 10), "strides": (1, 10)}, "not contiguous"),
    ({"shape": (-1,)}, "negative"),
    ({"shape": (-2, -2)}, "negative"),
    ({"shape": (2**62, 2**62)}, "the tensor has"),
    ({"shape": (2**61,)}, "the tensor has"),
    ({"shape": (2**63 - 1,), "item": (1, 16, 1)}, "the tensor has"),
    ({"address": None}, "pointer is null"),
    ({"address": None, "offset": 4096}, "pointer is null"),
    ({"item": (2, 0, 1)}, "negative or 0"),
    ({"item": (2, 32, 0)}, "negative or 0"),
    # packed: 16 elements in 8 bytes
    ({"item": (4, 4, 1), "shape": (16,)}, "elements of 4 bits"),
    ({"item": (6, 1, 1), "shape": (16,)}, "elements of 1 bits"),
    ({"flags": READ_ONLY}, "read-only"),
    ({"flags": COPIED}, "a copy"),
    ({"version": 2}, "version 2, expected 1"),
    ({"version": 0}, "version 0, expected 1"),
    ({"kind": ROCM}, "device type 10"),
    ({"kind": CUDA, "says": CPU}, "a copy"),
    ({"count": -1}, "-1 dimensions"),
    ({"count": 65}, "65 dimensions"),
    ({"name": b"used_dltensor"}, "no capsule"),
    ({"offset": 2**64 - 4}, "the tensor has"),
]


@pytest.mark.parametrize(("words", "text"), BAD)
def test_a_wrong_tensor_is_refused(opened: Session, words: dict[str, Any], text: str) -> None:
    room = (ctypes.c_uint8 * 400)()
    given: dict[str, Any] = {"address": ctypes.addressof(room), "shape": (100,)} | words
    for call in (opened.register, lambda made: opened.open("data").pread_into(made, 0)):
        with pytest.raises(ValueError, match=text) as caught:
            call(Made(**given))
        assert "\n" not in str(caught.value)
    assert bytes(room) == bytes(400)


def test_what_is_no_memory_is_refused(opened: Session) -> None:
    for other in (5, "text", object()):
        with pytest.raises(TypeError):
            opened.register(other)
        with pytest.raises(TypeError):
            opened.open("data").pread_into(other, 0)
    with pytest.raises((TypeError, BufferError, ValueError)):
        opened.register(b"read-only")


# --- GPUs ---


class Gpu:
    """Memory of a GPU by __cuda_array_interface__."""

    def __init__(self, address: int, *shape: int, **words: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address, False), "version": 3,
            "strides": None, "stream": 1,
        } | words  # fmt: skip


class Cuda:
    """The stand-in for libcuda."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.reset()

    def reset(self, error: int = 0) -> None:
        """Forget all exports."""
        self._library.standin_reset(error)

    def export(self, number: int) -> tuple[int, int, int]:
        """Descriptor, address and size of an export."""
        address, size = ctypes.c_ulonglong(), ctypes.c_size_t()
        words = (ctypes.byref(address), ctypes.byref(size))
        return self._library.standin_export(number, *words), address.value, size.value


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not COMPILER:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    flags = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    run(COMPILER, *flags, HERE / "libcuda.c", "-o", path)
    return path


@pytest.fixture
def cuda(libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    monkeypatch.setattr(memory, "_LIBCUDA", str(libcuda))
    made = Cuda(libcuda)
    yield made
    made.reset()


def gpu_tensors(address: int, count: int) -> list[Any]:
    return [Gpu(address, count), Made(address, (count,), kind=CUDA)]


@pytest.mark.usefixtures("each_version")
@pytest.mark.parametrize("form", (0, 1))
def test_a_tensor_of_a_gpu_is_read_and_written(
    device: Device, opened: Session, unreachable: Unreachable, cuda: Cuda, form: int
) -> None:
    # not at the start of a page
    address, count = unreachable.address + 512, 3000
    tensor = gpu_tensors(address, count)[form]
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    region = opened.register(tensor)
    fd, start, size = cuda.export(0)
    assert (start, size) == (unreachable.address, -(-(512 + 4 * count) // PAGE) * PAGE)
    # that of the test, and that of the library
    assert len(os.listdir("/proc/self/fd")) == descriptors + 2  # noqa: PTH208
    with opened.open("data", "r+") as file:
        assert file.pread_into(tensor, 3) == 4 * count
        assert os.pread(fd, size, 0) == bytes(512) + DATA[3:12_003] + bytes(size - 12_512)
        # a part of the tensor
        part = gpu_tensors(address + 100, 25)[form]
        assert file.pwrite(part, 0) == 100
        assert opened.read_ranges([(file, 20_000, 100)], part) == [100]
        assert os.pread(fd, 100, 612) == DATA[20_000:20_100]
    assert device.get("/export/data") == DATA[103:203] + DATA[100:]
    assert opened.stats.copied_bytes == 0
    region.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1  # noqa: PTH208
    if form:
        assert set(tensor.streams) == {-1}


def test_a_tensor_of_a_gpu_in_a_store(device: Device, unreachable: Unreachable, cuda: Cuda) -> None:
    with blocks("server:/export", sessions=2) as store:
        tensor = Gpu(unreachable.address + 64, 1000)
        region = store.register(tensor)
        fd, _, size = cuda.export(0)
        assert size == PAGE
        data = os.urandom(4000)
        assert os.pwrite(fd, data, 64) == 4000
        assert store.put([("block", tensor)]) == [True]
        assert device.get("/export/block") == data
        assert os.pwrite(fd, bytes(PAGE), 0) == PAGE
        assert store.get([("block", tensor)]) == [4000]
        assert os.pread(fd, PAGE, 0) == bytes(64) + data + bytes(PAGE - 4064)
        region.close()


def test_reasons_why_a_gpu_exports_nothing(
    opened: Session, unreachable: Unreachable, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason() -> tuple[int | None, str]:
        with pytest.raises(OSError, match=r"GPU|cuMem") as caught:
            opened.register(Gpu(unreachable.address, 10))
        assert "\n" not in str(caught.value)
        return caught.value.errno, str(caught.value)

    for error, number, text in (
        (801, errno.EOPNOTSUPP, "CUDA_ERROR_NOT_SUPPORTED"),
        (1, errno.EIO, "CUDA_ERROR_INVALID_VALUE"),
        (999, errno.EIO, "CUresult 999"),
    ):
        cuda.reset(error)
        found, message = reason()
        assert (found, message.endswith(text)) == (number, True), message
    for name in ("/nowhere/libcuda.so.1", "libc.so.6"):
        monkeypatch.setattr(memory, "_LIBCUDA", name)
        assert reason()[0] == errno.EOPNOTSUPP


def test_the_descriptor_of_an_export_is_closed_after_an_error(
    device: Device, opened: Session, unreachable: Unreachable, cuda: Cuda
) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    device.fail("reg_dmabuf_mr", errno.EOPNOTSUPP)
    with pytest.raises(OSError, match="by this device or its driver") as caught:
        opened.register(Gpu(unreachable.address, 10))
    assert caught.value.errno == errno.EOPNOTSUPP
    cuda.reset()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    # the same memory once more
    opened.register(Gpu(unreachable.address, 10)).close()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"version": 1}, "version 1"),
        ({"version": 4}, "version 4"),
        ({"mask": object()}, "or a mask"),
        ({"typestr": "f4"}, "negative or 0"),
        ({"typestr": "<f0"}, "negative or 0"),
        ({"typestr": 4}, "another form"),
        ({"data": 5}, "another form"),
        ({"data": (0, False)}, "pointer is null"),
        ({"data": (None, False)}, "pointer is null"),
        ({"data": (2**64 - 4, False)}, "the tensor has 400 bytes"),
        ({"data": (-4096, False)}, "the tensor has 400 bytes"),
        ({"data": (4096, True)}, "read-only"),
        ({"shape": (-1,)}, "negative"),
        ({"shape": 5}, "another form"),
        ({"strides": (8,)}, "not contiguous"),
        ({"strides": (-4,)}, "not contiguous"),
        ({"strides": (4, 4)}, "1 dimensions and 2 strides"),
        ({"shape": (2**62, 4)}, "the tensor has"),
    ],
)
def test_a_wrong_interface_is_refused(opened: Session, words: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        opened.register(Gpu(unreachable_page(), 100, **words))
    assert "\n" not in str(caught.value)


def unreachable_page() -> int:
    """An address that nothing has."""
    return 1 << 46
