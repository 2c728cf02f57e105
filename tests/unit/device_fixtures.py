# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the real library over the device of tests/device, and sessions with its server."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import COMPILER, FOLDER, SANITIZER, Device, build

from nfsrdma_tools.client import Session, connect, library, session

__all__ = [
    "DATA", "Recorder", "device", "device_library", "each_version", "opened", "recorder",
]  # fmt: skip

DATA = os.urandom(50_001)


@pytest.fixture(scope="session")
def device_library() -> Path:
    if COMPILER is None:
        pytest.skip("no gcc")
    return build(SANITIZER)


@pytest.fixture
def device(device_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device; at the end the library has done nothing wrong, and has left nothing behind."""
    made = Device(device_library)
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(device_library))
    library.load.cache_clear()
    made.put("/export", kind=FOLDER)
    made.put("/export/data", DATA)
    yield made
    library.load.cache_clear()
    assert not made.faults, made.faults
    assert not made.objects, made.objects


@pytest.fixture(params=("3", "4.1"))
def each_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Versions of NFS that the sessions of a test have; for usefixtures."""
    assert connect.__kwdefaults__
    monkeypatch.setitem(connect.__kwdefaults__, "vers", request.param)
    return str(request.param)


@pytest.fixture
def opened(device: Device) -> Iterator[Session]:
    del device
    with connect("server:/export") as made:
        yield made


class Recorder:
    """The functions of the library; notes what the binding gives to two of them."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self.options: list[dict[str, int]] = []
        self.flags: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def nfsrdma_connect(self, target: bytes, options: Any, box: Any) -> int:
        names = ("port", "timeout", "arena", "version", "personality", "optimistic", "cache")
        self.options.append({name: getattr(options, name) for name in names})
        return int(self._functions.nfsrdma_connect(target, options, box))

    def nfsrdma_open(self, of: Any, path: bytes, flags: int, mode: int, box: Any) -> int:
        self.flags.append(flags)
        return int(self._functions.nfsrdma_open(of, path, flags, mode, box))


@pytest.fixture
def recorder(device: Device, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    del device
    loaded = library.load()
    made = Recorder(loaded.functions)
    monkeypatch.setattr(session, "load", lambda: loaded._replace(functions=made))
    return made
