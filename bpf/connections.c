/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What happens to connections: made, lost and why, credits granted and used,
 * Calls sent again, work requests that failed.
 *
 * What is rare is told one by one, in a ring buffer (a perf buffer where there
 * is none); what is frequent is counted.
 */

/* probes/connections.py has the same names in the same order */
enum connection_event {
	CONNECTED, DISCONNECTED, CM_EVENT, COMPLETION_ERROR, RETRANSMITTED, TIMED_OUT,
	ACCEPTED, ERROR, LOST_DEVICE
};

#define ADDRESS		28
#define REASON		40

struct connection_record {
	u64 time;		/* monotonic, ns */
	u32 event;
	u32 ours;
	u32 number;		/* client or transport, where the event names one */
	s32 status;
	u32 detail;		/* vendor's error, or the event of the connection manager */
	u32 has_address;
	unsigned char address[ADDRESS];	/* struct sockaddr_in or sockaddr_in6 */
	char peer[REASON];	/* the address as text */
	char text[REASON];
};

/* credits of a client (the kernel's) or a transport (ours) */
struct credit_key {
	u32 ours;
	u32 number;
};

struct credit_row {
	u32 granted;
	u32 used;
	u32 most_used;
	u32 waits;		/* Calls that found all credits in use */
};

BPF_PERF_OUTPUT(connection_records);
BPF_HASH(credits, struct credit_key, struct credit_row, ROWS);

static inline struct credit_row *credit_row(u32 ours, u32 number)
{
	struct credit_key key = { .ours = ours, .number = number };
	struct credit_row fresh = {};

	return credits.lookup_or_try_init(&key, &fresh);
}

static inline void credit_state(struct credit_row *row, u32 granted, u32 used, u32 waits)
{
	row->granted = granted;
	row->used = used;
	if (used > row->most_used)
		row->most_used = used;
	__sync_fetch_and_add(&row->waits, waits);
}

static inline void tell(void *context, struct connection_record *record)
{
	connection_records.perf_submit(context, record, sizeof(*record));
}

#define RECORD(name, what, mine)					\
	struct connection_record name = {				\
		.time = bpf_ktime_get_ns(), .event = what, .ours = mine	\
	}

/* sunrpc's congestion window of an RDMA transport is its credits, each 256 of it */
#ifdef HAVE_sunrpc_xprt_get_cong
TRACEPOINT_PROBE(sunrpc, xprt_get_cong)
{
	struct credit_row *row = credit_row(0, args->client_id);

	if (row)
		credit_state(row, args->cwnd >> 8, args->cong >> 8, args->wait);
	return 0;
}
#endif

#ifdef HAVE_sunrpc_xprt_retransmit
TRACEPOINT_PROBE(sunrpc, xprt_retransmit)
{
	RECORD(record, RETRANSMITTED, 0);

	record.number = args->client_id;
	record.status = args->ntrans;
	TP_DATA_LOC_READ_STR(record.text, procname, REASON);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_sunrpc_rpc_timeout_status
TRACEPOINT_PROBE(sunrpc, rpc_timeout_status)
{
	RECORD(record, TIMED_OUT, 0);

	record.number = args->client_id;
	record.status = args->status;
	tell(args, &record);
	return 0;
}
#endif

/* enum rdma_cm_event_type; 12 is the end of a wait that follows every disconnect */
#ifdef HAVE_rdma_cma_cm_event_handler
TRACEPOINT_PROBE(rdma_cma, cm_event_handler)
{
	RECORD(record, CM_EVENT, 0);

	record.detail = args->event;
	record.status = args->status;
	record.has_address = 1;
	bpf_probe_read_kernel(record.address, ADDRESS, args->dstaddr);
	tell(args, &record);
	return 0;
}
#endif

/* --- the kernel's transport --- */

#ifdef HAVE_rpcrdma_xprtrdma_connect
TRACEPOINT_PROBE(rpcrdma, xprtrdma_connect)
{
	RECORD(record, CONNECTED, 0);

	record.status = args->rc;
	TP_DATA_LOC_READ_STR(record.peer, addr, REASON);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_disconnect
TRACEPOINT_PROBE(rpcrdma, xprtrdma_disconnect)
{
	RECORD(record, DISCONNECTED, 0);

	record.status = args->connect_status;
	TP_DATA_LOC_READ_STR(record.peer, addr, REASON);
	tell(args, &record);
	return 0;
}
#endif

/* each work request reports its completion: 0 is success, 5 that its connection went before */
#define COMPLETION()							\
	do {								\
		if (args->status) {					\
			RECORD(record, COMPLETION_ERROR, 0);		\
			record.status = args->status;			\
			record.detail = args->vendor_err;		\
			tell(args, &record);					\
		}							\
	} while (0)

#ifdef HAVE_rpcrdma_xprtrdma_wc_send
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_send) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_xprtrdma_wc_receive
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_receive) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_xprtrdma_wc_fastreg
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_fastreg) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_xprtrdma_wc_li
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_li) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_xprtrdma_wc_li_wake
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_li_wake) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_xprtrdma_wc_li_done
TRACEPOINT_PROBE(rpcrdma, xprtrdma_wc_li_done) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_svcrdma_wc_recv_err
TRACEPOINT_PROBE(rpcrdma, svcrdma_wc_recv_err) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_svcrdma_wc_send_err
TRACEPOINT_PROBE(rpcrdma, svcrdma_wc_send_err) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_svcrdma_wc_read_err
TRACEPOINT_PROBE(rpcrdma, svcrdma_wc_read_err) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_svcrdma_wc_write_err
TRACEPOINT_PROBE(rpcrdma, svcrdma_wc_write_err) { COMPLETION(); return 0; }
#endif
#ifdef HAVE_rpcrdma_svcrdma_wc_reply_err
TRACEPOINT_PROBE(rpcrdma, svcrdma_wc_reply_err) { COMPLETION(); return 0; }
#endif

