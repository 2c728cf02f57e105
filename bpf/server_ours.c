/* SPDX-License-Identifier: GPL-2.0-only */
/* Server of module nfsrdma; see server.c. */

/* probes/sets/server.py has the same names in the same order */
enum exposure_count {
	EXPOSURES, EXPOSED_BYTES, DONES, DONE_TIMEOUTS, STRAY_DONES, DONES_OUTSTANDING,
	EXPOSURE_COUNTS
};

/* Replies that a connection's client may read (personality read-read) */
struct exposure_row {
	unsigned char peer[28];	/* struct sockaddr_in or sockaddr_in6 */
	u64 counts[EXPOSURE_COUNTS];
};

/* connections end: their rows make room for new ones */
BPF_TABLE("lru_hash", u32, struct exposure_row, exposure_rows, ROWS / 8);

static inline struct exposure_row *exposure_row(u32 number, void *peer, u32 outstanding)
{
	struct exposure_row fresh = {}, *row = exposure_rows.lookup(&number);

	if (!row) {
		bpf_probe_read_kernel(fresh.peer, sizeof(fresh.peer), peer);
		row = exposure_rows.lookup_or_try_init(&number, &fresh);
	}
	if (row)
		row->counts[DONES_OUTSTANDING] = outstanding;
	return row;
}

PROBE(nfsrdma, nfsrdma_svc_expose)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer, args->waiting);

	if (!row)
		return 0;
	__sync_fetch_and_add(&row->counts[EXPOSURES], 1);
	__sync_fetch_and_add(&row->counts[EXPOSED_BYTES], (u64)args->pages << PAGE_BITS);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_done)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer, args->waiting);
	/* done, timeout, stray */
	enum exposure_count what = args->why[0] == 'd' ? DONES :
				   args->why[0] == 't' ? DONE_TIMEOUTS : STRAY_DONES;

	if (row)
		__sync_fetch_and_add(&row->counts[what], 1);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_call)
{
	struct server_key key = { .number = args->xid };
	struct server_call *call = server_begin(&key);

	if (!call)
		return 0;
	call->counts[SERVER_READ_CALLS] = !!args->reads;
	call->counts[SERVER_ROOM] = args->reply_room;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_read)
{
	struct server_key key = { .number = args->xid };
	struct server_call *call = server_call(&key);

	if (!call)
		return 0;
	call->counts[SERVER_READ_SEGMENTS] += args->requests;
	call->counts[SERVER_READ_BYTES] += args->length;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_chunk)
{
	struct server_call *call = server_call_here();

	if (!call)
		return 0;
	/* write, reply */
	call->counts[args->kind[0] == 'w' ? SERVER_WRITE_CALLS : SERVER_REPLY_CALLS] = 1;
	call->counts[SERVER_WRITTEN] += args->length;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_reply)
{
	struct server_call *call = server_call_here();

	if (!call)
		return 0;
	call->counts[SERVER_INVALIDATES] = args->invalidates;
	server_done(call, number_of(&call->id, sizeof(call->id)));
	return 0;
}
