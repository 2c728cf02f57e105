# SPDX-License-Identifier: Apache-2.0
"""A task that is killed takes nothing from others: the connection lives, and memory returns."""

import json
from collections.abc import Callable

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import until
from testbed.mounts import mounted
from testbed.scripts import on

Record = Callable[[str, object], None]
HERE = "/export/abandoned"
MAKE = f"mkdir -p {HERE}/many && cd {HERE}/many && seq -f 'name-of-a-file-%06g' 1500 | xargs touch"


def registered(lab: Lab) -> int:
    """Memory regions of the client's devices, as the RDMA core counts them (rdma-resource(8))."""
    devices = json.loads(lab.run("client", "rdma", "-j", "resource", "show").stdout)
    return sum(device["mr"] for device in devices)


@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize("carrier", ("ours", "both_ours"))
@pytest.mark.parametrize("options", ("vers=3", "vers=4.2"), ids=("v3", "v4"))
def test_listings_are_killed_and_the_connection_lives(
    carrier: str, options: str, request: pytest.FixtureRequest, long: bool, record_property: Record
) -> None:
    lab: Lab = request.getfixturevalue(carrier)
    lab.run("server", "sh", "-ec", MAKE)
    regions = registered(lab)
    try:
        with mounted(lab, options):
            seconds = 600 if long else 0
            words = ("60", str(seconds), "tests")
            found = on(lab, "client", "abandon", *words, timeout=900 + seconds)
        until(lambda: registered(lab) == regions, f"as many memory regions as before: {regions}")
        before, after = found["before"], found["after"]
        assert found["reader"] == 0, "the reader beside found a wrong byte"
        assert after["disconnects"] == before["disconnects"], after["last_disconnect"]
        assert (after["credits_used"], after["calls_abandoned"], after["slots_kept"]) == (0, 0, 0)
        # at least these tasks were killed with a Call in flight
        assert after["calls_kept"] - before["calls_kept"] >= 5
        record_property("tasks killed", found["killed"])
        record_property("Calls kept", after["calls_kept"] - before["calls_kept"])
        record_property("slowest end of a task [s]", round(found["slowest"], 3))
    finally:
        lab.run("server", "rm", "-r", HERE)
