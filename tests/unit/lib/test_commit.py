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

from device import COMMIT, FOLDER, Device, build

from nfsrdma_tools.client import library

SIZE = 64
SEQUENCES = 50
STEPS = 40
FILES = ("a", "b")


class Client:
    """The calls of the library, without the package's own rules for them."""

    def __init__(self) -> None:
        self.ffi, self.functions, _ = library.load()
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
    assert [client.fsync(again), client.fsync(again), client.close(again)] == [-errno.EIO, 0, 0]


def test_what_is_written_again_is_on_disk(device: Device, client: Client) -> None:
    client.write(file := client.open("a"), b"x" * SIZE)
    device.restart()
    assert client.fsync(file) == -errno.EIO
    client.write(file, b"x" * SIZE)
    assert client.fsync(file) == 0
    assert on_disk(device, "a") == b"x" * SIZE
    assert client.close(file) == 0


def test_a_refused_commit_hides_no_loss(device: Device, client: Client) -> None:
    """-ENOSPC says that fsync may be repeated; a repeated one does not bring the data back."""
    files = [client.open("a"), client.open("a")]
    client.write(files[0], b"x" * SIZE)
    device.restart()
    client.write(files[0], b"y", SIZE)
    device.error(COMMIT, errno.ENOSPC, times=2)
    assert [client.fsync(files[0]) for _ in range(3)] == [-errno.EIO, -errno.ENOSPC, 0]
    # the other one reports both by one error
    assert [client.close(files[1]), client.close(files[0])] == [-errno.EIO, 0]
    # without an open file that could report it
    client.write(file := client.open("a"), b"x" * SIZE)
    device.restart()
    client.write(file, b"y", SIZE)
    client.release(file)
    again = client.open("a")
    device.error(COMMIT, errno.ENOSPC)
    assert [client.fsync(again), client.close(again)] == [-errno.EIO, 0]


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


class Sequence:
    """A random sequence of calls and restarts; each call is checked against the oracle."""

    def __init__(self, device: Device, client: Client, chance: random.Random) -> None:
        self.device, self.client, self.chance = device, client, chance
        self.oracle = Oracle()
        self.opened: dict[int, str] = {}
        self.handles: dict[int, Any] = {}
        self.unknown: set[str] = set()
        """Files with a loss that the library may not know of."""
        self.number = 0

    def any(self) -> int:
        return self.chance.choice(list(self.opened))

    def open(self, name: str = "") -> None:
        self.number += 1
        name = name or self.chance.choice(FILES)
        self.handles[self.number], self.opened[self.number] = self.client.open(name), name
        if name in self.unknown:
            self.oracle.may.add(self.number)

    def write(self) -> None:
        which = self.any()
        self.client.write(self.handles[which], bytes([self.chance.randrange(256)]) * SIZE)
        self.oracle.dirty[self.opened[which]] = True

    def fsync(self) -> None:
        which = self.any()
        self.settle(which, self.client.fsync(self.handles[which]))

    def close(self, which: int = 0) -> None:
        which = which or self.any()
        self.settle(which, self.client.close(self.handles.pop(which)))
        del self.opened[which]

    def settle(self, which: int, result: int) -> None:
        """After an fsync or a close, all of the file is on disk."""
        name = self.opened[which]
        self.oracle.report(which, name, result)
        assert on_disk(self.device, name) == self.device.get(f"/export/{name}")
        self.oracle.dirty[name] = False
        self.unknown.discard(name)

    def release(self) -> None:
        which = self.any()
        self.client.release(self.handles.pop(which))
        self.oracle.release(which, self.opened)

    def restart(self) -> None:
        self.unknown |= {name for name in FILES if self.oracle.dirty[name]}
        self.oracle.restart(self.opened)
        self.device.restart()

    def play(self) -> None:
        steps = (self.open, self.write, self.write, self.fsync, self.close, self.release)
        for _ in range(STEPS):
            step = self.chance.choice((*steps, self.restart))
            (step if self.opened else self.open)()
        # one more of each: it reports what nobody is left to report
        for name in FILES:
            self.open(name)
        for which in list(self.opened):
            self.close(which)


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_is_lost_without_an_error(device: Device, client: Client, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    for _ in range(SEQUENCES):
        Sequence(device, client, chance).play()
