# SPDX-License-Identifier: Apache-2.0
"""nfs-ganesha in place of nfsd, in a node: from a folder in $GANESHA with its bin and lib."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nfsrdma_tools.lab.nodes import Nodes
from testbed.labs import THEIRS, serve

__all__ = ["VERSIONS", "installed", "serving"]

_HERE = "/run/ganesha"
# what a release may offer over RDMA: that of Debian 13 knows no more than the first
VERSIONS = ("3, 4.0", "3, 4.0, 4.1, 4.2")
# Soft-RoCE sends by system calls, which the kernel refuses to a thread that changed its user since
# it opened the device: nfs-ganesha has to serve one user, root.
_CONFIGURATION = """
NFS_CORE_PARAM {
	Protocols = 3, 4, rpcrdma;
	NFS_RDMA_Protocol_Versions = %s;
	Plugins_Dir = /run/ganesha/lib/ganesha;
	mount_path_pseudo = false;
}
NFSv4 { Graceless = true; RecoveryRoot = /run/ganesha/state; }
VFS { only_one_user = true; }
EXPORT {
	Export_Id = 1;
	Path = /export;
	Pseudo = /export;
	Access_Type = RW;
	Squash = No_Root_Squash;
	Protocols = 3, 4;
	FSAL { Name = VFS; }
}
"""
# it exports no tmpfs
_DISK = """
truncate -s 512M /export/disk
mkfs.ext4 -q /export/disk
mount -o loop /export/disk /export
"""
_START = """
cd /run/ganesha
cat > ganesha.conf
mkdir -p state
rm -f log
ulimit -l unlimited
export LD_LIBRARY_PATH=lib
setsid bin/ganesha.nfsd -F -f ganesha.conf -L log -p pid > out 2>&1 < /dev/null &
until grep -q "NFS SERVER INITIALIZED" log 2>/dev/null; do
	kill -0 $! || { cat out log; exit 1; }
	sleep 0.5
done
if grep -q "Unknown token" log; then
	kill $!
	wait $! || true
	exit 1
fi
"""
_STOP = """
kill $(cat /run/ganesha/pid) || true
for n in $(seq 60); do pgrep -x ganesha.nfsd > /dev/null || break; sleep 0.5; done
pkill -9 -x ganesha.nfsd
while pgrep -x ganesha.nfsd > /dev/null; do sleep 0.5; done
mountpoint -q /export/ && grep -q ' /export ext4 ' /proc/mounts && umount /export
rm -rf /export/disk /run/ganesha
"""


def installed() -> bytes:
    """The folder as a tar file; skips the test if none is given."""
    folder = os.environ.get("GANESHA")
    if not folder:
        pytest.skip(
            "no nfs-ganesha: set GANESHA to where one with RDMA is installed (docs/dev/"
            "interoperation.md); missed: a server that is not the kernel's"
        )
    argv = ("tar", "-C", folder, "-czf", "-", "bin", "lib")
    return subprocess.run(argv, check=True, capture_output=True).stdout


@contextmanager
def serving(lab: Nodes, node: str, programs: bytes) -> Iterator[str]:
    """Let it serve /export until the block ends; nfsd is stopped.  The versions over RDMA."""
    lab.run(node, "systemctl", "stop", "nfs-server", "nfs-mountd")
    try:
        lab.run(node, "sh", "-ec", _DISK)
        lab.run(node, "mkdir", _HERE)
        lab.run(node, "tar", "-C", _HERE, "-xzf", "-", stdin=programs)
        yield _started(lab, node)
    finally:
        lab.run(node, "sh", "-c", _STOP, check=False)
        serve(lab, node, THEIRS)


def _started(lab: Nodes, node: str) -> str:
    """Start it with the most versions that it knows."""
    for versions in reversed(VERSIONS):
        text = (_CONFIGURATION % versions).encode()
        last = versions == VERSIONS[0]
        if not lab.run(node, "sh", "-ec", _START, stdin=text, check=last).returncode:
            break
    return versions
