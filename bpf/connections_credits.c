/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Credits: granted by the server, used by Calls (RFC 8166, section 3.3). Part
 * of probe set connections.
 */
/* credits of a client (rpcrdma) or of a transport (nfsrdma) */
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

/* one row per client; other maps have one per client and procedure */
BPF_HASH(credits, struct credit_key, struct credit_row, ROWS / 8);

static inline struct credit_row *credit_row(u32 ours, u32 number)
{
	struct credit_key key = { .ours = ours, .number = number };
	struct credit_row fresh = {}, *row = credits.lookup_or_try_init(&key, &fresh);

	if (!row)
		lose(LOST_CREDITS);
	return row;
}

static inline void credit_state(struct credit_row *row, u32 granted, u32 used, u32 waits)
{
	row->granted = granted;
	row->used = used;
	if (used > row->most_used)
		row->most_used = used;
	if (waits)
		__sync_fetch_and_add(&row->waits, 1);
}

/* The congestion window of an RDMA transport in sunrpc is its number of credits times 256 */
PROBE(sunrpc, xprt_get_cong)
{
	struct credit_row *row = credit_row(0, args->client_id);

	/* the event precedes the accounting of this Call */
	if (row)
		credit_state(row, args->cwnd >> 8, (args->cong >> 8) + !args->wait, args->wait);
	return 0;
}

PROBE(nfsrdma, nfsrdma_post)
{
	struct credit_row *row = credit_row(1, args->xprt);

	if (row)
		credit_state(row, row->granted, args->inflight, 0);
	return 0;
}

PROBE(nfsrdma, nfsrdma_reply)
{
	struct credit_row *row = credit_row(1, args->xprt);

	/* a lane (personality pre-posted) has the number of its transport, and one credit */
	if (row && (args->granted > 1 || !row->granted))
		row->granted = args->granted;
	return 0;
}
