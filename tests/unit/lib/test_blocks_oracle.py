# SPDX-License-Identifier: Apache-2.0
"""Random batches of two stores, under faults; each get returns a version that it may return."""

from __future__ import annotations

import random
import time

import pytest

pytest.importorskip("device", reason="no tests/device; missed: stores of blocks under faults")

from device import COMMIT, CREATE, GETATTR, LOOKUP, MKDIR, READ, RENAME, WRITE, Device
from device import REMOVE as REMOVE_CALL
from unit.device_fixtures import device, device_library
from unit.lib.stores import Operation, Store

from testbed.block_oracle import EXISTS, GET, PUT, REMOVE, Oracle

__all__ = ["device", "device_library"]

STEPS = 250
ALL = (GETATTR, LOOKUP, READ, WRITE, CREATE, MKDIR, REMOVE_CALL, RENAME, COMMIT)
NAMES = ("a", "x/b", "x/c", "x/y/d", "z/e")
SIZES = (16, 500, 4096, 9000, 70_000, 300_000)
SETTINGS: tuple[dict[str, int], ...] = (
    {"late": 200, "late_calls": 300, "read_max": 65536, "write_max": 65536},
    {"shortened": 1, "read_max": 8192, "write_max": 65536, "late_calls": 1000},
    {"attributes": 0, "late_sends": 300, "credits": 2, "write_max": 8192},
    {"late": 2000, "late_calls": 2000, "credits": 7, "read_max": 4096, "write_max": 4096},
    {"inline_size": 1024, "late": 50, "spurious": 2},
    {"late_calls": 20_000, "read_max": 16384},
)
# of NFSv4.1; some leave no room for a put in one COMPOUND
OF_SERVER4: tuple[dict[str, int], ...] = (
    {"preserve": 0},
    {"slots": 2, "delegate": 2},
    {"keep_all": 1, "operations_max": 8},
    {"request_max": 9000, "response_max": 9000, "restart_grace": 0},
    {"delegate": 1, "cached_max": 100},
)
IO, DENIED, NOSPC, STALE, BUSY = 5, 13, 28, 70, 10008


