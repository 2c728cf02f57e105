/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What all accounts share. The dialect is bcc's; no header of the kernel is
 * included, so that a program compiles in seconds and on any kernel: what is
 * known comes from records of trace events.
 *
 * A program is this file, a function for each event that calls what accounts
 * have for it, and the files of the accounts, in one text (probes/program.py).
 * HAVE_<system>_<event> is defined for each event that this kernel has.
 */
/* ROWS comes from who compiles: how many a map has at most */
#define TEXT		24
#define SLOTS		32
/* PAGE_BITS comes from who compiles: pages are of 2^PAGE_BITS bytes */
#define PAGE_REST	((1 << PAGE_BITS) - 1)
/* memory for a row is taken when it is made: rows are kept for each CPU */
#define WHEN_NEEDED	1

/*
 * What is kept of an RPC under way lies in an array, at its task's number: such
 * a look-up is a few instructions, a hash's hundreds. sunrpc counts tasks up, so
 * two meet only if one is older than all the slots; that is counted as a loss.
 */
#define TASK_SLOTS	8192
#define KEY_SLOTS	16384

/* an RPC of a client: sunrpc's numbers, which all events about it have */
struct rpc {
	u32 client;
	u32 task;
	u32 live;
};

/*
 * A slot was another's, a map was full, or the kernel had no memory for a row.
 * probes/losses.py has the same names in the same order
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

/* Whatever is kept of an RPC, @size bytes from @rpc on, is this one's from now on */
static inline void rpc_begins(struct rpc *rpc, u32 size, u32 client, u32 task)
{
	if (rpc->live)
		lose(LOST_RPCS);
	__builtin_memset(rpc, 0, size);
	rpc->client = client;
	rpc->task = task;
	rpc->live = 1;
}

/* what is counted is counted per client and procedure */
struct row {
	char procedure[TEXT];
	u64 client;
};

/*
 * A row is found by a number made of its name: the kernel's hash of a whole name costs
 * hundreds of instructions more. Each CPU's row has the name in it, so that another
 * name of the same number is not counted there; it is lost, and said to be.
 */
static __always_inline u32 number_of(void *name, u32 size)
{
	u64 *words = name, sum = 0;

#pragma unroll
	for (u32 i = 0; i < size / 8; i++)
		sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15ULL;
	return sum >> 32;
}

/* Whether @kept, the name in a row, is @name; a row that is new takes it */
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

/* One of so many slots, a power of two; what is beyond is in the last */
static inline u32 bounded(u32 slot, u32 slots)
{
	slot = slot < slots ? slot : slots - 1;
	/* the verifier has to see the bound where the compiler knows it */
	asm volatile("" : "+r"(slot));
	return slot & (slots - 1);
}

/* The slot of a histogram: 0 for 0, n for 2^(n-1) up to below 2^n */
static inline u32 slot_of(u64 value)
{
	return bounded(value > 1 ? bpf_log2l(value) : value, SLOTS);
}

/* What an account does at an event; ACCOUNT is defined before each file */
#define PROBE(system, event)	PROBE_OF(ACCOUNT, system, event)
#define PROBE_OF(account, system, event)	PROBE_NAMED(account, system, event)
#define PROBE_NAMED(account, system, event)				\
	static __always_inline int account##__##system##__##event(	\
		struct tracepoint__##system##__##event *args)

/* issuer.c has the function, and is part of a program with a PID only */
#ifndef PID
#define issued(client, task)	1
#endif
