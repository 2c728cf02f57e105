/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a client's messages travel: inline or by which chunks, how much in how
 * many segments, and what of it was copied or left unused (RFC 8166, section 3).
 *
 * Chunks are reported before the message that carries them, its procedure when
 * the RPC ends. Until then its counts wait in a flight.
 */
enum kind { READ, POSITION_ZERO, WRITE, REPLY, KINDS };

/* probes/chunks.py has the same names in the same order */
enum chunk_count {
	RPCS, CALLS_INLINE, CALLS_PULLED_UP, CALLS_GATHERED, CALLS_READ, CALLS_POSITION_ZERO,
	REPLIES_INLINE, REPLIES_WRITE, REPLIES_REPLY,
	SEGMENTS, SEGMENTS_LAST = SEGMENTS + KINDS - 1,
	BYTES, BYTES_LAST = BYTES + KINDS - 1,
	INLINE_BYTES, PULLED_UP_BYTES, FIXED_UP_BYTES, WRITE_USED, REPLY_USED, REPLY_UNUSED,
	CHUNK_COUNTS
};

struct flight {
	u32 segments[KINDS];	/* of the message that is being made */
	u32 bytes[KINDS];
	u32 length[KINDS];	/* of the last message: what its histogram gets */
	u32 replied;		/* a Reply chunk waits to be used */
	u32 counts[CHUNK_COUNTS];
};

struct chunk_row {
	u64 counts[CHUNK_COUNTS];
	u32 sizes[KINDS * SLOTS];
};

BPF_TABLE("lru_hash", struct rpc, struct flight, chunk_flights, FLIGHTS);
BPF_TABLE("lru_hash", u32, struct rpc, chunk_handles, FLIGHTS);
BPF_F_TABLE("percpu_hash", struct row, struct chunk_row, chunk_rows, ROWS, WHEN_NEEDED);
/* never written: a new row's content is too large for a stack */
BPF_ARRAY(chunk_nothing, struct chunk_row, 1);

static inline void chunk_offered(u32 client, u32 task, enum kind kind, u32 segments, u32 bytes)
{
	struct rpc rpc = { .client = client, .task = task };
	struct flight fresh = {}, *flight = chunk_flights.lookup_or_try_init(&rpc, &fresh);

	if (!flight)
		return;
	flight->segments[kind] += segments;
	flight->bytes[kind] += bytes;
}

static inline void chunk_key(u32 client, u32 task, u32 handle)
{
	struct rpc rpc = { .client = client, .task = task };

	chunk_handles.update(&handle, &rpc);
}

/* A message is made: its chunks count, and so does the way it travels */
static inline void chunk_message(u32 client, u32 task, enum chunk_count call,
				 enum chunk_count reply, u32 inline_bytes, u32 pulled_up)
{
	struct rpc rpc = { .client = client, .task = task };
	struct flight fresh = {}, *flight = chunk_flights.lookup_or_try_init(&rpc, &fresh);

	if (!flight)
		return;
#pragma unroll
	for (int kind = 0; kind < KINDS; kind++) {
		flight->counts[SEGMENTS + kind] += flight->segments[kind];
		flight->counts[BYTES + kind] += flight->bytes[kind];
		flight->length[kind] = flight->bytes[kind];
		flight->segments[kind] = flight->bytes[kind] = 0;
	}
	if (call < CHUNK_COUNTS)
		flight->counts[call]++;
	if (reply < CHUNK_COUNTS)
		flight->counts[reply]++;
	flight->counts[INLINE_BYTES] += inline_bytes;
	flight->counts[PULLED_UP_BYTES] += pulled_up;
	flight->replied = 0;
}

/* A message could not be made: what was offered is taken back */
static inline void chunk_failed(u32 client, u32 task)
{
	struct rpc rpc = { .client = client, .task = task };
	struct flight *flight = chunk_flights.lookup(&rpc);

	if (!flight)
		return;
	__builtin_memset(flight->segments, 0, sizeof(flight->segments));
	__builtin_memset(flight->bytes, 0, sizeof(flight->bytes));
}

static inline void chunk_used(struct rpc *rpc, u32 bytes)
{
	struct flight *flight = chunk_flights.lookup(rpc);

	if (!flight)
		return;
	if (flight->length[REPLY])
		flight->counts[REPLY_USED] += bytes;
	else
		flight->counts[WRITE_USED] += bytes;
	flight->replied |= bytes;
}

static inline void chunk_copied(u32 client, u32 task, enum chunk_count what, u32 bytes)
{
	struct rpc rpc = { .client = client, .task = task };
	struct flight *flight = chunk_flights.lookup(&rpc);

	if (flight)
		flight->counts[what] += bytes;
}

