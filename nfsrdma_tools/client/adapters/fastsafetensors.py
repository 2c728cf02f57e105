# SPDX-License-Identifier: Apache-2.0
"""A copier and a loader of fastsafetensors: files of weights from an NFS server, without a mount.

    from nfsrdma_tools.client.adapters.fastsafetensors import NfsRdmaLoader

    loader = NfsRdmaLoader(None, "cpu", target="server:/export/model")
    loader.add_filenames({0: ["model-00001-of-00002.safetensors"]})
    files = loader.copy_files_to_device()

The names are those below the directory of ``target``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from fastsafetensors.common import SafeTensorsMetadata
from fastsafetensors.copier.base import CopierInterface, DummyDeviceBuffer
from fastsafetensors.copier.nogds import load_library_func
from fastsafetensors.copier.registry import register_copier_constructor
from fastsafetensors.frameworks import get_framework_op
from fastsafetensors.loader import BaseSafeTensorsFileLoader
from fastsafetensors.st_types import Device, DeviceType, DType

from nfsrdma_tools.client.adapters.background import Background
from nfsrdma_tools.client.place import split_target
from nfsrdma_tools.client.session import Session, connect

__all__ = ["NfsRdmaCopier", "NfsRdmaLoader"]

_TYPE = "nfsrdma"
_TIMEOUT = 600.0
# the first tensor begins at a multiple of it
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_HEADER_MOST = 100_000_000
_LINKS_MOST = 40
# seconds that a session waits for a reply by default
_REPLY_TIMEOUT = 60.0
# the other options are those of connect()
_OF_BLOCKS = ("sessions", "in_flight", "handles", "trust")


class _Metadata(SafeTensorsMetadata):  # type: ignore[misc]
    """The header of a file, and the name of the block."""

    def __init__(self, raw: bytes, size: int, framework: Any, name: str, block: str) -> None:
        super().__init__(raw[_LENGTH_BYTES:].decode(), len(raw), size, framework, name)
        self.raw, self.block = raw, block


class NfsRdmaCopier(CopierInterface):  # type: ignore[misc]
    """Reads a file as one block.

    RDMA writes to the memory of the tensors if the device is the CPU.  For another device, it
    writes to memory of the host, and the framework copies the tensors.
    """

    def __init__(self, metadata: Any, device: Any, framework: Any, store: Background) -> None:
        self.metadata = metadata
        self._device, self._framework, self._store = device, framework, store
        self._offset = -metadata.header_length % _ALIGNMENT
        self._host = Device(DeviceType.CPU)
        self._memory: Any = None
        self._read: Future[list[bool]] | None = None

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        """Start to read the file, header included."""
        del use_buf_register, max_copy_block_size
        size = self.metadata.size_bytes
        self._memory = self._framework.alloc_tensor_memory(self._offset + size, self._host)
        start = self._memory.get_base_address() + self._offset
        target = (ctypes.c_char * size).from_address(start)
        self._read = self._store.start(self._load(target))
        return self._memory if self._is_direct else DummyDeviceBuffer()

    def wait_io(
        self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None
    ) -> dict[str, Any]:
        """Wait for the file, and make its tensors."""
        del gbuf, noalign
        with contextlib.ExitStack() as stack:
            if not self._is_direct:
                owner = None
                stack.callback(self._framework.free_tensor_memory, self._memory, self._host)
            self.finish_io()
            # the file begins at _offset
            tensors = self.metadata.get_tensors(
                self._memory, self._host, -self._offset, dtype=dtype, owner=owner
            )
            if not self._is_direct:
                tensors = {name: each.to(self._device) for name, each in tensors.items()}
        return dict(tensors)

    def finish_io(self) -> None:
        """Wait until RDMA writes no more.  OSError if the file did not arrive whole."""
        read, self._read = self._read, None
        if read is None:
            return
        name, raw = self.metadata.src, self.metadata.raw
        if not all(read.result()):
            raise OSError(f"{name} is gone, has changed, or did not arrive in time")
        start = self._memory.get_base_address() + self._offset
        if ctypes.string_at(start, len(raw)) != raw:
            raise OSError(f"{name} has changed since its header was read: add it again")

    @property
    def _is_direct(self) -> bool:
        return bool(self._device.type == DeviceType.CPU)

    async def _load(self, target: Any) -> list[bool]:
        with self._store.registered(target):
            return await self._store.get([(self.metadata.block, target)])


@register_copier_constructor(_TYPE, NfsRdmaCopier)  # type: ignore[untyped-decorator]
def _constructor(device: Any, store: Background, **options: Any) -> Callable[..., NfsRdmaCopier]:
    del device
    load_library_func(options.get("framework"))

    def construct(metadata: Any, device: Any, framework: Any) -> NfsRdmaCopier:
        return NfsRdmaCopier(metadata, device, framework, store)

    return construct


class NfsRdmaLoader(BaseSafeTensorsFileLoader):  # type: ignore[misc]
    """Loads files of tensors from SERVER:/DIRECTORY.

    ``timeout`` is the limit in seconds for all files that start together, and for each reply to
    the calls that read a header, but there at most 60; symbolic links are followed below the
    directory of ``target``.  Further ``options`` are
    those of blocks() but ``checksum``.
    """

    def __init__(
        self,
        pg: Any,
        device: str = "cpu",
        *,
        target: str,
        timeout: float = _TIMEOUT,
        framework: str = "pytorch",
        **options: Any,
    ) -> None:
        operations = get_framework_op(framework)
        group = operations.get_process_group(pg)
        self._ends = contextlib.ExitStack()
        with contextlib.ExitStack() as ends:
            own = {name: each for name, each in options.items() if name not in _OF_BLOCKS}
            self._store = Background(target, timeout, **options)
            ends.callback(self._store.close)
            limit = min(self._store.timeout, _REPLY_TIMEOUT)
            self._headers = ends.enter_context(connect(target, timeout=limit, **own))
            super().__init__(
                pg,
                operations.get_device(device, group),
                copier_type=_TYPE,
                framework=framework,
                store=self._store,
            )
            self._ends = ends.pop_all()

    def add_filenames(self, filenames: Mapping[int, list[str]]) -> None:
        """Read the headers of files, for the ranks that copy them."""
        for rank, names in filenames.items():
            for name in names:
                metadata = self._header(name)
                self.meta[name] = (metadata, rank)
                self.frames.update(metadata.tensors)

    def _header(self, name: str) -> Any:
        block = _resolved(self._headers, name)
        with self._headers.open(block) as file:
            size = file.size()
            length = int.from_bytes(file.pread(_LENGTH_BYTES, 0), "little")
            if size < _LENGTH_BYTES or length > min(_HEADER_MOST, size - _LENGTH_BYTES):
                raise ValueError(f"{name} is no file of safetensors")
            raw = file.pread(_LENGTH_BYTES + length, 0)
        return _Metadata(raw, size, self.framework, name, block)

    def close(self) -> None:
        """Close the sessions; tensors stay valid."""
        super().close()
        self._ends.close()


def _resolved(session: Session, name: str) -> str:
    """The path of a file without symbolic links, which a block must not have."""
    todo, done, links = name.split("/")[::-1], list[str](), 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                raise _outside(session, name)
            done.pop()
            continue
        path = "/".join([*done, part])
        if not stat.S_ISLNK(session.lstat(path).st_mode):
            done.append(part)
            continue
        links += 1
        if links > _LINKS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        text = session.readlink(path)
        if text.startswith("/"):
            text, done = _below(session, name, text), []
        todo.extend(text.split("/")[::-1])
    return "/".join(done)


def _below(session: Session, name: str, path: str) -> str:
    """The part of an absolute path of the server below the directory of the session."""
    folder = split_target(session.target)[1].strip("/")
    if not f"{path}/".startswith(f"/{folder}/" if folder else "/"):
        raise _outside(session, name)
    return path[len(folder) + 1 :]


def _outside(session: Session, name: str) -> OSError:
    text = f"{name} is a link out of {session.target}: let target be a directory above both"
    return OSError(errno.EXDEV, text)
