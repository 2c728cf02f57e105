/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Latency of a client's RPCs by phase. An event ends each phase. A
 * retransmitted RPC repeats the phases after SLOT; their times are added up.
 */

/* probes/sets/latency.py has the same names in the same order */
enum phase {
	SLOT,		/* wait for an RPC slot */
	QUEUE,		/* wait for a credit and for its turn, encode */
	MARSHAL,	/* register memory, build the header, post */
	NETWORK_AND_SERVER,	/* until the Reply */
	REPLY_HANDLED,	/* handle the Reply, invalidate memory */
	WAKE_UP,	/* wake the task until it runs */
	DECODE,		/* decode the result, end the RPC */
	PHASES
};

#define FINE_SLOTS	128	/* four per power of two, in nanoseconds from 1024 on */
#define SLOWEST		8

struct timing {
	struct rpc rpc;		/* first member: rpc_begins() clears it with all that follows */
	u32 ended;		/* the last phase that ended */
	u64 begin;
	u64 last;
	u64 phases[PHASES];
};

struct latency_row {
	struct row row;
	u64 count;
	u64 sum;
	u64 phases[PHASES];
	u32 times[FINE_SLOTS];
	u32 phase_times[PHASES * SLOTS];	/* in units of 1024 ns */
};

struct slow_call {
	u64 end;
	u64 total;
	u64 phases[PHASES];
	u32 client;
	u32 xid;
	char procedure[TEXT];
};

struct slow_calls {
	u64 least;		/* the smallest total in @calls */
	struct slow_call calls[SLOWEST];
};

BPF_ARRAY(timings, struct timing, TASK_SLOTS);
BPF_F_TABLE("percpu_hash", u32, struct latency_row, latency_rows, ROWS, WHEN_NEEDED);
/* never written: the initial value of a new row is too large for the BPF stack */
BPF_ARRAY(latency_nothing, struct latency_row, 1);
BPF_PERCPU_ARRAY(slowest, struct slow_calls, 1);

static inline u32 fine_slot(u64 ns)
{
	u64 units = ns >> 10;
	u32 power, slot = units;

	if (units >= 4) {
		power = bpf_log2l(units) - 1;
		slot = power * 4 - 4 + ((units >> (power - 2)) & 3);
	}
	return bounded(slot, FINE_SLOTS);
}

static inline struct timing *timing_of(u32 client, u32 task)
{
	int slot = task & (TASK_SLOTS - 1);
	struct timing *timing = timings.lookup(&slot);

	return timing && rpc_is(&timing->rpc, client, task) ? timing : NULL;
}

static inline void timing_begins(u32 client, u32 task)
{
	int slot = task & (TASK_SLOTS - 1);
	struct timing *timing = timings.lookup(&slot);

	if (!timing || !issued(client, task))
		return;
	rpc_begins(&timing->rpc, sizeof(*timing), client, task);
	timing->begin = timing->last = bpf_ktime_get_ns();
}

static inline void phase_ends(u32 client, u32 task, enum phase phase)
{
	struct timing *timing = timing_of(client, task);
	u64 now = bpf_ktime_get_ns();

	if (!timing)
		return;
	timing->phases[phase] += now - timing->last;
	timing->last = now;
	timing->ended = phase;
}

/* Keep an RPC if it is among the slowest of this CPU since the last read-out */
static inline void keep_if_slow(struct row *row, struct timing *timing, u32 xid, u64 now)
{
	u64 total = now - timing->begin, least = ~0ULL;
	struct slow_calls *kept;
	struct slow_call *call;
	int first = 0;

	kept = slowest.lookup(&first);
	if (!kept || total <= kept->least)
		return;
	call = &kept->calls[0];
#pragma unroll
	for (int i = 1; i < SLOWEST; i++)
		if (kept->calls[i].total < call->total)
			call = &kept->calls[i];
	call->end = now;
	call->total = total;
	call->client = row->client;
	call->xid = xid;
	__builtin_memcpy(call->procedure, row->procedure, TEXT);
	__builtin_memcpy(call->phases, timing->phases, sizeof(call->phases));
#pragma unroll
	for (int i = 0; i < SLOWEST; i++)
		if (kept->calls[i].total < least)
			least = kept->calls[i].total;
	kept->least = least;
}

static inline struct latency_row *latency_row(struct row *row)
{
	u32 number = number_of(row, sizeof(*row));
	struct latency_row *found = latency_rows.lookup(&number), *nothing;
	int first = 0;

	if (!found && (nothing = latency_nothing.lookup(&first)))
		found = latency_rows.lookup_or_try_init(&number, nothing);
	if (!found)
		lose(LOST_RPCS);
	return found && row_is(&found->row, row, sizeof(*row)) ? found : NULL;
}

static inline void timing_done(struct row *row, u32 task, u32 xid)
{
	struct timing *timing = timing_of(row->client, task);
	u64 now = bpf_ktime_get_ns();
	struct latency_row *sum;

	if (!timing)
		return;
	timing->phases[DECODE] += now - timing->last;
	timing->rpc.live = 0;
	sum = latency_row(row);
	if (sum) {
		sum->count++;
		sum->sum += now - timing->begin;
		sum->times[fine_slot(now - timing->begin)]++;
#pragma unroll
		for (int i = 0; i < PHASES; i++) {
			sum->phases[i] += timing->phases[i];
			sum->phase_times[i * SLOTS + slot_of(timing->phases[i] >> 10)]++;
		}
	}
	keep_if_slow(row, timing, xid, now);
}

PROBE(sunrpc, rpc_request)
{
	timing_begins(args->client_id, args->task_id);
	return 0;
}

#define PHASE(phase)	phase_ends(args->client_id, args->task_id, phase)

PROBE(sunrpc, xprt_reserve) { PHASE(SLOT); return 0; }

PROBE(sunrpc, rpc_xdr_sendto) { PHASE(QUEUE); return 0; }

PROBE(sunrpc, xprt_transmit) { PHASE(MARSHAL); return 0; }

PROBE(sunrpc, rpc_xdr_recvfrom) { PHASE(WAKE_UP); return 0; }

/* tasks wake up for other reasons too: count only the first wake-up after the Reply */
PROBE(sunrpc, rpc_task_wakeup)
{
	struct timing *timing = timing_of(args->client_id, args->task_id);

	if (timing && timing->ended == NETWORK_AND_SERVER)
		PHASE(REPLY_HANDLED);
	return 0;
}

PROBE(sunrpc, rpc_stats_latency)
{
	struct row row = { .client = args->client_id };

	TP_DATA_LOC_READ_STR(row.procedure, procname, TEXT);
	timing_done(&row, args->task_id, args->xid);
	return 0;
}

/* over TCP no event reports a Reply: WAKE_UP includes NETWORK_AND_SERVER and REPLY_HANDLED */
PROBE(rpcrdma, xprtrdma_reply) { PHASE(NETWORK_AND_SERVER); return 0; }

/* nfsrdma reports a Reply after it invalidated memory: REPLY_HANDLED has no time */
PROBE(nfsrdma, nfsrdma_reply)
{
	phase_ends(args->client, args->task, NETWORK_AND_SERVER);
	return 0;
}
