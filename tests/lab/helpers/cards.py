# SPDX-License-Identifier: Apache-2.0
"""Starts labs with modelled cards; builds and installs their provider for libibverbs."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lock import file_lock

__all__ = ["cards_lab", "install_provider"]

# the parts of rdma-core's source that build.sh needs
_BUILD = """
mkdir /run/rdma-core /run/provider
tar -xz -C /run/rdma-core --strip-components=1 --wildcards \
	'*/libibverbs/*.h' '*/ccan' '*/util' '*/kernel-headers' '*/buildlib' '*/CMakeLists.txt'
sh /opt/nfsrdma/src/nfsrdma_tools/data/kmod/card/provider/build.sh /run/rdma-core /run/provider
base64 /run/provider/*.so
rm -r /run/rdma-core /run/provider
"""
# the folder and the suffix of the other providers
_INSTALL = """
set -- /usr/lib/*/libibverbs/librxe-rdmav*.so
cat > "$(dirname "$1")/libnfsrdma_card-${1##*-}"
echo driver nfsrdma_card > /etc/libibverbs.d/nfsrdma_card.driver
"""


@contextmanager
def cards_lab(
    pytestconfig: pytest.Config,
    name: str,
    *,
    clock: str = "wall",
    link: str = "",
    verbs: bool = False,
) -> Iterator[Lab]:
    """A solo lab with two modelled cards; ``verbs``: with their provider for libibverbs."""
    kernel, cpus = (pytestconfig.getoption(f"--{option}") for option in ("kernel", "cpus"))
    name = f"test-{name}-{os.getpid()}"
    config = LabConfig(
        name, kernel=kernel, cpus=cpus, nic="card", clock=clock, link=link, extras=True
    )
    with Lab(config) as lab:
        if verbs:
            install_provider(lab)
        yield lab


def install_provider(lab: Nodes, node: str = "client") -> None:
    """Install the provider in a node with extras; UserError if the archive is unreachable."""
    argv = ("dpkg-query", "--show", "--showformat=${Version}", "libibverbs1")
    version = lab.run(node, *argv).stdout
    folder = paths.cache_dir() / "providers"
    folder.mkdir(exist_ok=True)
    with file_lock(folder / "lock"):
        file = folder / f"{version}-{_hash()}.so"
        if not file.exists():
            source = _source(version, folder).read_bytes()
            text = lab.run(node, "sh", "-ec", _BUILD, stdin=source, timeout=900).stdout
            draft = file.with_suffix(".draft")
            draft.write_bytes(base64.b64decode(text))
            draft.rename(file)
    lab.run(node, "sh", "-ec", _INSTALL, stdin=file.read_bytes())


def _hash() -> str:
    folder = module_source.find_card().folder
    names = ("abi.h", "provider/build.sh", "provider/provider.c")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]


def _source(version: str, folder: Path) -> Path:
    """The upstream tar of rdma-core, downloaded once."""
    file = folder / f"rdma-core-{version}.tar.gz"
    if not file.exists():
        with opened(SUITES[KERNELS[0]], folder, kind="deb-src") as debian:
            debian.source(f"rdma-core={version}", file)
    return file
