/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Definitions that all probe sets share, in bcc's dialect of C. No kernel
 * header is included, so that a program compiles in seconds and on any kernel:
 * all data comes from trace event records.
 *
 * probes/program.py assembles a program from this file, one function per event,
 * which calls the probe sets that use the event, and the files of the probe
 * sets. It leaves out each PROBE() whose event the running kernel lacks.
 */
/* probes/program.py defines ROWS: the maximum number of rows of a map */
#define TEXT		24
#define SLOTS		32
/* probes/program.py defines PAGE_BITS: the page size is 2^PAGE_BITS bytes */
#define PAGE_REST	((1 << PAGE_BITS) - 1)
/*
 * probes/program.py defines WHEN_NEEDED: BPF_F_NO_PREALLOC, because rows exist
 * per CPU and most are never used, or 0 where that is unsafe in a probe.
 */

/*
 * State of an RPC in progress is in an array, indexed by the task number: a
 * lookup takes a few instructions, that of a hash takes hundreds. sunrpc counts
 * tasks up, so that two tasks collide only if one is older than TASK_SLOTS
 * others; a collision counts as a loss.
 */
#define TASK_SLOTS	8192
#define KEY_SLOTS	16384

/* An RPC of a client, identified by sunrpc's numbers, which all its events have */
struct rpc {
	u32 client;
	u32 task;
	u32 live;
};

/*
 * Data that could not be counted, because a slot was in use, a map was full, or
 * the kernel could not allocate a row. probes/maps.py has the same names in
 * the same order.
 */
enum loss { LOST_RPCS, LOST_REGIONS, LOST_CREDITS, LOST_WINDOWS, LOSSES };
BPF_PERCPU_ARRAY(losses, u64, LOSSES);

static inline void lose(int what)
{
	u64 *count = losses.lookup(&what);

	if (count)
		(*count)++;
}

static inline int rpc_is(struct rpc *rpc, u32 client, u32 task)
{
	return rpc->live && rpc->task == task && rpc->client == client;
}

/* Claim the slot of an RPC, @size bytes from @rpc on, and clear it */
static inline void rpc_begins(struct rpc *rpc, u32 size, u32 client, u32 task)
{
	if (rpc->live)
		lose(LOST_RPCS);
	__builtin_memset(rpc, 0, size);
	rpc->client = client;
	rpc->task = task;
	rpc->live = 1;
}

/* Counters are kept per client and procedure */
struct row {
	char procedure[TEXT];
	u64 client;
};

/*
 * A row is found by a hash of its name, because the kernel's hash of the whole
 * name takes hundreds of instructions more. The row of each CPU holds the name.
 * If another name has the same hash, it is not counted there, but counted as a
 * loss.
 */
static __always_inline u32 number_of(void *name, u32 size)
{
	u64 *words = name, sum = 0;

#pragma unroll
	for (u32 i = 0; i < size / 8; i++)
		sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15ULL;
	return sum >> 32;
}

/* Check whether a row belongs to @name; a new row takes the name */
static __always_inline int row_is(void *kept, void *name, u32 size)
{
	u64 *ours = kept, *words = name, differ = 0;

	if (!ours[0])
		__builtin_memcpy(kept, name, size);
#pragma unroll
	for (u32 i = 0; i < size / 8; i++)
		differ |= ours[i] ^ words[i];
	if (differ)
		lose(LOST_RPCS);
	return !differ;
}

/* Limit a slot number to the last slot; @slots is a power of two */
static inline u32 bounded(u32 slot, u32 slots)
{
	slot = slot < slots ? slot : slots - 1;
	/* the compiler knows the bound, but the verifier has to see it in the code */
	asm volatile("" : "+r"(slot));
	return slot & (slots - 1);
}

/* Histogram slot: 0 for 0, n for values from 2^(n-1) to below 2^n */
static inline u32 slot_of(u64 value)
{
	return bounded(value > 1 ? bpf_log2l(value) : value, SLOTS);
}

/* Function of a probe set for an event. ACCOUNT is the name of the set. */
#define PROBE(system, event)	PROBE_OF(ACCOUNT, system, event)
#define PROBE_OF(account, system, event)	PROBE_NAMED(account, system, event)
#define PROBE_NAMED(account, system, event)				\
	static __always_inline int account##__##system##__##event(	\
		struct tracepoint__##system##__##event *args)

/* issuer.c has the function, and is part of a program with a PID only */
#ifndef PID
#define issued(client, task)	1
#endif
