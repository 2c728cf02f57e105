# SPDX-License-Identifier: Apache-2.0
"""Runs mount.nfs and maps its messages to one line and a hint.

It runs mount.nfs directly, without mount(8): one process that a timeout, ctrl-C or our own death
terminates.  With ``retry=0`` a refused connection is an error at once, not after two minutes.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.host.nfs.mount_request import RDMA_PORT, MountRequest

__all__ = ["MountError", "call"]

_NFS_PORT = 2049
_TRANSPORTS = Path("/proc/sys/sunrpc/transports")
_LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
# messages of mount.nfs (mount_error in nfs-utils' utils/mount/error.c), our message, our hint
_MEANINGS = (
    (
        r"rpc\.statd is not running",
        "NFSv3 locks need rpc.statd, which is not running",
        "start rpc-statd.service, or use local locks: -o nolock",
    ),
    (
        r"Connection refused|Unable to receive|RPC Error: Program not registered|Program unavail",
        "{host} refuses {transport} connections on port {port}",
        "check that the NFS server runs and listens (/proc/fs/nfsd/portlist)",
    ),
    (
        r"access denied by server",
        "{host} does not export {path} to this host",
        "check `exportfs -v` on the server; ports above 1023 need the export option insecure",
    ),
    (
        r"reason given by server: No such file",
        "{host} has no export {path}",
        "check `exportfs -v` on the server",
    ),
    (
        r"No route to host|Network is unreachable|Name or service",
        "{host} is unreachable",
        "check the address, and the route with `ip route get`",
    ),
    (
        r"No such device",
        "no {transport} device has a route to {host}",
        "list RDMA devices with `rdma link`, find the interface with `ip route get`",
    ),
    (
        r"Protocol error",
        "the {transport} connection to {host} failed",
        "check the RDMA device with `nfsrdma doctor` and `rdma link`",
    ),
    (
        r"incorrect mount option",
        "mount.nfs or the kernel rejects {options}",
        "see nfs(5) for valid options",
    ),
    (
        r"Connection timed out",
        "{host} does not answer on {transport} port {port}",
        "check the route and the firewall",
    ),
)
# mount.nfs prints the same if nfsd is stopped
_START_OR_VERS = "check that nfsd runs on the server, or try another --vers"
_TCP_UNSUPPORTED = "{host} does not offer NFS {vers} over tcp", _START_OR_VERS
_RDMA_UNSUPPORTED = "{host} does not offer NFS {vers} over rdma", _START_OR_VERS
_RDMA_MISSING = (
    "this kernel has no RDMA transport: module rpcrdma is missing or fails to load",
    "run `nfsrdma doctor` for the cause",
)


class MountError(UserError):
    """The mount failed."""


def call(request: MountRequest, directory: Path, timeout: float) -> None:
    """Run mount.nfs, and kill it after ``timeout`` seconds.

    Raises UnknownHostError, MountError for a known message, CommandError for others.
    """
    netid = request.target.netid(request.family)
    options = request.mount_options(netid)
    argv = ("mount.nfs", str(request.target), str(directory), "-o", options)
    result = run(*_LEASH, *argv, check=False, timeout=timeout)
    if result.returncode:
        raise _explain(request, result, timeout)


def _explain(request: MountRequest, result: Result, timeout: float) -> UserError:
    if result.returncode == 124:
        return MountError(
            f"{request.target.host} did not answer within {timeout:g} s, so the mount was aborted",
            "check that the server runs and is reachable, or raise --timeout",
        )
    if request.family == "rdma" and not _has_rdma():
        return _error(request, *_RDMA_MISSING)
    for pattern, what, hint in _MEANINGS:
        if re.search(pattern, result.stderr):
            return _error(request, what, hint)
    if re.search(r"[Pp]rotocol.* not supported", result.stderr):
        unsupported = _RDMA_UNSUPPORTED if request.family == "rdma" else _TCP_UNSUPPORTED
        return _error(request, *unsupported)
    return CommandError(
        result.argv[len(_LEASH) :], result.returncode, result.stderr or result.stdout
    )


def _has_rdma() -> bool:
    # the kernel has tried to load the module by now; the file exists once sunrpc is loaded
    with contextlib.suppress(OSError):
        return "rdma " in _TRANSPORTS.read_text()
    return True


def _error(request: MountRequest, what: str, hint: str) -> MountError:
    default = RDMA_PORT if request.family == "rdma" else _NFS_PORT
    known = {
        "host": request.target.host,
        "path": repr(request.target.path),
        "transport": request.transport,
        "port": request.port or default,
        "vers": request.vers,
        "options": " ".join(request.options) or "these options",
    }
    return MountError(what.format(**known), hint)
