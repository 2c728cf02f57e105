# SPDX-License-Identifier: Apache-2.0
"""Failed work completions: enum ib_wc_status of include/rdma/ib_verbs.h."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMPLETIONS", "Completion"]


class Completion(NamedTuple):
    """The status of a failed completion, and its usual cause."""

    constant: str
    name: str
    cause: str


COMPLETIONS = {
    1: Completion(
        "IB_WC_LOC_LEN_ERR",
        "local length error",
        "a message was longer than the posted receive",
    ),
    2: Completion(
        "IB_WC_LOC_QP_OP_ERR",
        "local queue pair operation error",
        "the driver refused a work request",
    ),
    4: Completion(
        "IB_WC_LOC_PROT_ERR",
        "local protection error",
        "a work request used memory that is not registered",
    ),
    5: Completion(
        "IB_WC_WR_FLUSH_ERR", "flushed", "the connection failed before; look for the first error"
    ),
    6: Completion(
        "IB_WC_MW_BIND_ERR",
        "memory window bind error",
        "registering or invalidating a region failed",
    ),
    7: Completion(
        "IB_WC_BAD_RESP_ERR",
        "bad response",
        "the peer sent an unexpected response: a fault of a driver or a link",
    ),
    8: Completion(
        "IB_WC_LOC_ACCESS_ERR", "local access error", "the peer used a key that is not valid here"
    ),
    9: Completion(
        "IB_WC_REM_INV_REQ_ERR",
        "remote invalid request",
        "a message was longer than the peer's receive",
    ),
    10: Completion(
        "IB_WC_REM_ACCESS_ERR",
        "remote access error",
        "the peer refused a key: invalidated too early, or wrong",
    ),
    11: Completion(
        "IB_WC_REM_OP_ERR", "remote operation error", "the peer failed to execute the request"
    ),
    12: Completion(
        "IB_WC_RETRY_EXC_ERR",
        "retries exceeded",
        "no response: link down, peer gone, packets lost",
    ),
    13: Completion(
        "IB_WC_RNR_RETRY_EXC_ERR",
        "receiver not ready",
        "the peer had no receive posted: more credits used than granted",
    ),
    16: Completion("IB_WC_REM_ABORT_ERR", "remote abort", "the peer aborted the operation"),
    19: Completion("IB_WC_FATAL_ERR", "fatal error", "the device failed"),
    20: Completion(
        "IB_WC_RESP_TIMEOUT_ERR",
        "response timeout",
        "no response: link down, peer gone, packets lost",
    ),
    21: Completion("IB_WC_GENERAL_ERR", "general error", "the driver reports no details"),
}