static inline void chunk_done(struct rpc *rpc, struct row *row)
{
	struct flight *flight = chunk_flights.lookup(rpc);
	struct chunk_row *nothing, *sum;
	int first = 0;

	nothing = chunk_nothing.lookup(&first);
	if (!flight || !nothing)
		return;
	sum = chunk_rows.lookup_or_try_init(row, nothing);
	if (sum) {
		sum->counts[RPCS]++;
		if (flight->length[REPLY] && !flight->replied)
			sum->counts[REPLY_UNUSED]++;
#pragma unroll
		for (int i = RPCS + 1; i < REPLY_UNUSED; i++)
			sum->counts[i] += flight->counts[i];
#pragma unroll
		for (int kind = 0; kind < KINDS; kind++)
			if (flight->length[kind])
				sum->sizes[kind * SLOTS + slot_of(flight->length[kind])]++;
	}
	chunk_flights.delete(rpc);
}

#ifdef HAVE_sunrpc_rpc_stats_latency
PROBE(sunrpc, rpc_stats_latency)
{
	struct rpc rpc = { .client = args->client_id, .task = args->task_id };
	struct row row = { .client = args->client_id };

	TP_DATA_LOC_READ_STR(row.procedure, procname, TEXT);
	chunk_done(&rpc, &row);
	return 0;
}
#endif

/* --- the kernel's transport --- */

#ifdef HAVE_rpcrdma_xprtrdma_chunk_read
PROBE(rpcrdma, xprtrdma_chunk_read)
{
	chunk_offered(args->client_id, args->task_id, args->pos ? READ : POSITION_ZERO, 1,
		      args->length);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_chunk_write
PROBE(rpcrdma, xprtrdma_chunk_write)
{
	chunk_offered(args->client_id, args->task_id, WRITE, 1, args->length);
	chunk_key(args->client_id, args->task_id, args->handle);
	return 0;
}
#endif

/* room for the padding of a Write chunk: a segment more, used by nobody */
#ifdef HAVE_rpcrdma_xprtrdma_chunk_wp
PROBE(rpcrdma, xprtrdma_chunk_wp)
{
	chunk_offered(args->client_id, args->task_id, WRITE, 1, 0);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_chunk_reply
PROBE(rpcrdma, xprtrdma_chunk_reply)
{
	chunk_offered(args->client_id, args->task_id, REPLY, 1, args->length);
	chunk_key(args->client_id, args->task_id, args->handle);
	return 0;
}
#endif

/* enum rpcrdma_chunktype: 0 to 2 inline (1 pulled up, 2 gathered), 3 and 4 Read chunk (4 at
 * position zero), 5 Write chunk, 6 Reply chunk */
#ifdef HAVE_rpcrdma_xprtrdma_marshal
PROBE(rpcrdma, xprtrdma_marshal)
{
	u32 whole = args->headlen + args->pagelen + args->taillen;
	u32 sent = args->rtype == 4 ? 0 : args->rtype == 3 ? whole - args->pagelen : whole;
	u32 reply = args->wtype < 5 ? REPLIES_INLINE : REPLIES_INLINE + args->wtype - 4;

	chunk_message(args->client_id, args->task_id, CALLS_INLINE + args->rtype, reply, sent,
		      args->rtype == 1 ? args->pagelen + args->taillen : 0);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_marshal_failed
PROBE(rpcrdma, xprtrdma_marshal_failed)
{
	chunk_failed(args->client_id, args->task_id);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_decode_seg
PROBE(rpcrdma, xprtrdma_decode_seg)
{
	u32 handle = args->handle;
	struct rpc *rpc = chunk_handles.lookup(&handle);

	if (!rpc)
		return 0;
	chunk_used(rpc, args->length);
	chunk_handles.delete(&handle);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_fixup
PROBE(rpcrdma, xprtrdma_fixup)
{
	chunk_copied(args->client_id, args->task_id, FIXED_UP_BYTES, args->fixup);
	return 0;
}
#endif

/* --- ours --- */

#ifdef HAVE_nfsrdma_nfsrdma_chunk
PROBE(nfsrdma, nfsrdma_chunk)
{
	/* read, position-zero, write, reply */
	enum kind kind = args->kind[0] == 'p' ? POSITION_ZERO : args->kind[0] == 'w' ? WRITE :
			 args->kind[2] == 'p' ? REPLY : READ;

	chunk_offered(args->client, args->task, kind, args->segments, args->length);
	return 0;
}
#endif

/* call and reply: 0 inline, 1 chunk, 2 long */
#ifdef HAVE_nfsrdma_nfsrdma_marshal
PROBE(nfsrdma, nfsrdma_marshal)
{
	u32 sent = args->call == 2 ? 0 : args->call_length - (args->call ? args->call_data : 0);
	u32 call = args->call ? CALLS_READ + args->call - 1 : CALLS_INLINE;

	if (args->status)
		chunk_failed(args->client, args->task);
	else
		chunk_message(args->client, args->task, call, REPLIES_INLINE + args->reply, sent,
			      0);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_pullup
PROBE(nfsrdma, nfsrdma_pullup)
{
	chunk_copied(args->client, args->task, PULLED_UP_BYTES, args->length);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_reply
PROBE(nfsrdma, nfsrdma_reply)
{
	struct rpc rpc = { .client = args->client, .task = args->task };

	if (args->by_chunk)
		chunk_used(&rpc, args->by_chunk);
	chunk_copied(args->client, args->task, FIXED_UP_BYTES, args->by_inline);
	return 0;
}
#endif
