# SPDX-License-Identifier: Apache-2.0
"""Calls in the text of the function tracer, which has four flags on Linux 5.10 and five later."""

import pytest

from testbed.node.ftrace import calls

HEAD = """# tracer: function
#
# entries-in-buffer/entries-written: 3/3   #P:1
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""


@pytest.mark.parametrize("flags", ["....", "...1", ".....", "d..1.", ".n.1.", "...1b"])
def test_each_function_of_a_process_once(flags: str) -> None:
    call = f"         (a) [0]-812     [000] {flags}   123.456789: nfs_getattr <-vfs_getattr\n"
    other = call.replace("nfs_getattr", "nfs3_proc_getattr.cold")
    assert calls(HEAD + call + other + call) == ["nfs3_proc_getattr.cold", "nfs_getattr"]


@pytest.mark.parametrize("flags", ["..s1", "..s1.", ".Ns1.", "d.h1.", "d.H1.", "d.Z1.", "d.z1."])
def test_calls_of_interrupts_are_left_out(flags: str) -> None:
    line = f"          python3-812     [001] {flags}    99.000001: delayed_free <-rcu_do_batch\n"
    assert calls(HEAD + line) == []
