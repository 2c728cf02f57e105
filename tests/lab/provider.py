# SPDX-License-Identifier: Apache-2.0
"""Builds the modelled card's provider for libibverbs in a node, and installs it there."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lock import file_lock

__all__ = ["install"]

# the parts of rdma-core's source that build.sh needs
_BUILD = """
mkdir /run/rdma-core
tar -xz -C /run/rdma-core --strip-components=1 --wildcards \
	'*/libibverbs/*.h' '*/ccan' '*/util' '*/kernel-headers' '*/buildlib' '*/CMakeLists.txt'
folder=$(dirname /usr/lib/*/libibverbs/librxe-rdmav*.so)
sh /opt/nfsrdma/src/nfsrdma_tools/data/kmod/card/provider/build.sh /run/rdma-core "$folder"
echo driver nfsrdma_card > /etc/libibverbs.d/nfsrdma_card.driver
rm -r /run/rdma-core
"""


def install(lab: Nodes, node: str = "client") -> None:
    """Install the provider in a node with extras; UserError if the archive is unreachable."""
    argv = ("dpkg-query", "--show", "--showformat=${Version}", "libibverbs1")
    source = _source(lab.run(node, *argv).stdout)
    lab.run(node, "sh", "-ec", _BUILD, stdin=source.read_bytes(), timeout=900)


def _source(version: str) -> Path:
    """The upstream tar of rdma-core, downloaded once."""
    folder = paths.cache_dir() / "sources"
    folder.mkdir(exist_ok=True)
    file = folder / f"rdma-core-{version}.tar.gz"
    with file_lock(folder / "lock"):
        if not file.exists():
            with opened(SUITES[KERNELS[0]], folder, kind="deb-src") as debian:
                debian.source(f"rdma-core={version}", file)
    return file
