# SPDX-License-Identifier: Apache-2.0
"""Package names and the install command of this distribution (os-release(5))."""

from __future__ import annotations

import re

from nfsrdma_tools import files
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["install"]

_HEADERS, _BCC, _NFS, _RPCRDMA = "headers", "bcc", "nfs-utils", "rpcrdma"
_SERVER = "nfs-server"
# prefixes of ID or ID_LIKE, the install command, the package names
_FAMILIES = (
    (
        ("ubuntu",), "apt install",
        {
            _HEADERS: "linux-headers-{release}", _BCC: "python3-bpfcc", _NFS: "nfs-common",
            _SERVER: "nfs-kernel-server", _RPCRDMA: "linux-modules-extra-{release}",
        },
    ),
    (
        ("debian",), "apt install",
        {
            _HEADERS: "linux-headers-{release}", _BCC: "python3-bpfcc", _NFS: "nfs-common",
            _SERVER: "nfs-kernel-server",
            _RPCRDMA: "linux-image-{plain}, then boot it (cloud kernels lack rpcrdma)",
        },
    ),
    (
        ("rhel", "fedora", "centos"), "dnf install",
        {
            _HEADERS: "kernel-devel-{release}", _BCC: "python3-bcc", _NFS: "nfs-utils",
            _SERVER: "nfs-utils", _RPCRDMA: "kernel-modules-{release}",
        },
    ),
    (
        ("suse", "opensuse"), "zypper install",
        {
            _HEADERS: "kernel-default-devel", _BCC: "python3-bcc", _NFS: "nfs-client",
            _SERVER: "nfs-kernel-server", _RPCRDMA: "kernel-default (kernel-default-base lacks it)",
        },
    ),
    (
        ("arch",), "pacman -S",
        {
            _HEADERS: "linux-headers", _BCC: "python-bcc", _NFS: "nfs-utils",
            _SERVER: "nfs-utils", _RPCRDMA: "linux",
        },
    ),
)  # fmt: skip
# Debian's kernels: 6.1.0-28-amd64, 6.1.0-28-cloud-amd64, 6.12.48+deb13-amd64, 6.12.9-amd64
_DEBIAN_KERNEL = (
    r"\d[\d.]*(-\d+|\+[\w.]+)?(-cloud|-rt)?"
    r"-(amd64|arm64|686|686-pae|armmp|armmp-lpae|powerpc64le|s390x|riscv64|loong64)"
)
_ELSEWHERE = {
    _HEADERS: "install the headers of kernel {release}",
    _BCC: "install BCC's Python module",
    _NFS: "install nfs-utils",
    _SERVER: "install nfs-utils with the NFS server",
    _RPCRDMA: "install the package that has module rpcrdma for kernel {release}",
}


def install(component: str, release: str = "", machine: Machine = LIVE) -> str:
    """The command for "bcc", "nfs-utils", "nfs-server", or "headers" and "rpcrdma" of a release.

    On an unknown distribution, or for a kernel of another one: a sentence that names what to
    install.
    """
    # platform.freedesktop_os_release() reads only the files of the running system
    text = files.readable(machine.path("etc/os-release"))
    words = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', text, re.MULTILINE)).split()
    for names, command, packages in _FAMILIES:
        if any(word.startswith(names) for word in words):
            foreign = names == ("debian",) and not re.fullmatch(_DEBIAN_KERNEL, release)
            if foreign and "{" in packages[component]:
                break
            return f"{command} {packages[component]}".format(
                release=release, plain=release.replace("-cloud", "")
            )
    return _ELSEWHERE[component].format(release=release)
