# SPDX-License-Identifier: Apache-2.0
"""The metrics that the exporter has: collectors, and name, type, help and labels of each metric.

Counters start at 0 when the exporter starts.  Units are seconds and bytes, by Prometheus'
conventions.

A collector is a group of metrics that ``--no-collector.NAME`` turns off.  COLUMNS are the counters
of a connection in mountstats.  Their meanings are those of xprt_complete_rqst() and
xprt_lookup_rqst() in net/sunrpc/xprt.c, and of struct rpcrdma_stats in
net/sunrpc/xprtrdma/xprt_rdma.h.  nfsrdma counts the same.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "COLLECTORS",
    "COLUMNS",
    "FAMILIES",
    "MOST_SERIES",
    "NAMES",
    "PERSONALITY",
    "Column",
    "Family",
]

MOST_SERIES = 100_000
"""The most series by default: those of a thousand mounts with seven operations each."""

COLLECTORS = {
    "mount": "options, bytes, read-ahead and oldest RPC of each mount",
    "rpc": "RPCs of each mount by operation, from mountstats",
    "xprt": "state, queues, credits and counters of each connection",
    "latency": "histogram and phases of RPC times, by probes",
    "chunks": "paths of messages and sizes of chunks, by probes",
    "registrations": "memory regions and how long they are mapped, by probes",
    "connections": "Calls that waited for a credit, events of connections, by probes",
    "readahead": "use of pages that were read ahead, by probes",
    "server": "nfsd, and RDMA Calls by client, by probes",
    "cpu": "busy time of all CPUs, and time by layer, by probes",
    "port": "state of each RDMA port",
    "event": "events that the dashboard shows",
}
"""The metrics of each collector.  A collector and its probe set have the same name."""

NAMES = tuple(COLLECTORS)


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


class Family(NamedTuple):
    """A metric: ``kind`` is "counter", "gauge" or "histogram"; a counter's name ends in _total.

    A metric without a ``collector`` describes the exporter and cannot be turned off.
    """

    kind: str
    help: str
    labels: tuple[str, ...] = ()
    collector: str = ""


_MOUNT = ("mount", "transport")
_OP = (*_MOUNT, "op")
# mounts may share a connection, so its series have no label for the mount
_XPRT = ("xprt", "transport")
_CLIENT = ("client", "op")

FAMILIES: dict[str, Family] = {
    "nfsrdma_build_info": Family(
        "gauge", "A metric with the value 1 and the versions of the exporter as labels.",
        ("version", "pythonversion"),
    ),
    "nfsrdma_mount_namespace_info": Family(
        "gauge", "1, with the file that lists the mounts and the number of its mount namespace.",
        ("mountinfo", "namespace"),
    ),
    "nfsrdma_series_dropped_total": Family(
        "counter", "Values that were not exported, because their series were above --max-series."
    ),
    "nfsrdma_mount_info": Family(
        "gauge", "1 per NFS mount, with the options in effect as labels.",
        (*_MOUNT, "target", "vers", "rsize", "wsize", "nconnect"), "mount",
    ),
    "nfsrdma_mount_xprt_info": Family(
        "gauge", "1 per mount and connection that it uses; mounts may share a connection.",
        (*_MOUNT, "xprt"), "mount",
    ),
    "nfsrdma_mount_read_bytes_total": Family(
        "counter", "Bytes read from the server.", _MOUNT, "mount"
    ),
    "nfsrdma_mount_written_bytes_total": Family(
        "counter", "Bytes written to the server.", _MOUNT, "mount"
    ),
    "nfsrdma_mount_credit_waits_total": Family(
        "counter", "Calls that waited for a credit, from probes.", _MOUNT, "connections"
    ),
    "nfsrdma_mount_read_ahead_bytes": Family("gauge", "Read-ahead window.", _MOUNT, "mount"),
    "nfsrdma_mount_other_transport": Family(
        "gauge",
        "1 if the mount uses another transport than fstab, its mount unit or its port option "
        "requests, else 0.",
        (*_MOUNT, "asked"), "mount",
    ),
    "nfsrdma_mount_oldest_rpc_seconds": Family(
        "gauge", "Age of the oldest pending RPC.", _MOUNT, "mount"
    ),
    "nfsrdma_rpc_requests_total": Family("counter", "Completed RPCs.", _OP, "rpc"),
    "nfsrdma_rpc_errors_total": Family("counter", "RPCs that failed.", _OP, "rpc"),
    "nfsrdma_rpc_timeouts_total": Family("counter", "Major timeouts of RPCs.", _OP, "rpc"),
    "nfsrdma_rpc_retransmissions_total": Family("counter", "Retransmissions of RPCs.", _OP, "rpc"),
    "nfsrdma_rpc_sent_bytes_total": Family(
        "counter", "Bytes sent, including RPC headers.", _OP, "rpc"
    ),
    "nfsrdma_rpc_received_bytes_total": Family(
        "counter", "Bytes received, including RPC headers.", _OP, "rpc"
    ),
    "nfsrdma_rpc_queue_seconds_total": Family(
        "counter", "Time of RPCs in the queue before transmission (nfsiostat: queue).", _OP, "rpc"
    ),
    "nfsrdma_rpc_response_seconds_total": Family(
        "counter", "Time of RPCs from transmission to reply (nfsiostat: RTT).", _OP, "rpc"
    ),
    "nfsrdma_rpc_execute_seconds_total": Family(
        "counter", "Time of RPCs from start to end (nfsiostat: exe).", _OP, "rpc"
    ),
    "nfsrdma_rpc_duration_seconds": Family(
        "histogram", "Time of RPCs from start to end, from probes.", _OP, "latency"
    ),
    "nfsrdma_rpc_phase_seconds_total": Family(
        "counter", "Time of RPCs by phase, from probes.", (*_OP, "phase"), "latency"
    ),
    "nfsrdma_messages_total": Family(
        "counter", "Calls and Replies by the way they travel (RFC 8166, section 3), from probes.",
        (*_OP, "way"), "chunks",
    ),
    "nfsrdma_chunk_size_bytes": Family(
        "histogram", "Sizes of chunks, from probes.", (*_OP, "kind"), "chunks"
    ),
    "nfsrdma_regions_total": Family(
        "counter", "Operations on memory regions, from probes.", (*_MOUNT, "what"), "registrations"
    ),
    "nfsrdma_region_lifetime_seconds": Family(
        "histogram", "Time that memory regions were mapped, from probes.", _MOUNT, "registrations"
    ),
    "nfsrdma_read_ahead_pages_total": Family(
        "counter", "Read-ahead windows and pages by their use, from probes.", (*_MOUNT, "what"),
        "readahead",
    ),
    "nfsrdma_xprt_info": Family(
        "gauge", "1 per connection, with the server's address as a label.", (*_XPRT, "address"),
        "xprt",
    ),
    "nfsrdma_xprt_connected": Family(
        "gauge", "1 if the connection is established, else 0.", _XPRT, "xprt"
    ),
    "nfsrdma_xprt_connects_total": Family("counter", "Connects of the client.", _XPRT, "xprt"),
    "nfsrdma_xprt_credits": Family("gauge", "Credits that the server grants.", _XPRT, "xprt"),
    "nfsrdma_xprt_credits_used": Family("gauge", "Credits in use.", _XPRT, "xprt"),
    "nfsrdma_xprt_requests": Family("gauge", "Slots in use.", _XPRT, "xprt"),
    "nfsrdma_xprt_pending": Family("gauge", "RPCs that wait for a reply.", _XPRT, "xprt"),
    "nfsrdma_xprt_backlog": Family("gauge", "RPCs that wait for a slot.", _XPRT, "xprt"),
    "nfsrdma_xprt_personality_info": Family(
        "gauge", "1 per connection of nfsrdma, with its personality as a label; needs root.",
        (*_XPRT, "personality"), "xprt",
    ),
    "nfsrdma_xprt_lanes": Family(
        "gauge", "Connected lanes (personality pre-posted).", _XPRT, "xprt"
    ),
    "nfsrdma_xprt_lanes_busy": Family(
        "gauge", "Lanes that carry a READ (personality pre-posted).", _XPRT, "xprt"
    ),
    "nfsrdma_xprt_cache_bytes": Family(
        "gauge", "Memory that the server may access without a Call (personality cached).",
        _XPRT, "xprt",
    ),
    "nfsrdma_xprt_references": Family(
        "gauge", "Extents of files that the client may read, or has read by RPC (optimistic).",
        _XPRT, "xprt",
    ),
    "nfsrdma_xprt_optimistic_paused": Family(
        "gauge", "1 if too many optimistic reads were refused and READs go by RPC, else 0.",
        _XPRT, "xprt",
    ),
    "nfsrdma_server_exposed_bytes": Family(
        "gauge", "Replies that clients of nfsrdma may read (personality read-read).", (), "server"
    ),
    "nfsrdma_server_dones_outstanding": Family(
        "gauge", "Replies that clients may read until they send an RDMA_DONE (read-read).", (),
        "server",
    ),
    "nfsrdma_server_lanes": Family(
        "gauge", "Lanes of clients (personality pre-posted).", (), "server"
    ),
    "nfsrdma_server_granted_bytes": Family(
        "gauge", "Page cache that clients may read (personality optimistic).", (), "server"
    ),
    "nfsrdma_server_grants_total": Family(
        "counter", "Extents of files that clients may read (optimistic), from probes.", (),
        "server",
    ),
    "nfsrdma_server_revocations_total": Family(
        "counter", "Such extents that clients may not read any more, by reason, from probes.",
        ("reason",), "server",
    ),
    "nfsrdma_server_threadless_reads_total": Family(
        "counter",
        "READs that nfsrdma answered without nfsd, and that nfsrdma_server_calls_total lacks.", (),
        "server",
    ),
    "nfsrdma_server_threadless_read_bytes_total": Family(
        "counter",
        "Bytes of those READs, which nfsrdma_server_read_bytes_total lacks.", (),
        "server",
    ),
    "nfsrdma_server_threadless_missed_total": Family(
        "counter", "READs that nfsd got because nfsrdma could not answer them, by reason.",
        ("reason",), "server",
    ),
    "nfsrdma_server_threads": Family("gauge", "Threads of nfsd.", (), "server"),
    "nfsrdma_server_read_bytes_total": Family(
        "counter", "Bytes that nfsd read from files.", (), "server"
    ),
    "nfsrdma_server_written_bytes_total": Family(
        "counter", "Bytes that nfsd wrote to files.", (), "server"
    ),
    "nfsrdma_server_calls_total": Family("counter", "Calls that nfsd received.", (), "server"),
    "nfsrdma_server_bad_calls_total": Family("counter", "Calls that nfsd rejected.", (), "server"),
    "nfsrdma_server_client_calls_total": Family(
        "counter", "Calls over RDMA, from probes.", _CLIENT, "server"
    ),
    "nfsrdma_server_client_sends_total": Family(
        "counter", "Replies whose Send completion the probes saw.", _CLIENT, "server"
    ),
    "nfsrdma_server_client_bytes_total": Family(
        "counter", "Bytes that nfsd moved by RDMA Read (fetched) and Write (written), from probes.",
        (*_CLIENT, "direction"), "server",
    ),
    "nfsrdma_server_client_seconds_total": Family(
        "counter", "Time of Calls in the server, from probes.", _CLIENT, "server"
    ),
    "nfsrdma_server_call_duration_seconds": Family(
        "histogram", "Time of the Calls of all clients in the server, from probes.", ("op",),
        "server",
    ),
    "nfsrdma_server_phase_seconds_total": Family(
        "counter", "Time of Calls by phase, from probes; the phase send is the time of Sends.",
        (*_CLIENT, "phase"), "server",
    ),
    "nfsrdma_cpu_busy_seconds_total": Family("counter", "Time of all CPUs not idle.", (), "cpu"),
    "nfsrdma_cpu_layer_seconds_total": Family(
        "counter", "CPU time by layer and side (client, server, neither), from probes.",
        ("layer", "side"), "cpu",
    ),
    "nfsrdma_port_active": Family(
        "gauge", "1 if the RDMA port is ACTIVE, else 0.", ("port", "netdev"), "port"
    ),
    "nfsrdma_events_total": Family(
        "counter", "Events by kind, and by the mount, port or server concerned.",
        ("kind", "where"), "event",
    ),
    "nfsrdma_missing": Family(
        "gauge", "1 per source of metrics that is unavailable on this host.", ("what",)
    ),
    "nfsrdma_probes_lost_total": Family(
        "counter", "RPCs, events and samples that the probes could not count.",
        ("what",),
    ),
    "nfsrdma_sampler_snapshots_total": Family("counter", "Snapshots of the host."),
    "nfsrdma_sampler_cpu_seconds_total": Family("counter", "CPU time of the sampler's snapshots."),
    "nfsrdma_sampler_last_snapshot_timestamp_seconds": Family(
        "gauge", "Time of the newest snapshot, in seconds of the epoch."
    ),
}  # fmt: skip

PERSONALITY = {
    "fetches": "Replies that the client read from the server's memory (read-read).",
    "dones": "RDMA_DONEs that the client sent (read-read).",
    "padded_calls": "Calls with padding (padded).",
    "padded_replies": "Replies with padding (padded).",
    "lane_calls": "READs on lanes (pre-posted).",
    "lane_fallbacks": "READs that found no idle lane, or are too long for one (pre-posted).",
    "lanes_connected": "Lanes that connected (pre-posted).",
    "lanes_ended": "Lanes that ended (pre-posted).",
    "cache_hits": "Buffers that were still registered (cached).",
    "cache_misses": "Buffers that had to be registered (cached).",
    "cache_copies": "Replies that arrived in a slot and were copied (cached).",
    "optimistic_reads": "READs that read the server's page cache by RDMA Read (optimistic).",
    "optimistic_bytes": "Bytes of optimistic reads (optimistic).",
    "optimistic_refused": "RDMA Reads that the server's device refused (optimistic).",
    "optimistic_misses": "READs that went by RPC, without a reference or with too many elements"
    " (optimistic).",
    "optimistic_pauses": "Pauses after too many refused RDMA Reads (optimistic).",
    "optimistic_connects": "Second connections that were established (optimistic).",
}
"""Counters of a personality (host/nfs/personality.py): ``nfsrdma_xprt_NAME_total``."""

for _name, _help in PERSONALITY.items():
    FAMILIES[f"nfsrdma_xprt_{_name}_total"] = Family("counter", _help, _XPRT, "xprt")

for _column, (_name, _help) in COLUMNS.items():
    FAMILIES[f"nfsrdma_xprt_{_name}_total"] = Family(
        "counter", f"{_help.removesuffix('.')} (mountstats: {_column}).", _XPRT, "xprt"
    )
