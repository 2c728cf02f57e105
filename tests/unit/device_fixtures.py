# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the real library over the device of tests/device, and sessions with its server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from device import COMPILER, FOLDER, SANITIZER, Device, build

from nfsrdma_tools.client import Session, connect, library

__all__ = ["DATA", "device", "device_library", "opened"]

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


@pytest.fixture
def opened(device: Device) -> Iterator[Session]:
    del device
    with connect("server:/export") as made:
        yield made
