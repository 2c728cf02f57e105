// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mistakes made on purpose, one for each value of the parameter "what": the
 * tests have to see them, or they would not see the real ones either.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#define SIZE	100

static char *what = "";
module_param(what, charp, 0444);

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);
static DEFINE_SPINLOCK(spin);
static unsigned int counter;

static int use_after_free(void)
{
	char *memory = kmalloc(SIZE, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	kfree(memory);
	/* the compiler is not to see what is done here */
	OPTIMIZER_HIDE_VAR(memory);
	WRITE_ONCE(memory[SIZE / 2], 1);
	return 0;
}

static int out_of_bounds(void)
{
	char *memory = kmalloc(SIZE, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(memory);
	WRITE_ONCE(memory[SIZE], 1);
	kfree(memory);
	return 0;
}

/* Nothing waits here: that it could is the mistake. */
static int lock_order(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
	return 0;
}

static int sleep_in_atomic(void)
{
	spin_lock(&spin);
	mutex_lock(&first);
	mutex_unlock(&first);
	spin_unlock(&spin);
	return 0;
}

static int leak(void)
{
	int i;

	/* a stale pointer in a register or on a stack may hide one of them */
	for (i = 0; i < 20; i++)
		if (!kmalloc(SIZE, GFP_KERNEL))
			return -ENOMEM;
	return 0;
}

/* Unmapped with another size than it was mapped with */
static int dma_mapping(void)
{
	struct platform_device *device = platform_device_register_simple("wrong", -1, NULL, 0);
	void *memory = kmalloc(SIZE, GFP_KERNEL);
	dma_addr_t at;

	if (IS_ERR(device) || !memory)
		return -ENOMEM;
	dma_coerce_mask_and_coherent(&device->dev, DMA_BIT_MASK(64));
	at = dma_map_single(&device->dev, memory, SIZE, DMA_TO_DEVICE);
	if (!dma_mapping_error(&device->dev, at))
		dma_unmap_single(&device->dev, at, SIZE / 2, DMA_TO_DEVICE);
	kfree(memory);
	platform_device_unregister(device);
	return 0;
}

static int count(void *unused)
{
	while (!kthread_should_stop()) {
		counter++;
		cond_resched();
	}
	return 0;
}

/* Two threads count, and nothing orders what they do */
static int unordered(void)
{
	struct task_struct *one = kthread_run(count, NULL, "wrong");
	struct task_struct *other = kthread_run(count, NULL, "wrong");

	/* races are found by chance: few of all accesses are watched */
	msleep(5000);
	if (!IS_ERR(one))
		kthread_stop(one);
	if (!IS_ERR(other))
		kthread_stop(other);
	return IS_ERR(one) || IS_ERR(other) ? -ENOMEM : 0;
}

static const struct {
	const char *name;
	int (*make)(void);
} mistakes[] = {
	{ "use_after_free", use_after_free },
	{ "out_of_bounds", out_of_bounds },
	{ "lock_order", lock_order },
	{ "sleep_in_atomic", sleep_in_atomic },
	{ "leak", leak },
	{ "dma_mapping", dma_mapping },
	{ "unordered", unordered },
	{ "nothing", NULL },
};

static int __init wrong(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(mistakes); i++)
		if (!strcmp(what, mistakes[i].name))
			return mistakes[i].make ? mistakes[i].make() : 0;
	return -EINVAL;
}

static void __exit right(void)
{
}

module_init(wrong);
module_exit(right);
MODULE_DESCRIPTION("mistakes made on purpose");
MODULE_LICENSE("GPL");
