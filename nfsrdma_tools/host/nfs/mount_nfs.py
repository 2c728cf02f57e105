# SPDX-License-Identifier: Apache-2.0
"""Runs mount.nfs, and turns its words into one line and what to do next.

It is run by itself, without mount(8) in between: one process that a time limit, ctrl-C or our own
death ends for good.  With ``retry=0`` a refused connection is an error at once, not after two
minutes.
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
# in order: mount.nfs' words (mount_error in nfs-utils' utils/mount/error.c), what happened, a hint
_MEANINGS = (
    (
        r"rpc\.statd is not running",
        "NFSv3 locks need rpc.statd, which does not run",
        "start rpc-statd.service, or keep locks local with -o nolock",
    ),
    (
        r"Connection refused|Unable to receive|RPC Error: Program not registered|Program unavail",
        "{host} refuses {transport} connections on port {port}",
        "is the NFS server started there, and does it listen (/proc/fs/nfsd/portlist)?",
    ),
    (
        r"access denied by server",
        "{host} does not export {path} to this machine",
        "see `exportfs -v` on the server; a port above 1023 needs its option insecure",
    ),
    (
        r"reason given by server: No such file",
        "{host} has no export {path}",
        "see `exportfs -v` on the server",
    ),
    (
        r"No route to host|Network is unreachable|Name or service",
        "{host} cannot be reached",
        "check the address and the route: `ip route get`",
    ),
    (
        r"No such device",
        "no {transport} device leads to {host}",
        "`rdma link` lists the RDMA devices, `ip route get` says which interface is taken",
    ),
    (
        r"Protocol error",
        "no {transport} connection to {host} could be made",
        "is there an RDMA device that leads there? `nfsrdma doctor` and `rdma link` tell",
    ),
    (
        r"incorrect mount option",
        "mount.nfs or the kernel does not take {options}",
        "see nfs(5) for the options this kernel has",
    ),
    (
        r"Connection timed out",
        "{host} does not answer on {transport} port {port}",
        "check the route and the firewall",
    ),
)
# a server whose nfsd is stopped looks the same to mount.nfs
_START_OR_VERS = "see that nfsd runs there, or try another --vers"
_TCP_UNSUPPORTED = "{host} does not offer NFS {vers} over tcp", _START_OR_VERS
_RDMA_UNSUPPORTED = "{host} does not offer NFS {vers} over rdma", _START_OR_VERS
_RDMA_MISSING = (
    "this kernel has no RDMA transport: module rpcrdma is missing or does not load",
    "`nfsrdma doctor` says why",
)


class MountError(UserError):
    """The mount was not made."""


def call(request: MountRequest, directory: Path, timeout: float) -> None:
    """Let mount.nfs make the mount; it is ended after ``timeout`` seconds.

    Raises UnknownHostError, MountError for a refusal that is understood, CommandError for others.
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
            f"{request.target.host} did not answer within {timeout:g} s, the mount was given up",
            "check that the server runs and is reached, or raise --timeout",
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
    # the kernel has tried to load the module by now; the file is there once sunrpc is
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
