# SPDX-License-Identifier: Apache-2.0
"""No byte is lost without an error: writes, fsync, close and restarts of the server.

The calls of the library run over the device of tests/device, whose server loses at a restart what
it has not committed.  An oracle knows which open files have to report a loss.
"""

import errno
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("device", reason="no tests/device; missed: restarts between write and fsync")

from device import FOLDER, Device, build  # noqa: E402

from nfsrdma_tools.client import library  # noqa: E402

SIZE = 64
SEQUENCES = 50
STEPS = 40
FILES = ("a", "b")


class Client:
    """The calls of the library, without the package's own rules for them."""

    def __init__(self) -> None:
        self.ffi, self.functions = library.load()
        box = self.ffi.new("struct nfsrdma_session **")
        assert not self.functions.nfsrdma_connect(b"server:/export", self.ffi.NULL, box)
        self.session = box[0]

    def open(self, name: str, flags: int = os.O_RDWR) -> Any:
        box = self.ffi.new("struct nfsrdma_file **")
        path = name.encode()
        assert not self.functions.nfsrdma_open(self.session, path, flags, 0o644, box)
        return box[0]

    def write(self, file: Any, data: bytes, offset: int = 0) -> None:
        assert self.functions.nfsrdma_pwrite(file, data, len(data), offset) == len(data)

    def fsync(self, file: Any) -> int:
        return int(self.functions.nfsrdma_fsync(file))

    def close(self, file: Any) -> int:
        return int(self.functions.nfsrdma_close(file))

    def release(self, file: Any) -> None:
        self.functions.nfsrdma_release(file)

    def batch(self, file: Any, data: bytes) -> dict[int, int]:
        """A write, and a close behind it, by one doorbell; returns their results."""
        functions = self.functions
        memory = self.ffi.from_buffer(data)
        assert not functions.nfsrdma_prepare_write(file, memory, len(data), 0, 1)
        assert not functions.nfsrdma_prepare_close(file, 2)
        assert functions.nfsrdma_submit(self.session) == 2
        done = self.ffi.new("struct nfsrdma_completion[]", 2)
        assert functions.nfsrdma_wait(self.session, done, 2, 2, -1) == 2
        return {each.user_data: each.result for each in done}

    def end(self) -> None:
        self.functions.nfsrdma_disconnect(self.session)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    path = build()
    made = Device(path)
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(path))
    library.load.cache_clear()
    made.put("/export", kind=FOLDER)
    for name in FILES:
        made.put(f"/export/{name}", bytes(SIZE))
    yield made
    library.load.cache_clear()
    assert not made.faults, made.faults
    assert not made.objects, made.objects


@pytest.fixture
def client(device: Device) -> Iterator[Client]:
    del device
    made = Client()
    yield made
    made.end()


def on_disk(device: Device, name: str) -> bytes | None:
    return device.get(f"/export/{name}", disk=True)


def test_a_closed_file_survives_a_restart(device: Device, client: Client) -> None:
    client.write(file := client.open("a"), b"x" * SIZE)
    assert on_disk(device, "a") == bytes(SIZE)
    assert client.close(file) == 0
    device.restart()
    again = client.open("a")
    assert client.fsync(again) == 0
    assert on_disk(device, "a") == b"x" * SIZE
    assert client.close(again) == 0


def test_a_loss_of_a_released_file_is_reported(device: Device, client: Client) -> None:
    client.write(file := client.open("a"), b"x" * SIZE)
    client.release(file)
    device.restart()
    again = client.open("a", os.O_RDONLY)
    assert client.fsync(again) == -errno.EIO
    assert client.fsync(again) == 0
    assert client.close(again) == 0


def test_what_is_written_again_is_on_disk(device: Device, client: Client) -> None:
    client.write(file := client.open("a"), b"x" * SIZE)
    device.restart()
    assert client.fsync(file) == -errno.EIO
    client.write(file, b"x" * SIZE)
    assert client.fsync(file) == 0
    assert on_disk(device, "a") == b"x" * SIZE
    assert client.close(file) == 0


