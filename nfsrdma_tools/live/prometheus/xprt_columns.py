# SPDX-License-Identifier: Apache-2.0
"""The counters of a connection in mountstats, by the kernel's names of its columns.

The meanings are those of xprt_complete_rqst() and xprt_lookup_rqst() in net/sunrpc/xprt.c, and of
struct rpcrdma_stats in net/sunrpc/xprtrdma/xprt_rdma.h.  nfsrdma counts the same.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COLUMNS", "Column"]


class Column(NamedTuple):
    """A column: it is exported as the counter ``nfsrdma_xprt_NAME_total``."""

    name: str
    help: str


COLUMNS = {
    "sends": Column("sends", "RPC messages sent, retransmissions included."),
    "recvs": Column("receives", "RPC replies received that match a pending Call."),
    "bad_xids": Column("unknown_replies", "RPC replies whose xid matches no pending Call."),
    # the kernel calls segments chunks (rpcrdma_encode_write_list in xprtrdma/rpc_rdma.c)
    "read_chunk_count": Column(
        "read_segments",
        "Segments of Read chunks offered to the server (RFC 8166, section 3.4.5): data of WRITEs, "
        "and long Calls.",
    ),
    "write_chunk_count": Column(
        "write_segments",
        "Segments of Write chunks offered to the server (RFC 8166, section 3.4.6): data of READs.",
    ),
    "reply_chunk_count": Column(
        "reply_segments",
        "Segments of Reply chunks offered to the server (RFC 8166, section 3.5.3): long Replies.",
    ),
    "total_rdma_request": Column(
        "chunk_request_bytes", "Bytes of memory offered to the server in Write and Reply chunks."
    ),
    "total_rdma_reply": Column(
        "chunk_reply_bytes", "Bytes that the server wrote into Write and Reply chunks."
    ),
    "pullup_copy_count": Column(
        "pullup_bytes", "Bytes of Calls that the client copied into the buffer of a Send."
    ),
    "fixup_copy_count": Column(
        "fixup_bytes", "Bytes of Replies that the client copied out of the buffer of a Receive."
    ),
    # the kernel adds the size of the buffer (rpcrdma_check_regbuf in xprtrdma/transport.c)
    "hardway_register_count": Column(
        "slow_registrations",
        "Bytes of buffers that the client allocated because an RPC did not fit into a "
        "preallocated buffer.",
    ),
    "failed_marshal_count": Column(
        "marshal_failures", "Calls whose transport header the client could not build."
    ),
    "bad_reply_count": Column(
        "bad_replies", "Replies with an invalid transport header, or with an RDMA_ERROR."
    ),
    "nomsg_call_count": Column(
        "long_calls",
        "Calls sent as RDMA_NOMSG with a position-zero Read chunk (RFC 8166, section 3.5.3).",
    ),
    "mrs_recycled": Column(
        "regions_recycled",
        "Memory regions replaced after an error (rpcrdma of Linux 6.1: always 0).",
    ),
    "mrs_orphaned": Column(
        "regions_orphaned",
        "Memory regions in use when the connection broke (rpcrdma of Linux 6.1: always 0).",
    ),
    "mrs_allocated": Column("regions_allocated", "Memory regions allocated."),
    "local_inv_needed": Column(
        "local_invalidations",
        "Memory regions that the client invalidated, after the server did not do so remotely.",
    ),
    "empty_sendctx_q": Column(
        "send_queue_full",
        "Times that a Call waited because the send queue was full (nfsrdma: or because no memory "
        "region was free).",
    ),
    "reply_waits_for_send": Column(
        "replies_waited_for_send",
        "Replies that waited for their Call's Send completion (Linux 6.1 and nfsrdma: always 0).",
    ),
}
