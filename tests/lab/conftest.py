# SPDX-License-Identifier: Apache-2.0
"""The labs that tests share. A kernel's report on a console fails the test that was running."""

import os
from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab


@pytest.fixture(scope="session")
def solo_lab() -> Iterator[Lab]:
    with Lab(LabConfig(f"test-solo-{os.getpid()}")) as lab:
        yield lab


@pytest.fixture
def solo(solo_lab: Lab) -> Iterator[Lab]:
    """One kernel that is server and client; tests share it and leave it as they found it."""
    before = _traces(solo_lab)
    yield solo_lab
    solo_lab.check()
    assert _traces(solo_lab) == before, "the test left something behind in the lab"


def _traces(lab: Lab) -> str:
    """NFS mounts, journals of undos, RDMA links, listeners of nfsd."""
    script = (
        "grep ' nfs4\\? ' /proc/mounts; ls /run/nfsrdma 2>/dev/null;"
        "rdma link show | cut -d' ' -f1-9; sort /proc/fs/nfsd/portlist"
    )
    return lab.run("client", "sh", "-c", script, check=False).stdout
