/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * With PID, only RPCs of that process are counted. A task begins in the context of its caller, even
 * if rpciod runs it later, so the current process at that event is the process that issues the RPC.
 * Writeback by kernel threads belongs to no process.
 */
struct issued_task {
	u32 client;
	u32 task;
};

BPF_TABLE("lru_hash", struct issued_task, u8, issued_tasks, TASK_SLOTS);

static inline int issued(u32 client, u32 task)
{
	struct issued_task key = { .client = client, .task = task };

	return issued_tasks.lookup(&key) != NULL;
}

PROBE(sunrpc, rpc_task_begin)
{
	struct issued_task key = { .client = args->client_id, .task = args->task_id };
	u8 yes = 1;

	if (bpf_get_current_pid_tgid() >> 32 == PID)
		issued_tasks.update(&key, &yes);
	return 0;
}
