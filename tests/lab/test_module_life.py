# SPDX-License-Identifier: Apache-2.0
"""Our module loaded, used and unloaded leaves nothing."""

from collections.abc import Callable

from nfsrdma_tools.lab.lab import Lab
from testbed.module_life import life


def test_nothing_is_left_of_a_module_that_was_used(
    ours: Lab, long: bool, record_property: Callable[[str, object], None]
) -> None:
    rounds = 50 if long else 3
    grown = life(ours, rounds, "vers=3", "vers=4.2,nconnect=4", "vers=4.0")
    record_property("cycles", rounds)
    record_property("slab objects more in the second half", grown)
