# SPDX-License-Identifier: Apache-2.0
"""A ping over RDMA, as a finding."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.target import Target, UnknownHostError

__all__ = ["over_rdma", "remedy"]

# no device, or no access to it
_NOT_TRIED = (errno.ENODEV, errno.ENOENT, errno.EACCES, errno.EPERM)
# also if rdma_ucm is part of the kernel
_RDMA_UCM = Path("/sys/class/misc/rdma_cm")
_DEVICE = Path("/dev/infiniband/rdma_cm")
_LISTENER = "check that nfsd listens on RDMA (on the server: nfsrdma doctor), and the firewalls"


def over_rdma(server: str) -> Finding:
    """Whether the server, a host name or an address, answers NULL on RDMA port 20049."""
    from nfsrdma_tools.client.ping import ping

    name, address = f"rdma {server}", f"[{server}]" if ":" in server else server
    try:
        reply = ping(address)
    except UserError as error:
        advice = f"{error.hint}; or mount to test RDMA"
        return Finding(name, "unknown", f"not tried: {error.message}", remedy=advice)
    except OSError as error:
        text = error.strerror or str(error)
        if hint := remedy(error, address):
            return Finding(name, "unknown", f"not tried: {text}", remedy=hint)
        return Finding(name, "error", text, "a connection", _LISTENER)
    terms = reply.terms
    text = f"{terms.address} answers on RDMA {reply.port} by {terms.device}"
    text += f"; round trip {reply.median * 1e3:.3f} ms (median of {len(reply.times)})"
    return Finding(name, "ok", text)


def remedy(error: OSError, server: str) -> str:
    """The remedy if no connection to SERVER[:PORT] was tried; "" if one was."""
    if error.errno not in _NOT_TRIED:
        return ""
    if not _RDMA_UCM.exists():
        return "modprobe rdma_ucm, as root"
    if error.errno != errno.ENODEV:
        # the error is that of a later call, about a file of the server
        if os.access(_DEVICE, os.R_OK | os.W_OK):
            return ""
        return "run this as root, or let this user open /dev/infiniband"
    address = _address(server)
    return f"use a device with a route to {address}, see: rdma link; ip route get {address}"


def _address(server: str) -> str:
    """The address of SERVER[:PORT]; its name if it has none."""
    from nfsrdma_tools.client.place import split_server

    host = split_server(server)[0].strip("[]")
    try:
        return Target(host, "/").addresses()[0]
    except UnknownHostError:
        return host
