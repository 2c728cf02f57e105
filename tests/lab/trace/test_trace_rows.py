# SPDX-License-Identifier: Apache-2.0
"""Rows of many clients: all have room, and where there is none each RPC that is lost is counted."""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

NODE = node_script("trace_rows")
CLIENTS = 100


@pytest.mark.nightly
def test_a_hundred_clients_have_room_and_what_has_none_is_counted(solo: Lab) -> None:
    argv = ("python3", "-", str(CLIENTS))
    said = json.loads(solo.run("client", *argv, stdin=NODE, timeout=3600).stdout)
    whole, small = said["whole"], said["small"]
    # more than a map had once
    assert whole["rows"] > 1024
    assert not any(whole["lost"].values())
    assert whole["counted"] >= whole["done"] > 0
    assert whole["counted_rows"] >= whole["rows"]
    assert whole["left_after_freeing"] == 0
    assert small["counted_rows"] <= 64
    # mountstats have no RPCs of mounting and nobody's else, so they may be a few less
    assert small["counted"] + small["lost"]["rpcs"] >= small["done"]
    assert small["lost"]["rpcs"] > 0
    mounted, gone = said["credits"]
    assert mounted > gone == 0