class Storm(Oracle):
    """Two stores that share a device."""

    def __init__(self, device: Device, seed: int, version: int) -> None:
        super().__init__(random.Random(seed), 2, SIZES)  # noqa: S311 - no secret
        self.device, self.version = device, version
        session = {
            "version": version,
            "depth": self.random.choice((2, 7, 63)),
            "arena": self.random.choice((1 << 16, 1 << 20, 4 << 20)),
        }
        options = {"in_flight": 16, "checksum": seed % 2, "handles": self.random.choice((3, 1000))}
        self.stores = [Store(self.random.randint(1, 3), session, **options) for _ in range(2)]
        self.regions = []
        if self.random.random() < 0.7:
            both = zip(self.stores, self.slabs, strict=True)
            self.regions = [(store, store.register(slab)) for store, slab in both]
        self.batches: list[list[int]] = [[], []]

    # --- batches ---

    def submit(self) -> None:
        which = self.random.randrange(2)
        store, rows, first = self.stores[which], [], self.serial
        for _ in range(min(len(self.free[which]), self.random.randint(1, 8))):
            kind = self.random.choices((GET, PUT, EXISTS, REMOVE), (10, 6, 2, 1))[0]
            name = self.random.choice(NAMES)
            rows.append(Operation(kind, name, self.begin(which, kind, name)))
        if not rows:
            return
        deadline = self.random.choice((0, 0, 0, 1, 5, 30))
        count, batch = store.submit(rows, deadline, first)
        # what is lingering takes places, too, but not those
        assert count == len(rows), store.message()
        self.batches[which].append(batch)

    def collect(self, which: int, least: int = 0) -> None:
        store = self.stores[which]
        for serial, result in store.wait(least).items():
            self.end(which, serial, result)
        if not self.started[which]:
            store._kept.clear()

    # --- faults ---

    def disturb4(self) -> None:
        """Faults of the state that a server keeps with NFSv4.1."""
        choice, device = self.random.random(), self.device
        if choice < 0.3:
            device.expire("", self.random.random() < 0.5, self.random.random() < 0.5)
        elif choice < 0.5:
            device.discard_clients()
        elif choice < 0.7:
            device.set(target_slots=self.random.randrange(1, 4))
        elif choice < 0.8:
            device.set(delegate=self.random.randrange(3))
        else:
            device.set(end_behind=self.random.randrange(1, 6))

    def disturb(self) -> None:
        choice, device = self.random.random(), self.device
        if self.version == 41 and self.random.random() < 0.4:
            self.disturb4()
        elif choice < 0.2:
            device.end_connections()
        elif choice < 0.4:
            device.set(end_after=self.random.randrange(1, 20))
        elif choice < 0.5:
            device.restart()
        elif choice < 0.7:
            device.hold(*self.random.sample(ALL, self.random.randint(1, len(ALL))))
        elif choice < 0.95:
            procedure = self.random.choice(ALL)
            device.no_errors()
            status = self.random.choice((IO, DENIED, NOSPC, STALE, STALE, STALE, BUSY))
            device.error(procedure, status, times=self.random.randint(1, 3))
        else:
            device.set(refuse=1)

    def heal(self) -> None:
        self.device.hold()
        self.device.no_errors()
        # time ends a grace period; here it would last until sessions that have no call make one
        self.device.set(refuse=0, end_after=0, grace=0)

    def cancel(self) -> None:
        which = self.random.randrange(2)
        if self.batches[which]:
            assert self.stores[which].cancel(self.random.choice(self.batches[which][-3:])) >= 0

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            self.submit()
        elif choice < 0.75:
            self.collect(self.random.randrange(2))
        elif choice < 0.85:
            self.disturb()
        elif choice < 0.93:
            self.heal()
        elif choice < 0.96:
            self.cancel()
        else:
            self.heal()
            which = self.random.randrange(2)
            self.collect(which, self.random.randint(0, len(self.started[which])))
        assert not self.device.faults, self.device.faults

    # --- all of them ---

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.heal()
        for which in range(2):
            self.collect(which, len(self.started[which]))
            assert not self.started[which]
        for name in NAMES:
            for which in range(2):
                serial = self.serial
                row = Operation(GET, name, self.begin(which, GET, name))
                self.stores[which].submit([row], 0, serial)
                self.collect(which, 1)
                assert not self.started[which], name
        self.settle()
        for which in range(2):
            self.check_canaries(which)

    def settle(self) -> None:
        """The drafts that stay are those of puts without a result; the server has nothing open.

        A store that is closed waits one second for those that it removes.
        """
        end = time.monotonic() + 60
        while (left := self.drafts()) > self.unknown or self.device.opens:
            assert time.monotonic() < end, (left, self.unknown, self.device.opens)
            for store in self.stores:
                store.turn()

    def drafts(self) -> int:
        folders = ("/export", "/export/x", "/export/x/y", "/export/z")
        names = [name for folder in folders for name in self.device.names(folder)]
        return sum(name.startswith(".nfsrdma-") for name in names)

    def close(self) -> None:
        for store, region in self.regions:
            assert store.unregister(region) == 0
        for store in self.stores:
            store._kept.clear()
            store.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", (3, 41))
def test_each_get_returns_a_version_that_was_put(device: Device, seed: int, version: int) -> None:
    device.set(seed=seed, **SETTINGS[seed % len(SETTINGS)])
    device.set(**OF_SERVER4[seed % len(OF_SERVER4)])
    storm = Storm(device, seed, version)
    storm.run()
    storm.close()
    # a store leaves nothing open; it knows no delegation whose reply it did not get
    assert not device.opens and device.delegations <= storm.unknown
    # the faults left something to compare; on a busy machine, deadlines leave little
    assert storm.counts[GET, 0] and storm.counts[PUT, 0], storm.counts
