/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Server, by client and procedure: how messages travel, and the time of a Call
 * by phase.
 *
 * rpcrdma's events identify a Call by its receive (completion queue and
 * number), nfsrdma's by its XID. While an nfsd thread has the Call, the thread
 * identifies it.
 */

/* probes/sets/server.py has the same names in the same order */
enum server_phase {
	SERVER_QUEUE,		/* received, waits for a thread */
	SERVER_READ_IN,		/* RDMA Reads of its Read chunks */
	SERVER_NFSD,		/* execution of the procedure */
	SERVER_WRITE_OUT,	/* RDMA Writes are prepared, the Reply is built */
	SERVER_SEND,		/* the Reply is posted, until its completion */
	SERVER_PHASES
};

enum server_count {
	SERVER_CALLS, SERVER_READ_CALLS, SERVER_WRITE_CALLS, SERVER_REPLY_CALLS,
	SERVER_READ_SEGMENTS, SERVER_READ_BYTES, SERVER_ROOM, SERVER_WRITTEN, SERVER_INVALIDATES,
	SERVER_SENDS, SERVER_COUNTS
};

struct server_key {
	u32 queue;		/* 0: a Call of nfsrdma, by its XID */
	u32 number;
};

struct server_id {
	char peer[TEXT * 2];
	char procedure[TEXT];
};

struct server_call {
	struct server_key key;
	u64 begin;		/* 0: slot is unused */
	u64 last;
	u64 phases[SERVER_PHASES];
	u32 counts[SERVER_COUNTS];
	struct server_id id;
};

struct server_row {
	struct server_id id;
	u64 sum;
	u64 phases[SERVER_PHASES];
	u64 counts[SERVER_COUNTS];
	u32 times[SLOTS];	/* in units of 1024 ns */
};

struct server_thread {
	u64 thread;
	u32 slot;		/* of its Call */
	u32 has;
};
BPF_ARRAY(server_calls, struct server_call, TASK_SLOTS);
BPF_ARRAY(server_threads, struct server_thread, TASK_SLOTS);
BPF_F_TABLE("percpu_hash", u32, struct server_row, server_rows, ROWS, WHEN_NEEDED);
/* never written: the initial value of a new row is too large for the BPF stack */
BPF_ARRAY(server_nothing, struct server_row, 1);

static inline int server_same(struct server_key *one, struct server_key *other)
{
	return one->queue == other->queue && one->number == other->number;
}

/*
 * sunrpc's client counts XIDs up in its own byte order, so that those of a
 * little-endian client differ in the first byte on the wire: both ends of the
 * XID have to count.
 */
static inline int server_slot(struct server_key *key)
{
	u32 number = key->queue ? key->number : key->number ^ __builtin_bswap32(key->number);

	return (key->queue * 67 + number) & (TASK_SLOTS - 1);
}

static inline struct server_call *server_call(struct server_key *key)
{
	int slot = server_slot(key);
	struct server_call *call = server_calls.lookup(&slot);

	return call && call->begin && server_same(&call->key, key) ? call : NULL;
}

static inline struct server_call *server_begin(struct server_key *key)
{
	int slot = server_slot(key);
	struct server_call *call = server_calls.lookup(&slot);

	if (!call)
		return NULL;
	/* a receive without a Reply, such as the reply to a callback, leaves its slot in use */
	if (call->begin && !server_same(&call->key, key))
		lose(LOST_RPCS);
	__builtin_memset(call, 0, sizeof(*call));
	call->key = *key;
	call->begin = call->last = bpf_ktime_get_ns();
	return call;
}

static inline void server_phase(struct server_call *call, enum server_phase phase)
{
	u64 now = bpf_ktime_get_ns();

	call->phases[phase] += now - call->last;
	call->last = now;
}

static inline struct server_thread *server_thread(void)
{
	int slot = bpf_get_current_pid_tgid() & (TASK_SLOTS - 1);

	return server_threads.lookup(&slot);
}

/* This thread takes the Call */
static inline struct server_call *server_taken(struct server_key *key)
{
	struct server_thread *here = server_thread();

	if (here) {
		here->thread = bpf_get_current_pid_tgid();
		here->slot = server_slot(key);
		here->has = 1;
	}
	return server_call(key);
}

