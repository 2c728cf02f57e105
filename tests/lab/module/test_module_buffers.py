# SPDX-License-Identifier: Apache-2.0
"""Send buffers of our module take as much memory as a message, in one piece, and no more."""

import re

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.mounts import mounted, set_parameters

TRACE = """
cd /sys/kernel/tracing
echo > trace
echo 'bytes_req >= 1024' > events/kmem/kmalloc/filter
echo 1 > events/kmem/kmalloc/enable
"""
SAID = """
cd /sys/kernel/tracing
echo 0 > events/kmem/kmalloc/enable
echo 0 > events/kmem/kmalloc/filter
cat trace
"""
BUFFER = re.compile(r"call_site=nfr_client_buffer\S+ .*bytes_req=(\d+) bytes_alloc=(\d+)")


@pytest.mark.parametrize("size", (8192, 65536))
def test_a_send_buffer_is_not_larger_than_its_message(module_pair: Lab, size: int) -> None:
    with set_parameters(module_pair, inline_send=size):
        module_pair.run("client", "sh", "-ec", TRACE)
        try:
            with mounted(module_pair, "vers=3"):
                pass
        finally:
            said = module_pair.run("client", "sh", "-ec", SAID).stdout
    found = [(int(asked), int(taken)) for asked, taken in BUFFER.findall(said)]
    assert found, said
    # 8 KiB in two pages, 64 KiB in 16
    assert set(found) == {(size, size)}