def test_a_close_in_a_batch_commits_the_write_before_it(device: Device, client: Client) -> None:
    assert client.batch(client.open("a"), b"y" * SIZE) == {1: SIZE, 2: 0}
    assert on_disk(device, "a") == b"y" * SIZE


class Oracle:
    """What open files have to report; the server has lost what was dirty at a restart."""

    def __init__(self) -> None:
        self.dirty = dict.fromkeys(FILES, False)
        self.must: set[int] = set()
        """Open files that have to report a loss."""
        self.may: set[int] = set()
        """Those that may: opened after the restart, before the library could know."""
        self.left = dict.fromkeys(FILES, False)
        """Files whose loss no open file has reported, and that none has to: the next one."""
        self.told = dict.fromkeys(FILES, True)
        """Files whose last loss an open file has reported."""

    def restart(self, opened: dict[int, str]) -> None:
        for name in FILES:
            if not self.dirty[name]:
                continue
            self.dirty[name] = False
            there = {number for number, of in opened.items() if of == name}
            self.must |= there
            self.left[name] |= not there
            self.told[name] = False

    def release(self, number: int, opened: dict[int, str]) -> None:
        name = opened.pop(number)
        there = {other for other, of in opened.items() if of == name}
        self.left[name] |= number in self.must and not self.told[name] and not there & self.must
        self.must.discard(number)
        self.may.discard(number)

    def report(self, number: int, name: str, result: int) -> None:
        if result == 0:
            assert number not in self.must, "a loss without an error"
            assert not self.left[name], "the loss of a released file"
        else:
            assert result == -errno.EIO
            assert number in self.must | self.may or self.left[name], "an error without a loss"
            self.left[name] = False
            self.told[name] = True
        self.must.discard(number)
        self.may.discard(number)


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_is_lost_without_an_error(device: Device, client: Client, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    for _ in range(SEQUENCES):
        play(device, client, chance)


def play(device: Device, client: Client, chance: random.Random) -> None:
    """A random sequence; at its end all files are closed, with what each has to report."""
    oracle = Oracle()
    opened: dict[int, str] = {}
    handles: dict[int, Any] = {}
    lost_since_open: set[str] = set()
    for number in range(STEPS):
        step = chance.choice(("open", "write", "write", "fsync", "close", "release", "restart"))
        if step == "open" or not opened:
            name = chance.choice(FILES)
            handles[number], opened[number] = client.open(name), name
            # the library may learn of a loss after this
            if name in lost_since_open:
                oracle.may.add(number)
            continue
        which = chance.choice(list(opened))
        name = opened[which]
        if step == "write":
            client.write(handles[which], bytes([number]) * SIZE)
            oracle.dirty[name] = True
        elif step == "fsync":
            oracle.report(which, name, client.fsync(handles[which]))
            settled(device, oracle, name, lost_since_open)
        elif step == "close":
            oracle.report(which, name, client.close(handles.pop(which)))
            del opened[which]
            settled(device, oracle, name, lost_since_open)
        elif step == "release":
            client.release(handles.pop(which))
            oracle.release(which, opened)
        else:
            lost_since_open |= {name for name in FILES if oracle.dirty[name]}
            oracle.restart(opened)
            device.restart()
    for name in FILES:
        # nobody is left to report: one more open file, which does
        opened[-1 - FILES.index(name)] = name
        handles[-1 - FILES.index(name)] = client.open(name)
        if name in lost_since_open:
            oracle.may.add(-1 - FILES.index(name))
    for number, name in opened.items():
        oracle.report(number, name, client.close(handles[number]))
        assert on_disk(device, name) == device.get(f"/export/{name}")


def settled(device: Device, oracle: Oracle, name: str, lost: set[str]) -> None:
    """After an fsync or a close of a file that is open for writing, all of it is on disk."""
    assert on_disk(device, name) == device.get(f"/export/{name}")
    oracle.dirty[name] = False
    lost.discard(name)
