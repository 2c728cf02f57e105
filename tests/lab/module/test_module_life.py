# SPDX-License-Identifier: Apache-2.0
"""Our module loaded, used and unloaded leaves nothing."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.lab.lab import Lab
from testbed.leaks import growth
from testbed.module import taken_out
from testbed.node.memory import slabs
from testbed.node.mounts import CLIENTS, drop_caches, mounted
from testbed.node.programs import call, until
from testbed.remote import on

# what our module stands on; a reference that is not given back keeps one of them for ever
BELOW = ("sunrpc", "rdma_cm", "ib_core")
PLACES = (CLIENTS, Path("/sys/module/nfsrdma"))


class Left(NamedTuple):
    """RDMA objects and references to other modules by name, files, objects in use by kind."""

    resources: dict[str, object]
    references: dict[str, int]
    files: list[str]
    slabs: dict[str, int]


def left() -> Left:
    resources = json.loads(call("rdma", "-j", "resource"))[0]
    rows = [line.split() for line in Path("/proc/modules").read_text().splitlines()]
    drop_caches()
    return Left(
        {name: count for name, count in resources.items() if name != "ifindex"},
        {row[0]: int(row[2]) for row in rows if row[0] in BELOW},
        [str(path) for path in PLACES if path.exists()],
        slabs(),
    )


def use(options: str) -> None:
    with mounted(options) as folder:
        path, noise = folder / "life", os.urandom(3 << 20)
        path.write_bytes(noise)
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        assert path.read_bytes() == noise
        assert path in folder.iterdir()
        path.unlink()


def is_unloaded() -> bool:
    return not subprocess.run(("rmmod", "nfsrdma"), check=False, capture_output=True).returncode


def cycle(file: str, options: str) -> Left:
    call("insmod", file)
    assert all(path.exists() for path in PLACES)
    use(options)
    # a transport ends a while after the unmount
    until("the end of all transports", is_unloaded, pause=0.1)
    return left()


@on("client")
def cycles(file: str, rounds: int, options: list[str]) -> list[Left]:
    """What is left after the first use of each of ``options``, and after each round."""
    # the first use of an NFS version loads its module, which stays
    before = [cycle(file, each) for each in options][-1]
    return [before, *(cycle(file, options[number % len(options)]) for number in range(rounds))]


def test_nothing_is_left_of_a_module_that_was_used(
    ours: Lab, long: bool, record_property: Callable[[str, object], None]
) -> None:
    rounds = 50 if long else 3
    with taken_out(ours) as file:
        options = ["vers=3", "vers=4.2,nconnect=4", "vers=4.0"]
        before, *after = cycles.at(timeout=60 * rounds + 600)(ours, file, rounds, options)
    assert before.files == []
    expected = before._replace(slabs={})
    assert [state._replace(slabs={}) for state in after] == [expected] * rounds
    # the first rounds fill caches
    grown = growth([state.slabs for state in after[2:]]) if long else {}
    record_property("cycles", rounds)
    record_property("slab objects more in the second half", grown)
