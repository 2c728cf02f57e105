# SPDX-License-Identifier: Apache-2.0
"""The metrics there are: name, kind, labels and meaning.  A table, and no more.

Counters count since the exporter began; seconds and bytes, as Prometheus' conventions have it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COLUMNS", "FAMILIES", "Family"]


class Family(NamedTuple):
    """A metric: "counter", "gauge" or "histogram"; a counter's name ends in ``_total``."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


_MOUNT = ("mount", "transport")
_OP = (*_MOUNT, "op")
# several mounts may share a connection, so its series do not name them
_XPRT = ("xprt", "transport")

FAMILIES: dict[str, Family] = {
    "nfsrdma_mount_info": Family(
        "gauge", "1 for each NFS mount, with what is in effect on it.",
        (*_MOUNT, "target", "vers", "rsize", "wsize", "nconnect"),
    ),
    "nfsrdma_mount_xprt_info": Family(
        "gauge", "1 for each connection of each mount; mounts may share one.", (*_MOUNT, "xprt")
    ),
    "nfsrdma_mount_read_bytes_total": Family("counter", "Bytes that came from the server.", _MOUNT),
    "nfsrdma_mount_written_bytes_total": Family("counter", "Bytes that went to it.", _MOUNT),
    "nfsrdma_mount_credit_waits_total": Family(
        "counter", "Calls that found all credits in use, from probes.", _MOUNT
    ),
    "nfsrdma_mount_read_ahead_bytes": Family("gauge", "Read-ahead window.", _MOUNT),
    "nfsrdma_mount_other_transport": Family(
        "gauge", "1 when the mount has not the transport that fstab asks for.", (*_MOUNT, "asked")
    ),
    "nfsrdma_mount_oldest_rpc_seconds": Family("gauge", "Age of the oldest RPC.", _MOUNT),
    "nfsrdma_rpc_requests_total": Family("counter", "RPCs done.", _OP),
    "nfsrdma_rpc_errors_total": Family("counter", "RPCs that ended in an error.", _OP),
    "nfsrdma_rpc_timeouts_total": Family("counter", "Major timeouts.", _OP),
    "nfsrdma_rpc_retransmissions_total": Family("counter", "Transmissions beyond the first.", _OP),
    "nfsrdma_rpc_sent_bytes_total": Family("counter", "Bytes sent, headers included.", _OP),
    "nfsrdma_rpc_received_bytes_total": Family("counter", "Bytes received, with headers.", _OP),
    "nfsrdma_rpc_queue_seconds_total": Family("counter", "Time before RPCs were sent.", _OP),
    "nfsrdma_rpc_response_seconds_total": Family("counter", "Time from sent to answered.", _OP),
    "nfsrdma_rpc_execute_seconds_total": Family("counter", "Time of RPCs in all.", _OP),
    "nfsrdma_rpc_duration_seconds": Family("histogram", "Time of RPCs, from probes.", _OP),
    "nfsrdma_rpc_phase_seconds_total": Family(
        "counter", "Time of RPCs by phase, from probes.", (*_OP, "phase")
    ),
    "nfsrdma_messages_total": Family(
        "counter", "Messages by the way they went (RFC 8166, section 3), from probes.",
        (*_OP, "way"),
    ),
    "nfsrdma_chunk_size_bytes": Family(
        "histogram", "Sizes of chunks, from probes.", (*_OP, "kind")
    ),
    "nfsrdma_regions_total": Family(
        "counter", "What became of memory regions, from probes.", (*_MOUNT, "what")
    ),
    "nfsrdma_region_lifetime_seconds": Family(
        "histogram", "How long regions were mapped, from probes.", _MOUNT
    ),
    "nfsrdma_read_ahead_pages_total": Family(
        "counter", "Pages by what became of them, from probes.", (*_MOUNT, "what")
    ),
    "nfsrdma_xprt_info": Family(
        "gauge", "1 for each connection, with its server's address.", (*_XPRT, "address")
    ),
    "nfsrdma_xprt_connected": Family("gauge", "1 while the connection is up.", _XPRT),
    "nfsrdma_xprt_connects_total": Family("counter", "Connections made.", _XPRT),
    "nfsrdma_xprt_credits": Family("gauge", "Credits that the server grants.", _XPRT),
    "nfsrdma_xprt_credits_used": Family("gauge", "Credits in use.", _XPRT),
    "nfsrdma_xprt_requests": Family("gauge", "Slots in use.", _XPRT),
    "nfsrdma_xprt_pending": Family("gauge", "RPCs that wait for an answer.", _XPRT),
    "nfsrdma_xprt_backlog": Family("gauge", "RPCs that wait for a slot.", _XPRT),
    "nfsrdma_server_threads": Family("gauge", "Threads of nfsd."),
    "nfsrdma_server_read_bytes_total": Family("counter", "Bytes that nfsd read from files."),
    "nfsrdma_server_written_bytes_total": Family("counter", "Bytes that nfsd wrote to files."),
    "nfsrdma_server_calls_total": Family("counter", "Calls that nfsd got."),
    "nfsrdma_server_bad_calls_total": Family("counter", "Calls that nfsd refused."),
    "nfsrdma_server_client_calls_total": Family(
        "counter", "Calls over RDMA, from probes.", ("client", "op")
    ),
    "nfsrdma_server_client_sends_total": Family(
        "counter", "Replies whose Send was seen to be completed, from probes.", ("client", "op")
    ),
    "nfsrdma_server_client_bytes_total": Family(
        "counter", "Bytes fetched from clients and written to them by RDMA, from probes.",
        ("client", "op", "direction"),
    ),
    "nfsrdma_server_call_duration_seconds": Family(
        "histogram", "Time of Calls in the server, from probes.", ("client", "op")
    ),
    "nfsrdma_server_phase_seconds_total": Family(
        "counter", "Time of Calls by phase, from probes; of Sends in the phase send.",
        ("client", "op", "phase"),
    ),
    "nfsrdma_cpu_busy_seconds_total": Family("counter", "Time CPUs were not idle."),
    "nfsrdma_cpu_layer_seconds_total": Family(
        "counter", "CPU time by layer, from probes.", ("layer", "side")
    ),
    "nfsrdma_port_active": Family("gauge", "1 while an RDMA port is ACTIVE.", ("port", "netdev")),
    "nfsrdma_events_total": Family("counter", "Events of the stall finder.", ("kind", "where")),
    "nfsrdma_missing": Family("gauge", "1 for each thing that cannot be seen here.", ("what",)),
    "nfsrdma_probes_lost_total": Family(
        "counter", "What probes could not count: figures from probes are too low by it.", ("what",)
    ),
    "nfsrdma_sampler_snapshots_total": Family("counter", "Snapshots taken."),
    "nfsrdma_sampler_cpu_seconds_total": Family("counter", "CPU time that snapshots cost."),
    "nfsrdma_sampler_last_snapshot_timestamp_seconds": Family("gauge", "When the last one was."),
}  # fmt: skip

