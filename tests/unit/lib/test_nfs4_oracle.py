# SPDX-License-Identifier: Apache-2.0
"""Random calls over NFSv4.1, and the same ones of the kernel in a local directory.

The server restarts, revokes open files, forgets clients, ends connections behind calls that it has
executed, and gives delegations that nobody wants.  All of that leaves no trace in a result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from device import Device
from unit.device_fixtures import device, device_library
from unit.lib.test_oracle import DEPTHS, SETTINGS, Oracle, no_umask

from nfsrdma_tools.client import Session, connect

__all__ = ["device", "device_library", "no_umask"]

# files are gone with their names, as with NFSv3
OF_SERVER: tuple[dict[str, int], ...] = (
    {"preserve": 0},
    {"preserve": 0, "slots": 2, "delegate": 2},
    {"preserve": 0, "exclusive_times": 1, "restart_grace": 0},
    {"preserve": 0, "delegate": 1, "keep_all": 1, "request_max": 9000, "response_max": 9000},
)


class Restless(Oracle):
    """Files are open with O_SYNC, so that a restart loses no data."""

    flags = os.O_SYNC

    def __init__(self, device: Device, session: Session, root: Path, seed: int) -> None:
        super().__init__(device, session, root, seed)
        self.steps.extend([self.disturb] * 3)

    def end_behind(self) -> None:
        self.device.set(end_behind=self.random.randrange(1, 6))

    def expire(self) -> None:
        of = self.pick()
        path = f"/export/{of.file.path}" if of and self.random.random() < 0.5 else ""
        self.device.expire(path, *(self.random.random() < 0.5 for _ in range(2)))

    def lower_slots(self) -> None:
        self.device.set(target_slots=self.random.randrange(1, 4))

    def delegate(self) -> None:
        self.device.set(delegate=self.random.randrange(3))

    def disturb(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self.device.end_connections, self.device.restart, self.device.restart, self.end_behind,
            self.end_behind, self.expire, self.expire, self.device.discard_clients,
            self.lower_slots, self.delegate,
        )  # fmt: skip
        step = self.random.choice(steps)
        self.done.append(step.__name__)
        step()


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("seed", range(4))
def test_a_restless_server_changes_no_result(device: Device, tmp_path: Path, seed: int) -> None:
    device.set(seed=seed, spurious=3, **SETTINGS[seed % len(SETTINGS)])
    device.set(**OF_SERVER[seed % len(OF_SERVER)])
    (tmp_path / "data").write_bytes(device.get("/export/data") or b"")
    depth = DEPTHS[seed % len(DEPTHS)]
    with connect("server:/export", depth=depth, arena=65536, vers="4.1") as session:
        oracle = Restless(device, session, tmp_path, seed)
        oracle.run()
    oracle.compare()
    # the session has left nothing on the server, and has met what the test is about
    assert (device.opens, device.delegations) == (0, 0)
    assert device.opened > 10
    assert device.created_sessions > 5
