# SPDX-License-Identifier: Apache-2.0
"""Our module loaded, used and unloaded leaves nothing."""

import pytest
from module_life import life

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab


def test_nothing_is_left_of_a_module_that_was_used(module_pair: Lab) -> None:
    life(module_pair, 3, "vers=3", "vers=4.2,nconnect=4", "vers=4.0")
