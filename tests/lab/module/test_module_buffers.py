# SPDX-License-Identifier: Apache-2.0
"""Send buffers of our module take as much memory as a message, in one piece, and no more."""

import re

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.kernel_events import recorded
from testbed.mounts import mounted, set_parameters

EVENTS = {"kmem/kmalloc/filter": "bytes_req >= 1024", "kmem/kmalloc/enable": "1"}
BUFFER = re.compile(r"call_site=nfr_client_buffer\S+ .*bytes_req=(\d+) bytes_alloc=(\d+)")


@pytest.mark.parametrize("size", (8192, 65536))
def test_a_send_buffer_is_not_larger_than_its_message(module_pair: Lab, size: int) -> None:
    with (
        set_parameters(module_pair, inline_send=size),
        recorded(module_pair, "client", EVENTS) as lines,
        mounted(module_pair, "vers=3"),
    ):
        pass
    # 8 KiB in two pages, 64 KiB in 16
    assert {(int(n), int(m)) for n, m in BUFFER.findall("\n".join(lines))} == {(size, size)}
