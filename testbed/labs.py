# SPDX-License-Identifier: Apache-2.0
"""Labs that tests share, labs with modelled cards, and whose module carries NFS in a node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import set_to

__all__ = [
    "FAILED",
    "OURS",
    "START",
    "THEIRS",
    "WHOSE",
    "ModulePair",
    "Record",
    "cards_lab",
    "carry",
    "choose",
    "counts_listeners",
    "lent",
    "running",
    "serve",
    "traces",
]

# of record_property
Record = Callable[[str, object], None]
OURS, THEIRS = "ours", "the kernel's"
WHOSE = (OURS, THEIRS)
# No client has state to reclaim. During lockd's grace period of 50 s, no client gets a lock or a
# delegation. A write to v4_end_grace ends nfsd's; nfsd refuses it if there is none.
START = """
sysctl -qew fs.nfs.nlm_timeout=3 fs.nfs.nlm_grace_period=3
systemctl start nfs-server || exit
echo Y > /proc/fs/nfsd/v4_end_grace || true
"""
# NFS mounts, journals of undos, RDMA links, addresses, listeners and exports of nfsd, who carries
# proto=rdma
TRACES = """
grep ' nfs4\\? ' /proc/mounts
ls /run/nfsrdma
rdma link show | cut -d' ' -f1-9
ip -4 -o addr show dev eth1 | cut -d' ' -f7
sort /proc/fs/nfsd/portlist
exportfs -s
grep -oE '^(rpcrdma|nfsrdma) ' /proc/modules
"""
# of a test's item: whether a phase of the test failed; tests/lab/conftest.py sets it
FAILED = pytest.StashKey[bool]()


@contextlib.contextmanager
def running(lab: Lab) -> Iterator[None]:
    """Let a lab run for as long as the block lasts: two idle machines cost a third of a core."""
    lab.resume()
    try:
        yield
    finally:
        lab.pause()


def lent(lab: Lab, restart: Callable[[], None], request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab for a test; one that the test broke is brought up anew for the next."""
    yield lab
    if request.node.stash.get(FAILED, False):
        # what it left is not worth a second complaint
        restart()
        return
    try:
        lab.check()
    except BaseException:
        restart()
        raise


@contextlib.contextmanager
def cards_lab(
    pytestconfig: pytest.Config,
    name: str,
    *,
    clock: str = "wall",
    link: str = "",
    dma: str = "",
    profile: str = "",
) -> Iterator[Lab]:
    """A solo lab with two modelled cards, of the options' ``dma`` and ``profile`` by default."""
    asked = {option: pytestconfig.getoption(f"--{option}") for option in ("kernel", "cpus")}
    asked["dma"] = dma or pytestconfig.getoption("--dma")
    asked["profile"] = profile or pytestconfig.getoption("--profile")
    name = f"test-{name}-{os.getpid()}"
    config = LabConfig(name, nic="card", clock=clock, link=link, extras=True, **asked)
    with Lab(config) as lab:
        yield lab


def choose(lab: Nodes, personality: str) -> None:
    """Have connections from now on be of a personality, in a solo lab."""
    for name in ("personality", "server_personalities"):
        set_to(lab, "client", name, personality)


def counts_listeners(kernel: str) -> None:
    """Skip where the server may let no READ pass nfsd by: a listener might decide about it."""
    if kernel == "6.1":
        pytest.skip("6.1 counts no listeners of a file system; missed: READs that pass nfsd by")


def traces(lab: Lab) -> list[str]:
    """List the state that tests may leave behind in the nodes of a lab, a text for each node."""
    return [lab.run(node, "sh", "-c", TRACES, check=False).stdout for node in lab.config.nodes]


class ModulePair:
    """A pair, and the transport modules of its server and of its client.

    A test gets the modules that it needs and leaves them; they change only when the next test
    needs others. The state of a lab with two modules is kept, for ``check``.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.now = (THEIRS, THEIRS)
        self._clean = {self.now: traces(lab)}

    def bring(self, server: str, client: str) -> Lab:
        """The lab with these modules."""
        try:
            if server != self.now[0]:
                serve(self.lab, "server", server)
            if client != self.now[1]:
                carry(self.lab, "client", client)
            self.now = (server, client)
            if self.now not in self._clean:
                self._clean[self.now] = traces(self.lab)
        except BaseException:
            self.restart()
            raise
        return self.lab

    def restart(self) -> None:
        """Bring the lab up anew, with the kernel's modules."""
        self.lab.restart()
        self.now = (THEIRS, THEIRS)

    def check(self) -> None:
        """AssertionError unless the lab is as it was when it first had these modules."""
        try:
            self.lab.check()
            assert traces(self.lab) == self._clean[self.now], "tests left something behind"
        except BaseException:
            self.restart()
            raise


def carry(lab: Nodes, node: str, whose: str) -> None:
    """Nothing in the node uses RDMA; from here on this module does it."""
    if whose == OURS:
        lab.run(node, "nfsrdma", "module", "load")
    else:
        lab.run(node, "nfsrdma", "module", "unload")
        lab.run(node, "modprobe", "rpcrdma")


def serve(lab: Nodes, node: str, whose: str) -> None:
    """Have nfsd listen by this module; clients must have unmounted."""
    lab.run(node, "systemctl", "stop", "nfs-server")
    carry(lab, node, whose)
    lab.run(node, "sh", "-c", START)
    lab.run(node, "grep", "-q", "rdma 20049", "/proc/fs/nfsd/portlist")
