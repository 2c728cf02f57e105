/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Connection events: connects, disconnects and their reasons, retransmitted
 * Calls, failed work requests. They are rare and reported one by one.
 */

/* probes/sets/connections.py has the same names in the same order */
enum connection_event {
	CONNECTED, DISCONNECTED, CM_EVENT, COMPLETION_ERROR, RETRANSMITTED, TIMED_OUT,
	ACCEPTED, ERROR, LOST_DEVICE, LANE, LANE_END
};

#define ADDRESS		28
#define REASON		40

struct connection_record {
	u64 time;		/* CLOCK_MONOTONIC, ns */
	u32 event;
	u32 ours;
	u32 number;		/* of the client or transport, if the event has one */
	s32 status;
	u32 detail;		/* vendor error, or rdma_cm event */
	u32 has_address;
	unsigned char address[ADDRESS];	/* struct sockaddr_in or sockaddr_in6 */
	char peer[REASON];	/* address as text */
	char text[REASON];
};

BPF_PERF_OUTPUT(connection_records);

static inline void tell(void *context, struct connection_record *record)
{
	connection_records.perf_submit(context, record, sizeof(*record));
}

static inline void tell_failure(void *context, u32 ours, u32 number, u64 status, u32 detail)
{
	struct connection_record record = {
		.time = bpf_ktime_get_ns(), .event = COMPLETION_ERROR, .ours = ours,
		.number = number, .status = status, .detail = detail,
	};

	if (status)
		tell(context, &record);
}

#define RECORD(name, what, mine)					\
	struct connection_record name = {				\
		.time = bpf_ktime_get_ns(), .event = what, .ours = mine	\
	}
#define OURS(name, what)						\
	RECORD(name, what, 1);						\
	name.number = args->xprt
#define WITH_ADDRESS(name, from)					\
	name.has_address = 1;						\
	bpf_probe_read_kernel(name.address, ADDRESS, from)

PROBE(sunrpc, xprt_retransmit)
{
	RECORD(record, RETRANSMITTED, 0);

	record.number = args->client_id;
	record.status = args->ntrans;
	TP_DATA_LOC_READ_STR(record.text, procname, REASON);
	tell(args, &record);
	return 0;
}

PROBE(sunrpc, rpc_timeout_status)
{
	RECORD(record, TIMED_OUT, 0);

	record.number = args->client_id;
	record.status = args->status;
	tell(args, &record);
	return 0;
}

/* enum rdma_cm_event_type; 12 (TIMEWAIT_EXIT) follows every disconnect */
PROBE(rdma_cma, cm_event_handler)
{
	RECORD(record, CM_EVENT, 0);

	record.detail = args->event;
	record.status = args->status;
	WITH_ADDRESS(record, args->dstaddr);
	tell(args, &record);
	return 0;
}

/* --- rpcrdma --- */

PROBE(rpcrdma, xprtrdma_connect)
{
	RECORD(record, CONNECTED, 0);

	record.status = args->rc;
	TP_DATA_LOC_READ_STR(record.peer, addr, REASON);
	tell(args, &record);
	return 0;
}

PROBE(rpcrdma, xprtrdma_disconnect)
{
	RECORD(record, DISCONNECTED, 0);

	record.status = args->connect_status;
	TP_DATA_LOC_READ_STR(record.peer, addr, REASON);
	tell(args, &record);
	return 0;
}

/* one event per work request; status 0 is success, 5 a flush after the connection failed */
#define COMPLETION()	tell_failure(args, 0, 0, args->status, args->vendor_err)

PROBE(rpcrdma, xprtrdma_wc_send) { COMPLETION(); return 0; }
PROBE(rpcrdma, xprtrdma_wc_receive) { COMPLETION(); return 0; }
PROBE(rpcrdma, xprtrdma_wc_fastreg) { COMPLETION(); return 0; }
PROBE(rpcrdma, xprtrdma_wc_li) { COMPLETION(); return 0; }
PROBE(rpcrdma, xprtrdma_wc_li_wake) { COMPLETION(); return 0; }
PROBE(rpcrdma, xprtrdma_wc_li_done) { COMPLETION(); return 0; }
PROBE(rpcrdma, svcrdma_wc_recv_err) { COMPLETION(); return 0; }
PROBE(rpcrdma, svcrdma_wc_send_err) { COMPLETION(); return 0; }
PROBE(rpcrdma, svcrdma_wc_read_err) { COMPLETION(); return 0; }
PROBE(rpcrdma, svcrdma_wc_write_err) { COMPLETION(); return 0; }
PROBE(rpcrdma, svcrdma_wc_reply_err) { COMPLETION(); return 0; }

PROBE(rpcrdma, xprtrdma_device_removal)
{
	RECORD(record, LOST_DEVICE, 0);

	TP_DATA_LOC_READ_STR(record.text, name, REASON);
	tell(args, &record);
	return 0;
}

PROBE(rpcrdma, svcrdma_device_removal)
{
	RECORD(record, LOST_DEVICE, 0);

	TP_DATA_LOC_READ_STR(record.text, name, REASON);
	tell(args, &record);
	return 0;
}

/* --- nfsrdma --- */

PROBE(nfsrdma, nfsrdma_completion)
{
	tell_failure(args, 1, args->xprt, args->status, args->vendor_error);
	return 0;
}

PROBE(nfsrdma, nfsrdma_connect)
{
	OURS(record, CONNECTED);

	record.status = args->status;
	WITH_ADDRESS(record, args->address);
	tell(args, &record);
	return 0;
}

PROBE(nfsrdma, nfsrdma_disconnect)
{
	OURS(record, DISCONNECTED);

	bpf_probe_read_kernel_str(record.text, REASON, args->reason);
	tell(args, &record);
	return 0;
}

/* personality pre-posted */
PROBE(nfsrdma, nfsrdma_lane)
{
	OURS(record, LANE);

	record.status = args->status;
	if (args->status)
		bpf_probe_read_kernel_str(record.text, REASON, args->reason);
	tell(args, &record);
	return 0;
}

PROBE(nfsrdma, nfsrdma_lane_end)
{
	OURS(record, LANE_END);

	bpf_probe_read_kernel_str(record.text, REASON, args->reason);
	tell(args, &record);
	return 0;
}

PROBE(nfsrdma, nfsrdma_error)
{
	OURS(record, ERROR);

	record.status = args->status;
	bpf_probe_read_kernel_str(record.text, REASON, args->what);
	tell(args, &record);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_accept)
{
	OURS(record, ACCEPTED);

	record.status = args->status;
	WITH_ADDRESS(record, args->peer);
	tell(args, &record);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_error)
{
	OURS(record, ERROR);

	record.status = args->status;
	WITH_ADDRESS(record, args->peer);
	bpf_probe_read_kernel_str(record.text, REASON, args->what);
	tell(args, &record);
	return 0;
}
