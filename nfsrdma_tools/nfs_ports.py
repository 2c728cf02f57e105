# SPDX-License-Identifier: Apache-2.0
"""The port numbers that IANA assigned to NFS, to NFS over RDMA and to RoCE.

lib/session.c and the playbooks, which cannot import this package, have their own.
"""

from __future__ import annotations

__all__ = ["NFS_PORT", "RDMA_PORT", "ROCE_PORT"]

NFS_PORT = 2049
"""NFS over TCP (RFC 8881, section 2.9.3)."""
RDMA_PORT = 20049
"""NFS over RDMA, and TCP 20049 with iWARP (RFC 8267, section 6)."""
ROCE_PORT = 4791
"""The UDP port of RoCE version 2."""
