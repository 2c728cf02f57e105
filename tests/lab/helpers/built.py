# SPDX-License-Identifier: Apache-2.0
"""Our module for the kernel of a lab: built once for each state of its source, put in a node."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from nfsrdma_tools import module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.lab import image, kernels, paths
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["bring", "card_module", "compiled", "load"]

SCRIPT = Path(__file__).with_name("build_module.sh")
# builds for a kernel: 25 MiB each
KEPT = 8
# where `nfsrdma module build` keeps what root builds
IN_NODE = "/var/cache/nfsrdma/modules/{release}/{hash}"


def bring(lab: Nodes, node: str = "client") -> None:
    """Have ``nfsrdma module build`` find its work done in a node, which has the same source."""
    source = module_source.find()
    release = lab.run(node, "uname", "-r").stdout.strip()
    folder = IN_NODE.format(release=release, hash=source.hash)
    if lab.run(node, "test", "-e", f"{folder}/nfsrdma.ko", check=False).returncode:
        file = paths.cache_dir() / "modules" / f"{release}-{source.hash}.ko"
        if not file.exists():
            _build(lab, node, release, source, file)
        script = 'mkdir -p "$1" && cat > "$1/nfsrdma.ko"'
        lab.run(node, "sh", "-c", script, "sh", folder, stdin=file.read_bytes())


def load(lab: Nodes, node: str = "client") -> None:
    """Have our module carry NFS over RDMA in a node."""
    bring(lab, node)
    lab.run(node, "nfsrdma", "module", "load")


def card_module(kernel: str) -> None:
    """Build the modelled card for ``lab up --nic card`` on the host, as root; else a node does."""
    base, booted = image.build(extras=True), kernels.build(kernel)
    file = kernels.card_file(booted)
    if file.exists() or os.geteuid() != 0:
        return
    source, draft = module_source.find_card().folder, file.with_suffix(f".{os.getpid()}")
    argv = ("unshare", "-m", "sh", SCRIPT, base.disk, booted.modules, booted.release)
    run(*argv, source, draft, timeout=1800)
    draft.rename(file)


def compiled(lab: Nodes, release: str, source: Path, file: Path) -> None:
    """Build the one module of a folder for a kernel of the lab, on the host; needs root."""
    base = image.find(lab.config.extras)
    assert base is not None
    kernel = kernels.find(lab.config.kernel)
    argv = ("unshare", "-m", "sh", SCRIPT, base.disk, kernel.modules, release, source, file)
    run(*argv, timeout=1800)


def _build(lab: Nodes, node: str, release: str, source: module_source.Source, file: Path) -> None:
    """On the host where that can be; a node that is emulated takes minutes."""
    file.parent.mkdir(exist_ok=True)
    # working trees whose sources differ share the cache
    builds = sorted(file.parent.glob(f"{release}-*.ko"), key=lambda each: each.stat().st_mtime)
    for older in builds[: -KEPT + 1]:
        older.unlink(missing_ok=True)
    draft = file.with_suffix(f".{os.getpid()}")
    if os.geteuid() == 0:
        compiled(lab, release, source.folder, draft)
    else:
        path = lab.run(node, "nfsrdma", "module", "build", timeout=3600).stdout.split(": ")[0]
        said = lab.run(node, "base64", path).stdout
        draft.write_bytes(base64.b64decode(said))
    draft.rename(file)
