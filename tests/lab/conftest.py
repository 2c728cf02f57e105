# SPDX-License-Identifier: Apache-2.0
"""The labs that tests share. A kernel's report on a console fails the test that was running."""

import os
from collections.abc import Iterator

import built
import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

FAILED = pytest.StashKey[bool]()
# NFS mounts, journals of undos, RDMA links, listeners and exports of nfsd, who carries proto=rdma
TRACES = """
grep ' nfs4\\? ' /proc/mounts
ls /run/nfsrdma
rdma link show | cut -d' ' -f1-9
sort /proc/fs/nfsd/portlist
exportfs -s
grep -oE '^(rpcrdma|nfsrdma) ' /proc/modules
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture(scope="session")
def solo_lab() -> Iterator[Lab]:
    """One kernel that is server and client."""
    with Lab(LabConfig(f"test-solo-{os.getpid()}")) as lab:
        yield lab


@pytest.fixture(scope="session")
def pair_lab() -> Iterator[Lab]:
    """A server and a client, a kernel each."""
    with Lab(LabConfig(f"test-pair-{os.getpid()}", shape="pair")) as lab:
        yield lab


@pytest.fixture
def solo(solo_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """One kernel that is server and client; tests share it and leave it as they found it."""
    yield from lent(solo_lab, request)


@pytest.fixture
def pair(pair_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client; tests share them and leave them as they found them."""
    yield from lent(pair_lab, request)


@pytest.fixture
def module_pair(pair: Lab) -> Iterator[Lab]:
    """A server with the kernel's module, and a client with ours."""
    built.bring(pair)
    pair.run("client", "nfsrdma", "module", "load")
    yield pair
    pair.run("client", "nfsrdma", "module", "unload")


def lent(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab that a test leaves as it was; one that it broke is brought up anew for the next."""
    before = traces(lab)
    try:
        yield lab
        lab.check()
        assert traces(lab) == before, "the test left something behind in the lab"
    except BaseException:
        lab.restart()
        raise
    if request.node.stash.get(FAILED, False):
        lab.restart()


def traces(lab: Lab) -> list[str]:
    return [lab.run(node, "sh", "-c", TRACES, check=False).stdout for node in lab.config.nodes]
