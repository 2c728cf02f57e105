# SPDX-License-Identifier: Apache-2.0
"""Answers of the kernel's own server (6.12) that differ from what RFC 8166 requires.

The tests send it these messages only: they show that the table of calls.py tells servers apart.
"""

from __future__ import annotations

__all__ = ["ANSWERS"]

# by the name of the message in calls.py
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
