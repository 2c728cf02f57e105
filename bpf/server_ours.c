/* SPDX-License-Identifier: GPL-2.0-only */
/* Server of module nfsrdma; see server.c. */

/* probes/sets/server.py has the same names in the same order */
enum exposure_count {
	EXPOSURES, EXPOSED_BYTES, DONES, DONE_TIMEOUTS, STRAY_DONES,
	GRANTS, GRANTED_BYTES, REVOKED_MODIFIED, REVOKED_ATTRIBUTES, REVOKED_MOVED, REVOKED_OPENED,
	REVOKED_LISTENER, REVOKED_UNMOUNTED, REVOKED_EXPIRED, REVOKED_LIMIT, REVOKED_MEMORY,
	REVOKED_REPLACED,
	THREADLESS_HITS, THREADLESS_BYTES, THREADLESS_MISSED_ABSENT, THREADLESS_MISSED_EXPIRED,
	THREADLESS_MISSED_CHANGED, THREADLESS_MISSED_OPEN, THREADLESS_MISSED_LEASE,
	THREADLESS_MISSED_LISTENER, THREADLESS_MISSED_PAGES, THREADLESS_MISSED_SIZE,
	THREADLESS_MISSED_MEMORY, THREADLESS_MISSED_QUEUE, THREADLESS_MISSED_SHARE,
	DONES_OUTSTANDING, EXPOSURE_COUNTS
};

/*
 * What the client of a connection may read: Replies (personality read-read), extents of files
 * in the page cache (personality optimistic); and its READs that the module answered without a
 * thread of nfsd
 */
struct exposure_row {
	unsigned char peer[28];	/* struct sockaddr_in or sockaddr_in6 */
	u64 counts[EXPOSURE_COUNTS];
};

/* connections end: their rows make room for new ones */
BPF_TABLE("lru_hash", u32, struct exposure_row, exposure_rows, ROWS / 8);

static inline struct exposure_row *exposure_row(u32 number, void *peer)
{
	struct exposure_row fresh = {}, *row = exposure_rows.lookup(&number);

	if (!row) {
		bpf_probe_read_kernel(fresh.peer, sizeof(fresh.peer), peer);
		row = exposure_rows.lookup_or_try_init(&number, &fresh);
	}
	return row;
}

static inline void exposure_add(struct exposure_row *row, enum exposure_count what, u64 count)
{
	if (row)
		__sync_fetch_and_add(&row->counts[what], count);
}

PROBE(nfsrdma, nfsrdma_svc_expose)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer);

	if (row)
		row->counts[DONES_OUTSTANDING] = args->waiting;
	exposure_add(row, EXPOSURES, 1);
	exposure_add(row, EXPOSED_BYTES, (u64)args->pages << PAGE_BITS);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_done)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer);
	/* done, timeout, stray */
	enum exposure_count what = args->why[0] == 'd' ? DONES :
				   args->why[0] == 't' ? DONE_TIMEOUTS : STRAY_DONES;

	if (row)
		row->counts[DONES_OUTSTANDING] = args->waiting;
	exposure_add(row, what, 1);
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_grant)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer);

	exposure_add(row, GRANTS, 1);
	exposure_add(row, GRANTED_BYTES, args->length);
	return 0;
}

/* Find a reason by letters that no other has: see nfr_observe_revoked() */
static inline enum exposure_count revoked_because(char first, char second, char third)
{
	switch (first) {
	case 'a':
		return REVOKED_ATTRIBUTES;
	case 'e':
		return REVOKED_EXPIRED;
	case 'l':
		/* listener, limit */
		return third == 's' ? REVOKED_LISTENER : REVOKED_LIMIT;
	case 'm':
		/* modified, moved, memory */
		return second == 'e' ? REVOKED_MEMORY :
		       third == 'v' ? REVOKED_MOVED : REVOKED_MODIFIED;
	case 'o':
		return REVOKED_OPENED;
	case 'u':
		return REVOKED_UNMOUNTED;
	default:
		return REVOKED_REPLACED;
	}
}

PROBE(nfsrdma, nfsrdma_svc_revoke)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer);

	exposure_add(row, revoked_because(args->why[0], args->why[1], args->why[2]), 1);
	return 0;
}

/* Find the result by letters that no other has: hit, or the reason why nfsd gets the Call */
static inline enum exposure_count threadless_result(char first, char second)
{
	switch (first) {
	case 'h':
		return THREADLESS_HITS;
	case 'a':
		return THREADLESS_MISSED_ABSENT;
	case 'e':
		return THREADLESS_MISSED_EXPIRED;
	case 'c':
		return THREADLESS_MISSED_CHANGED;
	case 'o':
		return THREADLESS_MISSED_OPEN;
	case 'l':
		return second == 'e' ? THREADLESS_MISSED_LEASE : THREADLESS_MISSED_LISTENER;
	case 'p':
		return THREADLESS_MISSED_PAGES;
	case 'm':
		return THREADLESS_MISSED_MEMORY;
	case 'q':
		return THREADLESS_MISSED_QUEUE;
	default:
		return second == 'i' ? THREADLESS_MISSED_SIZE : THREADLESS_MISSED_SHARE;
	}
}

/*
 * The Call of an event of its Reply. Not server_call_here(): a softirq sends the Reply to a
 * threadless read, and the thread that it interrupts may have another Call.
 */
static inline struct server_call *server_call_of(u32 xid)
{
	struct server_key key = { .number = xid };

	return server_call(&key);
}

/* The last event of a hit, and the first one after svc_call of a READ that nfsd gets after all */
PROBE(nfsrdma, nfsrdma_svc_threadless)
{
	struct exposure_row *row = exposure_row(args->xprt, args->peer);
	enum exposure_count result = threadless_result(args->result[0], args->result[1]);
	struct server_call *call = server_call_of(args->xid);

	exposure_add(row, result, 1);
	exposure_add(row, THREADLESS_BYTES, args->length);
	if (!call)
		return 0;
	if (result == THREADLESS_HITS)
		call->begin = 0;
	/* the module may have given a Reply up after its chunk's event */
	call->counts[SERVER_WRITE_CALLS] = 0;
	call->counts[SERVER_WRITTEN] = 0;
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
	struct server_call *call = server_call_of(args->xid);

	if (!call)
		return 0;
	/* write, reply */
	call->counts[args->kind[0] == 'w' ? SERVER_WRITE_CALLS : SERVER_REPLY_CALLS] = 1;
	call->counts[SERVER_WRITTEN] += args->length;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_reply)
{
	struct server_call *call = server_call_of(args->xid);

	if (!call)
		return 0;
	/* no nfsd thread has it: a threadless read */
	if (!call->id.procedure[0])
		return 0;
	call->counts[SERVER_INVALIDATES] = args->invalidates;
	server_done(call, number_of(&call->id, sizeof(call->id)));
	return 0;
}
