/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What becomes of memory regions: mapped, registered, invalidated by the peer
 * or by this side, given back; how large they are, how long they stay, how
 * many are out at once.
 *
 * Of the kernel's transport events name the client, of ours the transport.
 */

/* probes/registrations.py has the same names in the same order */
enum region_count {
	MAPPED, REGISTERED, LOCAL_INVALIDATIONS, REMOTE_INVALIDATIONS, UNMAPPED,
	REGION_PAGES, REGION_BYTES, LIFETIME_NS, HIGH_WATER, REGION_COUNTS
};

/* by client (the kernel's) or by transport (ours) */
struct region_owner {
	u32 ours;
	u32 number;
};

struct region_key {
	u32 transport;		/* of ours: keys of two devices may be equal */
	u32 number;
};

struct region {
	u64 mapped_at;
	struct region_owner owner;
};

/* Counted by whoever is on the row, so that the high-water mark is one for all CPUs */
struct region_row {
	u64 counts[REGION_COUNTS];
	u32 lifetimes[SLOTS];	/* by microseconds */
};

BPF_TABLE("lru_hash", struct region_key, struct region, regions, FLIGHTS);
BPF_HASH(region_rows, struct region_owner, struct region_row, ROWS);
/* made, destroyed */
BPF_PERCPU_ARRAY(region_lives, u64, 2);

static inline struct region_row *region_row(struct region_owner *owner)
{
	struct region_row fresh = {};

	return region_rows.lookup_or_try_init(owner, &fresh);
}

static inline void region_add(struct region_row *row, enum region_count what, u64 amount)
{
	__sync_fetch_and_add(&row->counts[what], amount);
}

static inline void region_mapped(struct region_key *key, u32 ours, u32 owner, u64 offset,
				 u32 length)
{
	struct region region = { .mapped_at = bpf_ktime_get_ns(),
				 .owner = { .ours = ours, .number = owner } };
	struct region_row *row = region_row(&region.owner);
	u64 out;

	regions.update(key, &region);
	if (!row)
		return;
	region_add(row, MAPPED, 1);
	region_add(row, REGION_PAGES, ((offset & 4095) + length + 4095) >> 12);
	region_add(row, REGION_BYTES, length);
	out = row->counts[MAPPED] - row->counts[UNMAPPED];
	if (out > row->counts[HIGH_WATER])
		row->counts[HIGH_WATER] = out;
}

static inline void region_event(u32 ours, u32 owner, enum region_count what)
{
	struct region_owner key = { .ours = ours, .number = owner };
	struct region_row *row = region_row(&key);

	if (row)
		region_add(row, what, 1);
}

static inline void region_unmapped(struct region_key *key)
{
	struct region *region = regions.lookup(key);
	struct region_row *row;
	u64 lived;

	if (!region)
		return;
	lived = bpf_ktime_get_ns() - region->mapped_at;
	row = region_row(&region->owner);
	if (row) {
		region_add(row, UNMAPPED, 1);
		region_add(row, LIFETIME_NS, lived);
		__sync_fetch_and_add(&row->lifetimes[slot_of(lived / 1000)], 1);
	}
	regions.delete(key);
}

static inline void region_life(int which, u64 count)
{
	u64 *sum = region_lives.lookup(&which);

	if (sum)
		*sum += count;
}

/* --- the kernel's transport --- */

#ifdef HAVE_rpcrdma_xprtrdma_mr_map
PROBE(rpcrdma, xprtrdma_mr_map)
{
	struct region_key key = { .number = args->mr_id };

	region_mapped(&key, 0, args->client_id, args->offset, args->length);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_mr_fastreg
PROBE(rpcrdma, xprtrdma_mr_fastreg)
{
	region_event(0, args->client_id, REGISTERED);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_mr_localinv
PROBE(rpcrdma, xprtrdma_mr_localinv)
{
	region_event(0, args->client_id, LOCAL_INVALIDATIONS);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_mr_reminv
PROBE(rpcrdma, xprtrdma_mr_reminv)
{
	region_event(0, args->client_id, REMOTE_INVALIDATIONS);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_mr_unmap
PROBE(rpcrdma, xprtrdma_mr_unmap)
{
	struct region_key key = { .number = args->mr_id };

	region_unmapped(&key);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_frwr_alloc
PROBE(rpcrdma, xprtrdma_frwr_alloc)
{
	region_life(0, !args->rc);
	return 0;
}
#endif

#ifdef HAVE_rpcrdma_xprtrdma_frwr_dereg
PROBE(rpcrdma, xprtrdma_frwr_dereg)
{
	region_life(1, 1);
	return 0;
}
#endif

/* --- ours --- */

#ifdef HAVE_nfsrdma_nfsrdma_mr_map
PROBE(nfsrdma, nfsrdma_mr_map)
{
	struct region_key key = { .transport = args->xprt, .number = args->handle };

	region_mapped(&key, 1, args->xprt, args->offset, args->length);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_mr_fastreg
PROBE(nfsrdma, nfsrdma_mr_fastreg)
{
	region_event(1, args->xprt, REGISTERED);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_mr_localinv
PROBE(nfsrdma, nfsrdma_mr_localinv)
{
	region_event(1, args->xprt, LOCAL_INVALIDATIONS);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_mr_remoteinv
PROBE(nfsrdma, nfsrdma_mr_remoteinv)
{
	region_event(1, args->xprt, REMOTE_INVALIDATIONS);
	return 0;
}
#endif

#ifdef HAVE_nfsrdma_nfsrdma_mr_unmap
PROBE(nfsrdma, nfsrdma_mr_unmap)
{
	struct region_key key = { .transport = args->xprt, .number = args->handle };

	region_unmapped(&key);
	return 0;
}
#endif