COLUMNS = {
    "sends": "sends",
    "recvs": "receives",
    "bad_xids": "unknown_replies",
    # the kernel calls segments chunks (rpcrdma_encode_write_list in xprtrdma/rpc_rdma.c)
    "read_chunk_count": "read_segments",
    "write_chunk_count": "write_segments",
    "reply_chunk_count": "reply_segments",
    "total_rdma_request": "chunk_request_bytes",
    "total_rdma_reply": "chunk_reply_bytes",
    "pullup_copy_count": "pullup_bytes",
    "fixup_copy_count": "fixup_bytes",
    "hardway_register_count": "slow_registrations",
    "failed_marshal_count": "marshal_failures",
    "bad_reply_count": "bad_replies",
    "nomsg_call_count": "long_calls",
    "mrs_recycled": "regions_recycled",
    "mrs_orphaned": "regions_orphaned",
    "mrs_allocated": "regions_allocated",
    "local_inv_needed": "local_invalidations",
    "empty_sendctx_q": "send_queue_full",
    "reply_waits_for_send": "replies_waited_for_send",
}
"""mountstats' columns of a connection: each is the counter ``nfsrdma_xprt_NAME_total``."""

for _column, _name in COLUMNS.items():
    FAMILIES[f"nfsrdma_xprt_{_name}_total"] = Family(
        "counter", f"mountstats' {_column} of a connection.", _XPRT
    )
