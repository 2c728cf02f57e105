// SPDX-License-Identifier: GPL-2.0-only
/*
 * Allocates a memory region of each soft-iWARP device, with the first allocation of memory failing,
 * with the second, ..., until none fails. It needs CONFIG_FAILSLAB, and N in
 * /sys/kernel/debug/failslab/ignore-gfp-wait. kmemleak reports what was lost.
 */
#include <linux/module.h>
#include <linux/sched.h>
#include <rdma/ib_verbs.h>

static int alloc_mr_add_one(struct ib_device *device)
{
	struct ib_pd *pd;
	struct ib_mr *mr;
	int nth = 0;

	if (device->ops.driver_id != RDMA_DRIVER_SIW)
		return 0;
	pd = ib_alloc_pd(device, 0);
	if (IS_ERR(pd))
		return PTR_ERR(pd);

	do {
		current->fail_nth = ++nth;
		mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, 16);
		current->fail_nth = 0;
	} while (IS_ERR(mr) && nth < 100);

	pr_info("alloc_mr: %s: %d allocations failed\n", device->name, nth - 1);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
	ib_dealloc_pd(pd);
	return 0;
}

static struct ib_client alloc_mr_client = {
	.name = "alloc_mr",
	.add = alloc_mr_add_one,
};

static int __init alloc_mr_init(void)
{
	return ib_register_client(&alloc_mr_client);
}

static void __exit alloc_mr_exit(void)
{
	ib_unregister_client(&alloc_mr_client);
}

module_init(alloc_mr_init);
module_exit(alloc_mr_exit);
MODULE_DESCRIPTION("Memory regions of soft-iWARP whose allocation fails");
MODULE_LICENSE("GPL");
