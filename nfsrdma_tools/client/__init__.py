# SPDX-License-Identifier: Apache-2.0
"""Read and write files of NFS servers over RDMA from Python, without a mount.

    from nfsrdma_tools.client import connect

    with connect("server:/export") as session, session.open("data") as file:
        file.readinto(buffer)

The work is done by libnfsrdma (folder lib/); cffi loads it when the first session is opened.
"""

from __future__ import annotations

from nfsrdma_tools.client.session import Entry, File, Region, Session, Stats, Terms, connect
from nfsrdma_tools.client.transfer import Transfer

__all__ = ["Entry", "File", "Region", "Session", "Stats", "Terms", "Transfer", "connect"]
