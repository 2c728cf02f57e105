// SPDX-License-Identifier: GPL-2.0-only
/*
 * Delays tasks, by default the threads of nfsd, at the return of functions, for as long as this
 * module is loaded: what another task does then happens between two steps of theirs.
 */
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>

/* an array: one string has 1024 bytes at most */
static char *names[256];
static uint nnames;
module_param_array(names, charp, &nnames, 0444);
MODULE_PARM_DESC(names, "Functions, separated by commas; those that have no probe are left out");

static uint delay_us = 300;
module_param(delay_us, uint, 0444);

static char *task = "nfsd";
module_param(task, charp, 0444);
MODULE_PARM_DESC(task, "Start of the names of the tasks");

static uint functions;
module_param(functions, uint, 0444);
MODULE_PARM_DESC(functions, "Number of functions that are delayed");

static ulong delays;
module_param(delays, ulong, 0444);
MODULE_PARM_DESC(delays, "Number of delays");

static struct kretprobe *probes;

static int returned(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (strncmp(current->comm, task, strlen(task)))
		return 0;
	delays++;
	mdelay(delay_us / 1000);
	udelay(delay_us % 1000);
	return 0;
}

static int __init delays_init(void)
{
	uint i;

	if (!nnames)
		return -EINVAL;
	probes = kcalloc(nnames, sizeof(*probes), GFP_KERNEL);
	if (!probes)
		return -ENOMEM;
	for (i = 0; i < nnames; i++) {
		struct kretprobe *probe = &probes[functions];

		memset(probe, 0, sizeof(*probe));
		probe->kp.symbol_name = names[i];
		probe->handler = returned;
		probe->maxactive = 64;
		if (!register_kretprobe(probe))
			functions++;
	}
	return 0;
}

static void __exit delays_exit(void)
{
	uint i;

	for (i = 0; i < functions; i++)
		unregister_kretprobe(&probes[i]);
	kfree(probes);
}

module_init(delays_init);
module_exit(delays_exit);
MODULE_DESCRIPTION("Delays of tasks");
MODULE_LICENSE("GPL");
