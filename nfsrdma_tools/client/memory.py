# SPDX-License-Identifier: Apache-2.0
"""Memory that is not behind the buffer protocol: of tensors, and of GPUs.

Tensors give their memory by DLPack (``__dlpack__``) or by ``__cuda_array_interface__``; neither
needs the library that made them.  That of a GPU is an address that no processor reaches: the
driver of the GPU (libcuda) exports it as a dma-buf, which the RDMA device registers.

Nothing here waits for the GPU: its kernels and copies that use the memory have ended before a read
or a write begins, and the caller waits for that.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["Dmabuf", "Memory", "behind", "exported", "found", "of_dmabuf", "size_of"]

# dlpack.h: DLDeviceType, flags of DLManagedTensorVersioned
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
_READ_ONLY, _IS_COPIED, _IS_PADDED = 1, 2, 4
_MAJOR = 1
_NAMES = (b"dltensor", b"dltensor_versioned")
# the consumer uses no stream: the producer does not synchronize
_NO_STREAM = -1
_DIMENSIONS_MOST = 64
_SIZE_MOST = 2**63 - 1
_TYPE = re.compile(r"[<>|=][a-zA-Z](\d+)", re.ASCII)
_VERSIONS = (2, 3)
# cuda.h: CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CUDA_ERROR_NOT_SUPPORTED
_DMA_BUF_FD = 1
_NOT_SUPPORTED = 801
_LIBCUDA = "libcuda.so.1"


class Memory(NamedTuple):
    """Memory by its address; a read or write takes it in place of a buffer."""

    address: int
    size: int
    on_device: bool = False
    """Only RDMA reaches it."""
    writable: bool = True
    owner: object = None
    """The object that keeps it, or None."""


class Dmabuf(NamedTuple):
    """A dma-buf, and where the memory begins in it."""

    fd: int
    offset: int


def of_dmabuf(fd: int, offset: int, length: int, address: int) -> tuple[Memory, Dmabuf]:
    """Memory that a dma-buf has, under an address of the caller's choice."""
    if min(offset, length, address) < 0:
        raise ValueError("an offset, a length or an address is negative")
    return Memory(address, length, on_device=True), Dmabuf(fd, offset)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("dimensions", ctypes.c_int32),
        ("type", _Type), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


def found(buffer: Any, writable: bool) -> Memory | None:
    """The memory of an object without the buffer protocol; None if it has no other, either.

    ValueError for memory that no read or write can use.
    """
    if isinstance(buffer, Memory):
        memory: Memory | None = buffer
    elif (interface := getattr(buffer, "__cuda_array_interface__", None)) is not None:
        memory = _of_interface(interface, buffer)
    elif hasattr(buffer, "__dlpack__"):
        memory = _of_dlpack(buffer)
    else:
        memory = None
    if memory and writable and not memory.writable:
        raise ValueError("the memory is read-only")
    return memory


def size_of(buffer: Any) -> int:
    """Bytes of the memory of an object."""
    try:
        return memoryview(buffer).nbytes
    except TypeError:
        memory = found(buffer, writable=False)
        if not memory:
            raise
        return memory.size


def behind(buffer: Any, count: int) -> Any:
    """The memory of an object without its first bytes; None if memoryview cannot divide it."""
    try:
        return memoryview(buffer).cast("B")[count:]
    except TypeError:
        memory = found(buffer, writable=False)
        if not memory:
            # elements that memoryview does not know
            return None
        place = memory._replace(address=memory.address + count, size=memory.size - count)
        return place._replace(owner=(buffer, memory.owner))


# --- tensors ---


def _placed(
    address: int, sizes: tuple[Sequence[int], Sequence[int] | None, int], unit: int
) -> tuple[int, int]:
    """Address and bytes of a tensor with a shape, strides in ``unit`` bytes, and an item size."""
    shape, strides, item = sizes
    if min(shape, default=0) < 0 or item <= 0:
        raise ValueError("a size of the tensor is negative or 0")
    size = math.prod(shape) * item
    if size > _SIZE_MOST or address < 0 or address + size > 2**64:
        raise ValueError(f"the tensor has {size} bytes at {address:#x}")
    if size and not address:
        raise ValueError("the tensor has no memory: its pointer is null")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"the tensor has {len(shape)} dimensions and {len(strides)} strides")
    if strides is not None and size:
        wanted = item
        for length, stride in zip(reversed(shape), reversed(strides), strict=True):
            if length > 1 and stride * unit != wanted:
                raise ValueError("the tensor is not contiguous, in row-major order")
            wanted *= length
    return address, size


