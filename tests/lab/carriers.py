# SPDX-License-Identifier: Apache-2.0
"""Whose module carries NFS over RDMA in a node: ours, or the kernel's."""

from __future__ import annotations

import built

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["OURS", "THEIRS", "WHOSE", "carry", "serve"]

OURS, THEIRS = "ours", "the kernel's"
WHOSE = (OURS, THEIRS)


def carry(lab: Nodes, node: str, whose: str) -> None:
    """Nothing in the node uses RDMA; from here on this module does it."""
    if whose == OURS:
        built.load(lab, node)
    else:
        lab.run(node, "nfsrdma", "module", "unload")
        lab.run(node, "modprobe", "rpcrdma")


def serve(lab: Nodes, node: str, whose: str) -> None:
    """Have nfsd listen by this module; clients must have unmounted."""
    lab.run(node, "systemctl", "stop", "nfs-server")
    carry(lab, node, whose)
    lab.run(node, "systemctl", "start", "nfs-server")
    # nothing is to be reclaimed, and it would be waited for; refused where there is no such time
    lab.run(node, "tee", "/proc/fs/nfsd/v4_end_grace", stdin=b"Y\n", check=False)
    lab.run(node, "grep", "-q", "rdma 20049", "/proc/fs/nfsd/portlist")
