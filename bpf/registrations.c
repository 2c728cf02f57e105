/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory regions (MRs): mapped, registered, invalidated by the peer or locally,
 * unmapped, used again without a registration; their size, their lifetime, how
 * many are mapped at once, and how many bytes.
 *
 * rpcrdma's events name the client, nfsrdma's name the transport.
 */

/* probes/sets/registrations.py has the same names in the same order */
enum region_count {
	MAPPED, REGISTERED, LOCAL_INVALIDATIONS, REMOTE_INVALIDATIONS, UNMAPPED, REUSED,
	REGION_PAGES, REGION_BYTES, LIFETIME_NS, MAPPING_NS, INVALIDATING_NS, HIGH_WATER,
	MAPPED_BYTES, REGION_COUNTS
};

/* a power of two; one row per client, other maps have one per client and procedure */
#define OWNERS		(ROWS / 8)
#define MAPPABLE	1024	/* BPF_F_MMAPABLE */

/* client (rpcrdma) or transport (nfsrdma) */
struct region_owner {
	u32 ours;
	u32 number;
};

struct region_key {
	u32 transport;		/* nfsrdma only: keys of two devices may be equal */
	u32 number;
};

struct region {
	u64 mapped_at;		/* 0: not mapped */
	struct region_key key;
	struct region_owner owner;
	u32 length;
};

/* All CPUs share a row, so that there is one high-water mark */
struct region_row {
	struct region_owner owner;
	u64 used;		/* the row belongs to @owner */
	u64 counts[REGION_COUNTS];
	u32 lifetimes[SLOTS];	/* in microseconds */
};

/* Work of a thread on MRs: its start, and the owner of the MRs */
struct region_work {
	u64 thread;
	u64 since;
	struct region_owner owner;
	u32 owned;
};

BPF_ARRAY(region_works, struct region_work, TASK_SLOTS);
/* indexed by MR number (rpcrdma), or by key without its low byte, which changes (nfsrdma) */
BPF_ARRAY(regions, struct region, KEY_SLOTS);
/* user space maps this array: a system call per row would cost more than all other probe sets */
BPF_F_TABLE("array", int, struct region_row, region_rows, OWNERS, MAPPABLE);
/* allocated, destroyed */
BPF_PERCPU_ARRAY(region_lives, u64, 2);

/* sunrpc reuses both kinds of numbers, lowest first, so that rows rarely collide */
static inline struct region_row *region_row(struct region_owner *owner)
{
	int slot = (owner->number * 2 + owner->ours) & (OWNERS - 1);
	struct region_row *row = region_rows.lookup(&slot);

	if (!row)
		return NULL;
	if (!row->used) {
		row->owner = *owner;
		row->used = 1;
	}
	if (row->owner.number == owner->number)
		return row;
	lose(LOST_REGIONS);
	return NULL;
}

static inline void region_add(struct region_row *row, enum region_count what, u64 amount)
{
	__sync_fetch_and_add(&row->counts[what], amount);
}

static inline struct region_work *region_work_slot(void)
{
	int slot = bpf_get_current_pid_tgid() & (TASK_SLOTS - 1);

	return region_works.lookup(&slot);
}

/* Get the work of this thread, or NULL if registrations_begin() did not run */
static inline struct region_work *region_work(void)
{
	struct region_work *work = region_work_slot();

	return work && work->since && work->thread == bpf_get_current_pid_tgid() ? work : NULL;
}

/*
 * Attached to functions of the transports by probes/sets/registrations.py. They do
 * not sleep, so that elapsed time is CPU time.
 */
int registrations_begin(void *context)
{
	struct region_work *work = region_work_slot();

	if (!work)
		return 0;
	work->thread = bpf_get_current_pid_tgid();
	work->since = bpf_ktime_get_ns();
	work->owned = 0;
	return 0;
}

int registrations_end(void *context)
{
	struct region_work *work = region_work();
	struct region_row *row;

	if (!work)
		return 0;
	row = work->owned ? region_row(&work->owner) : NULL;
	if (row)
		region_add(row, INVALIDATING_NS, bpf_ktime_get_ns() - work->since);
	work->since = 0;
	return 0;
}

/* An MR is mapped; the rest of the function works on another MR */
static inline void region_work_mapped(struct region_row *row, u64 now)
{
	struct region_work *work = region_work();

	if (!work)
		return;
	region_add(row, MAPPING_NS, now - work->since);
	work->since = now;
}

static inline void region_work_is(struct region_owner *owner)
{
	struct region_work *work = region_work();

	if (!work)
		return;
	work->owner = *owner;
	work->owned = 1;
}

static inline struct region *region_at(struct region_key *key)
{
	int slot = (key->transport ? key->number >> 8 : key->number) & (KEY_SLOTS - 1);

	return regions.lookup(&slot);
}

static inline void region_mapped(struct region_key *key, u32 ours, u32 owner, u64 offset,
				 u32 length)
{
	struct region_owner whose = { .ours = ours, .number = owner };
	struct region *region = region_at(key);
	struct region_row *row = region_row(&whose);
	u64 out, now = bpf_ktime_get_ns();

	if (!region || !row)
		return;
	if (region->mapped_at)
		lose(LOST_REGIONS);
	region->mapped_at = now;
	region->key = *key;
	region->owner = whose;
	region->length = length;
	region_add(row, MAPPED, 1);
	region_add(row, MAPPED_BYTES, length);
	region_add(row, REGION_PAGES, ((offset & PAGE_REST) + length + PAGE_REST) >> PAGE_BITS);
	region_add(row, REGION_BYTES, length);
	region_work_mapped(row, now);
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
	region_work_is(&key);
}

static inline void region_unmapped(struct region_key *key)
{
	struct region *region = region_at(key);
	struct region_row *row;
	u64 lived;

	if (!region || !region->mapped_at || region->key.number != key->number ||
	    region->key.transport != key->transport)
		return;
	lived = bpf_ktime_get_ns() - region->mapped_at;
	region->mapped_at = 0;
	region_work_is(&region->owner);
	row = region_row(&region->owner);
	if (!row)
		return;
	region_add(row, UNMAPPED, 1);
	region_add(row, MAPPED_BYTES, -(u64)region->length);
	region_add(row, LIFETIME_NS, lived);
	__sync_fetch_and_add(&row->lifetimes[slot_of(lived / 1000)], 1);
}

static inline void region_life(int which, u64 count)
{
	u64 *sum = region_lives.lookup(&which);

	if (sum)
		*sum += count;
}

/* --- rpcrdma --- */

PROBE(rpcrdma, xprtrdma_mr_map)
{
	struct region_key key = { .number = args->mr_id };

	region_mapped(&key, 0, args->client_id, args->offset, args->length);
	return 0;
}

PROBE(rpcrdma, xprtrdma_mr_fastreg)
{
	region_event(0, args->client_id, REGISTERED);
	return 0;
}

PROBE(rpcrdma, xprtrdma_mr_localinv)
{
	region_event(0, args->client_id, LOCAL_INVALIDATIONS);
	return 0;
}

PROBE(rpcrdma, xprtrdma_mr_reminv)
{
	region_event(0, args->client_id, REMOTE_INVALIDATIONS);
	return 0;
}

PROBE(rpcrdma, xprtrdma_mr_unmap)
{
	struct region_key key = { .number = args->mr_id };

	region_unmapped(&key);
	return 0;
}

PROBE(rpcrdma, xprtrdma_frwr_alloc)
{
	region_life(0, !args->rc);
	return 0;
}

PROBE(rpcrdma, xprtrdma_frwr_dereg)
{
	region_life(1, 1);
	return 0;
}