def _of_interface(interface: Any, owner: object) -> Memory:
    """Memory of a GPU by __cuda_array_interface__."""
    try:
        version, (address, read_only) = interface["version"], interface["data"]
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        match = _TYPE.fullmatch(interface["typestr"])
        item = int(match[1]) if match else 0
        if version not in _VERSIONS or interface.get("mask") is not None:
            raise ValueError(f"__cuda_array_interface__: version {version}, or a mask")
        strides = None if strides is None else tuple(strides)
        address, size = _placed(int(address or 0), (shape, strides, item), 1)
    except (KeyError, TypeError) as error:
        raise ValueError(f"__cuda_array_interface__ has another form: {error}") from error
    return Memory(address, size, on_device=True, writable=not read_only, owner=owner)


def _capsule(buffer: Any, kind: int) -> Any:
    """The capsule of a tensor, which keeps its memory."""
    words = {"stream": _NO_STREAM} if kind == _CUDA else {}
    try:
        return buffer.__dlpack__(max_version=(_MAJOR, 0), **words)
    except TypeError:
        # before version 1.0
        return buffer.__dlpack__(**words)


def _opened(capsule: Any) -> tuple[_Tensor, int]:
    """The tensor in a capsule, and its flags."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    plain, versioned = _NAMES
    if valid(capsule, versioned):
        managed = _Versioned.from_address(pointer(capsule, versioned))
        if managed.major != _MAJOR:
            raise ValueError(f"DLPack: version {managed.major}, expected {_MAJOR}")
        return managed.tensor, managed.flags
    if valid(capsule, plain):
        return _Tensor.from_address(pointer(capsule, plain)), 0
    raise ValueError("__dlpack__ returned no capsule of a tensor")


def _of_dlpack(buffer: Any) -> Memory:
    """Memory of a tensor by DLPack, of this host or of a GPU."""
    kind = int(buffer.__dlpack_device__()[0])
    if kind not in (_CPU, _CUDA, _CUDA_HOST):
        raise ValueError(f"DLPack: memory of the device type {kind}, expected that of a CPU or GPU")
    capsule = _capsule(buffer, kind)
    tensor, flags = _opened(capsule)
    if tensor.device.kind != kind or flags & _IS_COPIED:
        raise ValueError("DLPack: the tensor gives a copy of its memory")
    count = tensor.dimensions
    if not 0 <= count <= _DIMENSIONS_MOST or (count and not tensor.shape):
        raise ValueError(f"DLPack: {count} dimensions")
    bits, lanes = tensor.type.bits, tensor.type.lanes
    if flags & _IS_PADDED:
        # an element of a few bits has a whole byte
        bits = -(-bits // 8) * 8
    if bits * lanes % 8:
        raise ValueError(f"DLPack: elements of {bits * lanes} bits share bytes: view it as bytes")
    item = bits * lanes // 8
    strides = tensor.strides[:count] if tensor.strides else None
    sizes = (tensor.shape[:count] if count else [], strides, item)
    address, size = _placed((tensor.data or 0) + tensor.offset, sizes, item)
    if size and not tensor.data:
        raise ValueError("the tensor has no memory: its pointer is null")
    # dropped, the capsule gives the memory back
    owner = (buffer, capsule)
    return Memory(address, size, kind == _CUDA, not flags & _READ_ONLY, owner)


# --- GPUs ---


@contextmanager
def exported(address: int, size: int) -> Iterator[Dmabuf]:
    """Memory of a GPU as a dma-buf, whose descriptor is closed at the end.

    OSError EOPNOTSUPP without libcuda, or if the driver or the GPU cannot export it.  The GPU's
    context is current in this thread.
    """
    # cuMemGetHandleForAddressRange() takes whole pages of the host
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    whole = -(-(address + size - start) // mmap.PAGESIZE) * mmap.PAGESIZE
    fd = _export(start, whole)
    try:
        yield Dmabuf(fd, address - start)
    finally:
        os.close(fd)


def _export(address: int, size: int) -> int:
    try:
        library = ctypes.CDLL(_LIBCUDA)
        function = library.cuMemGetHandleForAddressRange
    except (OSError, AttributeError) as error:
        text = f"no dma-buf of memory of a GPU: {error}"
        raise OSError(errno.EOPNOTSUPP, text) from error
    handle = ctypes.c_int(-1)
    words = (ctypes.c_uint64(address), ctypes.c_size_t(size), _DMA_BUF_FD, ctypes.c_uint64(0))
    status = function(ctypes.byref(handle), *words)
    if status or handle.value < 0:
        number = errno.EOPNOTSUPP if status == _NOT_SUPPORTED else errno.EIO
        text = f"cuMemGetHandleForAddressRange of {size} bytes at {address:#x}"
        raise OSError(number, f"{text}: {_error_name(library, status)}")
    return handle.value


def _error_name(library: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    if library.cuGetErrorName(status, ctypes.byref(name)) or not name.value:
        return f"CUresult {status}"
    return name.value.decode(errors="replace")