#ifdef HAVE_rpcrdma_xprtrdma_device_removal
TRACEPOINT_PROBE(rpcrdma, xprtrdma_device_removal)
{
	RECORD(record, LOST_DEVICE, 0);

	TP_DATA_LOC_READ_STR(record.text, name, REASON);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_svcrdma_device_removal
TRACEPOINT_PROBE(rpcrdma, svcrdma_device_removal)
{
	RECORD(record, LOST_DEVICE, 0);

	TP_DATA_LOC_READ_STR(record.text, name, REASON);
	tell(args, &record);
	return 0;
}
#endif

/* --- ours --- */

#ifdef HAVE_nfsrdma_nfsrdma_post
TRACEPOINT_PROBE(nfsrdma, nfsrdma_post)
{
	struct credit_row *row = credit_row(1, args->xprt);

	if (row)
		credit_state(row, row->granted, args->inflight, 0);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_reply
TRACEPOINT_PROBE(nfsrdma, nfsrdma_reply)
{
	struct credit_row *row = credit_row(1, args->xprt);

	if (row)
		row->granted = args->granted;
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_completion
TRACEPOINT_PROBE(nfsrdma, nfsrdma_completion)
{
	RECORD(record, COMPLETION_ERROR, 1);

	if (!args->status)
		return 0;
	record.number = args->xprt;
	record.status = args->status;
	record.detail = args->vendor_error;
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_connect
TRACEPOINT_PROBE(nfsrdma, nfsrdma_connect)
{
	RECORD(record, CONNECTED, 1);

	record.number = args->xprt;
	record.status = args->status;
	record.has_address = 1;
	bpf_probe_read_kernel(record.address, ADDRESS, args->address);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_disconnect
TRACEPOINT_PROBE(nfsrdma, nfsrdma_disconnect)
{
	RECORD(record, DISCONNECTED, 1);

	record.number = args->xprt;
	bpf_probe_read_kernel_str(record.text, REASON, args->reason);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_error
TRACEPOINT_PROBE(nfsrdma, nfsrdma_error)
{
	RECORD(record, ERROR, 1);

	record.number = args->xprt;
	record.status = args->status;
	bpf_probe_read_kernel_str(record.text, REASON, args->what);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_svc_accept
TRACEPOINT_PROBE(nfsrdma, nfsrdma_svc_accept)
{
	RECORD(record, ACCEPTED, 1);

	record.number = args->xprt;
	record.status = args->status;
	record.has_address = 1;
	bpf_probe_read_kernel(record.address, ADDRESS, args->peer);
	tell(args, &record);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_svc_error
TRACEPOINT_PROBE(nfsrdma, nfsrdma_svc_error)
{
	RECORD(record, ERROR, 1);

	record.number = args->xprt;
	record.status = args->status;
	record.has_address = 1;
	bpf_probe_read_kernel(record.address, ADDRESS, args->peer);
	bpf_probe_read_kernel_str(record.text, REASON, args->what);
	tell(args, &record);
	return 0;
}
#endif
