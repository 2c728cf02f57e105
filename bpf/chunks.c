/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chunks of a client: whether messages travel inline or in chunks, with how
 * many segments and bytes, and how much was copied or left unused (RFC 8166,
 * section 3).
 *
 * Events report chunks before the message that carries them, and the procedure
 * at the end of the RPC. Until then struct flight holds the counts.
 */
/* the kernel defines READ and WRITE as macros */
enum kind { READ_CHUNK, POSITION_ZERO_CHUNK, WRITE_CHUNK, REPLY_CHUNK, KINDS };

/* probes/sets/chunks.py has the same names in the same order */
enum chunk_count {
	RPCS, CALLS_INLINE, CALLS_PULLED_UP, CALLS_GATHERED, CALLS_READ, CALLS_POSITION_ZERO,
	CALLS_PADDED, REPLIES_INLINE, REPLIES_WRITE, REPLIES_REPLY, REPLIES_LANE, REPLIES_PADDED,
	REPLIES_OPTIMISTIC,
	SEGMENTS, SEGMENTS_LAST = SEGMENTS + KINDS - 1,
	BYTES, BYTES_LAST = BYTES + KINDS - 1,
	INLINE_BYTES, PULLED_UP_BYTES, FIXED_UP_BYTES, OPTIMISTIC_BYTES, OPTIMISTIC_REFUSED,
	WRITE_USED, REPLY_USED, REPLY_UNUSED,
	CHUNK_COUNTS
};

struct flight {
	struct rpc rpc;		/* first member: rpc_begins() clears it with all that follows */
	u32 segments[KINDS];	/* of the message in preparation */
	u32 bytes[KINDS];
	u32 length[KINDS];	/* of the last message, for its histogram */
	u32 replied;		/* the server used the Reply chunk */
	u32 counts[CHUNK_COUNTS];
};

struct chunk_row {
	struct row row;
	u64 counts[CHUNK_COUNTS];
	u32 sizes[KINDS * SLOTS];
};

/* RPC of a key. The low byte of a key changes with each use of an MR; the rest identifies it */
struct chunk_handle {
	u32 handle;
	u32 client;
	u32 task;
};

BPF_ARRAY(chunk_flights, struct flight, TASK_SLOTS);
BPF_ARRAY(chunk_handles, struct chunk_handle, KEY_SLOTS);
BPF_F_TABLE("percpu_hash", u32, struct chunk_row, chunk_rows, ROWS, WHEN_NEEDED);
/* never written: the initial value of a new row is too large for the BPF stack */
BPF_ARRAY(chunk_nothing, struct chunk_row, 1);

static inline struct flight *chunk_flight(u32 client, u32 task)
{
	int slot = task & (TASK_SLOTS - 1);
	struct flight *flight = chunk_flights.lookup(&slot);

	return flight && rpc_is(&flight->rpc, client, task) ? flight : NULL;
}

/* Get the flight of an RPC, or start one */
static inline struct flight *chunk_flight_of(u32 client, u32 task)
{
	int slot = task & (TASK_SLOTS - 1);
	struct flight *flight = chunk_flights.lookup(&slot);

	if (!flight || rpc_is(&flight->rpc, client, task))
		return flight;
	if (!issued(client, task))
		return NULL;
	rpc_begins(&flight->rpc, sizeof(*flight), client, task);
	return flight;
}

static inline void chunk_offered(u32 client, u32 task, enum kind kind, u32 segments, u32 bytes)
{
	struct flight *flight = chunk_flight_of(client, task);

	if (!flight)
		return;
	flight->segments[kind] += segments;
	flight->bytes[kind] += bytes;
}

static inline void chunk_key(u32 client, u32 task, u32 handle)
{
	int slot = (handle >> 8) & (KEY_SLOTS - 1);
	struct chunk_handle *known = chunk_handles.lookup(&slot);

	if (!known)
		return;
	known->handle = handle;
	known->client = client;
	known->task = task;
}

