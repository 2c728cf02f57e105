# SPDX-License-Identifier: Apache-2.0
"""Accounts on the kernels that no other test of theirs runs on."""

import json
import os

import pytest
from node_files import node_script

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab

NODE = node_script("trace_kernels")
# events that came later than Linux 6.1
LATER = {"6.1": {"filemap:mm_filemap_get_pages"}}


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != KERNELS[0]])
def test_other_kernels_count_alike(kernel: str) -> None:
    name = f"test-trace-{kernel.replace('.', '-')}-{os.getpid()}"
    with Lab(LabConfig(name, kernel=kernel, extras=True)) as lab:
        said = json.loads(lab.run("client", "python3", "-", stdin=NODE, timeout=900).stdout)
        lab.run("client", "umount", "/mnt")
    assert LATER.get(kernel, set()) <= set(said["missing"])
    assert said["clients"] == ["/mnt"]
    assert not any(said["lost"].values()), said
    for account in ("chunks", "latency"):
        assert said[account] == {"READ": 23, "WRITE": 17}
    assert said["registrations"] == 40
    # client and server are one machine
    assert said["server"] == {"READ": 23, "WRITE": 17}
