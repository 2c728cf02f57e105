# SPDX-License-Identifier: Apache-2.0
"""What /etc/fstab asks for, of NFS mounts: their transports (fstab(5), nfs(5))."""

from __future__ import annotations

import re
from pathlib import Path

from nfsrdma_tools.host.nfs import mountinfo

__all__ = ["asked_transports", "family"]


def asked_transports(text: str) -> dict[Path, str]:
    """By mount point, "rdma", "tcp" or "udp": what the lines of fstab ask for."""
    return dict(filter(None, map(_asked, text.split("\n"))))


def family(proto: str) -> str:
    """``proto=`` without the 6 of IPv6: tcp6 and rdma6 are the same transports."""
    return proto.removesuffix("6")


def _asked(line: str) -> tuple[Path, str] | None:
    fields = [field for field in re.split(r"[ \t]+", line) if field]
    if len(fields) < 4 or fields[0].startswith("#") or fields[2] not in ("nfs", "nfs4"):
        return None
    options = mountinfo.options(fields[3])
    transport = "rdma" if "rdma" in options else family(options.get("proto", "tcp"))
    return Path(mountinfo.unescape(fields[1])), transport
