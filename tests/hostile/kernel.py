# SPDX-License-Identifier: Apache-2.0
"""Where the kernel's own server (seen on 6.12) does otherwise than RFC 8166 has it.

Its deviations are named, so that the table can be run against it and a new one is noticed.
"""

from __future__ import annotations

__all__ = ["ANSWERS", "NOT_SENT"]

# messages of calls.py that the kernel's own server does not get from these tests
NOT_SENT = frozenset(
    {
        *("a Read chunk of 0 bytes", "a Read chunk of 0 bytes for 1000"),
        *("a Read chunk of 0 and 1000 bytes", "0 bytes at position zero"),
        *("position 0", "two chunks of one WRITE", "position zero and bytes inline"),
    }
)

# what it answers besides what it should
ANSWERS: dict[str, str] = {
    # RFC 8166, section 4.5: a message below 28 bytes is to be dropped
    "version 2, too short": "vers",
    **{f"cut to {size} bytes": "chunk" for size in (0, 1, 3, 4, 8, 12, 16, 20, 24, 27)},
    "a write of nothing with an immediate": "chunk",
    # section 4.5.2: NOMSG without a message is an error, and so is NOMSG with one inline
    "NOMSG without chunks": "dropped",
    "NOMSG with a Write list only": "dropped",
    "NOMSG with a Reply chunk only": "dropped",
    "NOMSG without chunks but a call": "ok",
    # the same section: the two xids are to be compared
    "another xid inside": "ok",
    "another xid outside": "ok",
    # section 4.5.3: what does not fit is for the transport to say
    **{f"READ of 4096 into {size} bytes": "rpc" for size in (0, 1, 1024, 4095)},
    # RFC 8797: what the client can receive
    "a client of 1024 bytes": "ended",
}
