# SPDX-License-Identifier: Apache-2.0
"""Checks of mounting: mount.nfs, and read-ahead against rsize."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nfsrdma_tools.host import packages
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo, readahead
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = ["nfsrahead", "read_ahead", "utils"]

_SBIN = ("sbin", "usr/sbin", "usr/local/sbin")
_RULES = ("etc/udev/rules.d", "run/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d")


def utils(machine: Machine) -> Iterator[Finding]:
    """nfs-utils is installed."""
    if not _installed(machine):
        remedy = packages.install("nfs-utils", root=machine.root)
        yield Finding("mount.nfs", "error", "not installed", "nfs-utils", remedy)
        return
    said = machine.run("mount.nfs", "-V")
    version = re.search(r"nfs-utils ([\w.]+)", said.stdout + said.stderr)
    yield Finding("mount.nfs", "ok", f"nfs-utils {version[1] if version else '(unknown)'}")


def _installed(machine: Machine) -> bool:
    paths = [f"{folder}/mount.nfs" for folder in _SBIN]
    return any(machine.path(path).exists() for path in paths) or machine.has(paths[0])


def read_ahead(machine: Machine) -> Iterator[Finding]:
    """The read-ahead of each NFS mount covers at least one READ of rsize.

    Since Linux 5.4 the kernel's default is 128 KiB for any rsize (commit c128e575514c, "NFS:
    Optimise the default readahead size").
    """
    for entry in _nfs(machine):
        rsize = int(entry.options["rsize"])
        name = f"read-ahead {entry.directory}"
        machine.require(f"sys/class/bdi/{entry.device}/read_ahead_kb")
        kb = readahead.get_kb(entry.device, machine.path("sys/class/bdi"))
        found = f"{kb} KiB, {readahead.blocks_for(kb, rsize):.4g} blocks of rsize {rsize // 1024}K"
        if kb * 1024 >= rsize:
            yield Finding(name, "ok", found)
        else:
            remedy = "find the best with nfsrdma sweep, make it persistent with nfsrdma tune apply"
            yield Finding(name, "warning", found, "at least one block", remedy)


def nfsrahead(machine: Machine) -> Iterator[Finding]:
    """Whether a udev rule sets the read-ahead of each new mount."""
    machine.require("usr/lib/udev/rules.d")
    rules = [path for folder in _RULES for path in sorted(machine.path(folder).glob("*.rules"))]
    using = [path for path in rules if "nfsrahead" in path.read_text(errors="replace")]
    if using:
        rule = using[0].relative_to(machine.root)
        found = f"/{rule} sets read-ahead after each mount, from [nfsrahead] in nfs.conf"
        yield Finding("udev rule", "ok", found)
    else:
        yield Finding("udev rule", "ok", "none: each mount gets the kernel's 128 KiB")


def _nfs(machine: Machine) -> list[Entry]:
    entries = mountinfo.read(machine.path("proc/self/mountinfo"))
    return [entry for entry in entries if entry.fstype in ("nfs", "nfs4")]
