# SPDX-License-Identifier: Apache-2.0
"""The personalities of nfsrdma, the transport module."""

from __future__ import annotations

__all__ = ["DEFAULT", "OPTIMISTIC", "PERSONALITIES"]

PERSONALITIES = {
    "read-write": "RPC-over-RDMA version 1 (RFC 8166)",
    "read-read": "the design of 2003: the server exposes a large result, and the client reads it",
    "padded": "small data moves in messages, and begins with a page where it arrives",
    "pre-posted": "no key: READs arrive in posted receives, on connections of their own (lanes)",
    "cached": "version 1; memory stays registered after its Call, for the next one",
    "optimistic": "version 1; the client reads the server's page cache by RDMA Read (NFSv3)",
}
"""Description of each personality, in the order in which the module prints a list."""
DEFAULT = "read-write"
"""The personality of a connection whose two sides agree on no other."""
OPTIMISTIC = "optimistic"
"""The personality that applies to READs of NFSv3 only."""