static inline struct server_call *server_call_here(void)
{
	struct server_thread *here = server_thread();
	struct server_call *call;
	int slot;

	if (!here || !here->has || here->thread != bpf_get_current_pid_tgid())
		return NULL;
	slot = here->slot;
	call = server_calls.lookup(&slot);
	return call && call->begin ? call : NULL;
}

static inline struct server_row *server_row(struct server_id *id, u32 number)
{
	struct server_row *found = server_rows.lookup(&number), *nothing;
	int first = 0;

	if (!found && (nothing = server_nothing.lookup(&first)))
		found = server_rows.lookup_or_try_init(&number, nothing);
	if (!found)
		lose(LOST_RPCS);
	return found && row_is(&found->id, id, sizeof(*id)) ? found : NULL;
}

/* A Call is answered; @number identifies its row */
static inline void server_done(struct server_call *call, u32 number)
{
	struct server_thread *here = server_thread();
	struct server_row *row;

	server_phase(call, SERVER_WRITE_OUT);
	row = server_row(&call->id, number);
	if (row) {
		row->sum += call->last - call->begin;
		row->times[slot_of((call->last - call->begin) >> 10)]++;
		row->counts[SERVER_CALLS]++;
#pragma unroll
		for (int i = 0; i < SERVER_PHASES; i++)
			row->phases[i] += call->phases[i];
#pragma unroll
		for (int i = SERVER_CALLS + 1; i < SERVER_COUNTS; i++)
			row->counts[i] += call->counts[i];
	}
	call->begin = 0;
	if (here)
		here->has = 0;
}

/* nfsd starts: find a Call of nfsrdma by its XID, and a Call of rpcrdma by the thread */
PROBE(sunrpc, svc_process)
{
	struct server_key ours = { .number = args->xid };
	struct server_call *call = server_call(&ours);

	call = call ? server_taken(&ours) : server_call_here();
	if (!call)
		return 0;
	server_phase(call, call->counts[SERVER_READ_CALLS] ? SERVER_READ_IN : SERVER_QUEUE);
	TP_DATA_LOC_READ_STR(call->id.peer, addr, sizeof(call->id.peer));
	TP_DATA_LOC_READ_STR(call->id.procedure, procedure, TEXT);
	return 0;
}

PROBE(sunrpc, svc_stats_latency)
{
	struct server_call *call = server_call_here();

	if (call)
		server_phase(call, SERVER_NFSD);
	return 0;
}

/* --- rpcrdma --- */

#define SERVER_KEY(name) \
	struct server_key name = { .queue = args->cq_id + 1, .number = args->completion_id }

PROBE(rpcrdma, svcrdma_wc_recv)
{
	SERVER_KEY(key);

	server_begin(&key);
	return 0;
}

PROBE(rpcrdma, svcrdma_decode_rseg)
{
	SERVER_KEY(key);
	struct server_call *call = server_call(&key);

	if (!call)
		return 0;
	call->counts[SERVER_READ_CALLS] = 1;
	call->counts[SERVER_READ_SEGMENTS]++;
	call->counts[SERVER_READ_BYTES] += args->length;
	return 0;
}

PROBE(rpcrdma, svcrdma_decode_wseg)
{
	SERVER_KEY(key);
	struct server_call *call = server_call(&key);

	if (call)
		call->counts[SERVER_ROOM] += args->length;
	return 0;
}

PROBE(rpcrdma, svcrdma_decode_rqst)
{
	SERVER_KEY(key);
	struct server_call *call = server_taken(&key);

	if (call)
		server_phase(call, SERVER_QUEUE);
	return 0;
}

/* another thread may go on with a Call after its RDMA Reads */
PROBE(rpcrdma, svcrdma_read_finished)
{
	SERVER_KEY(key);

	server_taken(&key);
	return 0;
}

PROBE(rpcrdma, svcrdma_post_write_chunk)
{
	struct server_call *call = server_call_here();

	if (call)
		call->counts[SERVER_WRITE_CALLS] = 1;
	return 0;
}

PROBE(rpcrdma, svcrdma_post_reply_chunk)
{
	struct server_call *call = server_call_here();

	if (call)
		call->counts[SERVER_REPLY_CALLS] = 1;
	return 0;
}

PROBE(rpcrdma, svcrdma_encode_wseg)
{
	struct server_call *call = server_call_here();

	if (call)
		call->counts[SERVER_WRITTEN] += args->length;
	return 0;
}