/* A message is marshaled: count its chunks and the way that it travels */
static inline void chunk_message(u32 client, u32 task, enum chunk_count call,
				 enum chunk_count reply, u32 inline_bytes, u32 pulled_up)
{
	struct flight *flight = chunk_flight_of(client, task);

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

/* Marshaling failed: discard the chunks of the message */
static inline void chunk_failed(u32 client, u32 task)
{
	struct flight *flight = chunk_flight(client, task);

	if (!flight)
		return;
	__builtin_memset(flight->segments, 0, sizeof(flight->segments));
	__builtin_memset(flight->bytes, 0, sizeof(flight->bytes));
}

static inline void chunk_used(u32 client, u32 task, u32 bytes)
{
	struct flight *flight = chunk_flight(client, task);

	if (!flight)
		return;
	if (flight->length[REPLY_CHUNK])
		flight->counts[REPLY_USED] += bytes;
	else
		flight->counts[WRITE_USED] += bytes;
	flight->replied |= bytes;
}

static inline void chunk_copied(u32 client, u32 task, enum chunk_count what, u32 bytes)
{
	struct flight *flight = chunk_flight(client, task);

	if (flight)
		flight->counts[what] += bytes;
}

static inline struct chunk_row *chunk_row(struct row *row)
{
	u32 number = number_of(row, sizeof(*row));
	struct chunk_row *found = chunk_rows.lookup(&number), *nothing;
	int first = 0;

	if (!found && (nothing = chunk_nothing.lookup(&first)))
		found = chunk_rows.lookup_or_try_init(&number, nothing);
	if (!found)
		lose(LOST_RPCS);
	return found && row_is(&found->row, row, sizeof(*row)) ? found : NULL;
}

static inline void chunk_done(struct row *row, u32 task)
{
	struct flight *flight = chunk_flight(row->client, task);
	struct chunk_row *sum;

	if (!flight)
		return;
	sum = chunk_row(row);
	if (sum) {
		sum->counts[RPCS]++;
		if (flight->length[REPLY_CHUNK] && !flight->replied)
			sum->counts[REPLY_UNUSED]++;
#pragma unroll
		for (int i = RPCS + 1; i < REPLY_UNUSED; i++)
			sum->counts[i] += flight->counts[i];
#pragma unroll
		for (int kind = 0; kind < KINDS; kind++)
			if (flight->length[kind])
				sum->sizes[kind * SLOTS + slot_of(flight->length[kind])]++;
	}
	flight->rpc.live = 0;
}

PROBE(sunrpc, rpc_stats_latency)
{
	struct row row = { .client = args->client_id };

	TP_DATA_LOC_READ_STR(row.procedure, procname, TEXT);
	chunk_done(&row, args->task_id);
	return 0;
}

/* --- rpcrdma --- */

PROBE(rpcrdma, xprtrdma_chunk_read)
{
	enum kind kind = args->pos ? READ_CHUNK : POSITION_ZERO_CHUNK;

	chunk_offered(args->client_id, args->task_id, kind, 1, args->length);
	return 0;
}

PROBE(rpcrdma, xprtrdma_chunk_write)
{
	chunk_offered(args->client_id, args->task_id, WRITE_CHUNK, 1, args->length);
	chunk_key(args->client_id, args->task_id, args->handle);
	return 0;
}

/* padding of a Write chunk: an additional segment, which is not used */
PROBE(rpcrdma, xprtrdma_chunk_wp)
{
	chunk_offered(args->client_id, args->task_id, WRITE_CHUNK, 1, 0);
	return 0;
}

PROBE(rpcrdma, xprtrdma_chunk_reply)
{
	chunk_offered(args->client_id, args->task_id, REPLY_CHUNK, 1, args->length);
	chunk_key(args->client_id, args->task_id, args->handle);
	return 0;
}

/*
 * enum rpcrdma_chunktype: 0 to 2 inline (1 pulled up, 2 gathered), 3 Read
 * chunk, 4 position-zero Read chunk, 5 Write chunk, 6 Reply chunk
 */
PROBE(rpcrdma, xprtrdma_marshal)
{
	u32 whole = args->headlen + args->pagelen + args->taillen;
	u32 sent = args->rtype == 4 ? 0 : args->rtype == 3 ? whole - args->pagelen : whole;
	u32 reply = args->wtype < 5 ? REPLIES_INLINE : REPLIES_INLINE + args->wtype - 4;

	chunk_message(args->client_id, args->task_id, CALLS_INLINE + args->rtype, reply, sent,
		      args->rtype == 1 ? args->pagelen + args->taillen : 0);
	return 0;
}

PROBE(rpcrdma, xprtrdma_marshal_failed)
{
	chunk_failed(args->client_id, args->task_id);
	return 0;
}

PROBE(rpcrdma, xprtrdma_decode_seg)
{
	int slot = (args->handle >> 8) & (KEY_SLOTS - 1);
	struct chunk_handle *known = chunk_handles.lookup(&slot);

	if (known && known->handle == args->handle)
		chunk_used(known->client, known->task, args->length);
	return 0;
}

PROBE(rpcrdma, xprtrdma_fixup)
{
	chunk_copied(args->client_id, args->task_id, FIXED_UP_BYTES, args->fixup);
	return 0;
}
