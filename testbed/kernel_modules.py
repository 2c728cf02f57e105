# SPDX-License-Identifier: Apache-2.0
"""Modules that tests and benchmarks compile for a lab's kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.nodes import Nodes
from testbed.labs import START

__all__ = ["NFSD", "XPRTRDMA", "place", "replace", "serve_rebuilt"]

NFSD, XPRTRDMA = "fs/nfsd", "net/sunrpc/xprtrdma"
STOP = "systemctl stop nfs-server; umount -q /proc/fs/nfsd || true"
MOUNT = "modprobe nfsd; mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd"
# the module of Debian loads what it needs; nothing uses it
_REPLACE = """
name=$(modinfo -F name /run/patched.ko)
modprobe "$name"
rmmod "$name"
insmod /run/patched.ko
"""


def place(lab: Nodes, source: Path, path: str, *nodes: str) -> None:
    """Compile the one module of a folder on this host, and write it to a path in the nodes."""
    base, kernel = image.find(lab.config.extras), kernels.find(lab.config.kernel)
    assert base is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "built.ko"
        kernels.compile_module(source, kernel, base, file)
        for node in nodes:
            lab.run(node, "tee", path, stdin=file.read_bytes())


def replace(lab: Nodes, node: str, patches: Path | None, folder: str) -> None:
    """Compile the module of a folder of the kernel's source with a patch, and load it in its place.

    ``patches`` has one for this kernel, whose name begins with it, or one for the newest; without
    ``patches``, the source is as it is.
    """
    kernel = kernels.find(lab.config.kernel)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        # fs/nfsd includes a file of fs
        kernels.unpack_source(kernel, tree, folder, "fs/internal.h")
        if patches:
            (patch,) = [*patches.glob(f"{kernel.name}-0001-*.patch")] or patches.glob("0001-*")
            run("patch", "-p1", "-F3", "-i", patch.resolve(), cwd=tree)
        (tree / "Kbuild").write_text(f"obj-m := {folder}/\n")
        place(lab, tree, "/run/patched.ko", node)
    lab.run(node, "sh", "-ec", _REPLACE)


def serve_rebuilt(lab: Nodes, node: str, patches: Path | None, folder: str) -> None:
    """Have nfsd listen by rpcrdma, with a module that replace() has loaded."""
    lab.run(node, "sh", "-c", STOP)
    replace(lab, node, patches, folder)
    lab.run(node, "sh", "-c", f"modprobe rpcrdma; {MOUNT}; {START}")
