/* SPDX-License-Identifier: GPL-2.0-only */
/* Chunks of a client of module nfsrdma; see chunks.c. */

PROBE(nfsrdma, nfsrdma_chunk)
{
	/* read, position-zero, write, reply */
	enum kind kind = args->kind[0] == 'p' ? POSITION_ZERO_CHUNK :
			 args->kind[0] == 'w' ? WRITE_CHUNK :
			 args->kind[2] == 'p' ? REPLY_CHUNK : READ_CHUNK;

	chunk_offered(args->client, args->task, kind, args->segments, args->length);
	return 0;
}

/* fields call and reply: 0 inline, 1 chunk, 2 long, 4 padded; reply only: 3 lane */
PROBE(nfsrdma, nfsrdma_marshal)
{
	u32 apart = args->call == 2 ? args->call_length : args->call == 1 ? args->call_data : 0;
	u32 call = args->call == 4 ? CALLS_PADDED :
		   args->call ? CALLS_READ + args->call - 1 : CALLS_INLINE;

	if (args->status)
		chunk_failed(args->client, args->task);
	else
		chunk_message(args->client, args->task, call, REPLIES_INLINE + args->reply,
			      args->call_length - apart, 0);
	return 0;
}

PROBE(nfsrdma, nfsrdma_pullup)
{
	chunk_copied(args->client, args->task, PULLED_UP_BYTES, args->length);
	return 0;
}

PROBE(nfsrdma, nfsrdma_reply)
{
	if (args->by_chunk)
		chunk_used(args->client, args->task, args->by_chunk);
	chunk_copied(args->client, args->task, FIXED_UP_BYTES, args->by_inline);
	return 0;
}

/* a READ without a message; if the server's device refuses it, a message follows */
PROBE(nfsrdma, nfsrdma_optimistic)
{
	struct flight *flight = chunk_flight_of(args->client, args->task);

	if (!flight)
		return 0;
	if (args->status) {
		flight->counts[OPTIMISTIC_REFUSED]++;
		return 0;
	}
	flight->counts[REPLIES_OPTIMISTIC]++;
	flight->counts[OPTIMISTIC_BYTES] += args->length;
	return 0;
}
