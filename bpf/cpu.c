/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU samples: the running thread and its kernel stack. The kernel itself
 * measures the run time of each thread, exactly and at no cost; probing each
 * context switch and each interrupt took 23 % of a 4 KiB read.
 */
#define CPU_SAMPLES	16384
/* the stack is part of the map key, so that two never collide; 512 bytes is the limit of a key */
#define CPU_DEPTH	56

struct cpu_sample {
	char name[16];
	u64 thread;
	u64 stack[CPU_DEPTH];
};

BPF_PERCPU_ARRAY(cpu_scratch, struct cpu_sample, 1);
BPF_TABLE("hash", struct cpu_sample, u64, cpu_samples, CPU_SAMPLES);
/* samples for which the map had no room */
BPF_PERCPU_ARRAY(cpu_lost, u64, 1);

/* Runs at a fixed rate on each CPU. A thread in user space has no kernel stack */
int cpu_sampled(void *ctx)
{
	u64 one = 1, *count, *lost;
	struct cpu_sample *sample;
	int first = 0;

	sample = cpu_scratch.lookup(&first);
	if (!sample)
		return 0;
	bpf_get_current_comm(sample->name, sizeof(sample->name));
	sample->thread = (u32)bpf_get_current_pid_tgid();
	if (bpf_get_stack(ctx, sample->stack, sizeof(sample->stack), 0) < 0)
		__builtin_memset(sample->stack, 0, sizeof(sample->stack));
	count = cpu_samples.lookup(sample);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (cpu_samples.update(sample, &one) < 0 && (lost = cpu_lost.lookup(&first)))
		++*lost;
	return 0;
}
