// SPDX-License-Identifier: GPL-2.0-only
/*
 * Parameters and fault injection of a card, one file each, in
 * /sys/kernel/debug/nfsrdma_card/<card>. Times are in nanoseconds. A new value
 * applies to requests that are posted later. A value without a meaning fails with -EINVAL.
 */
#include <linux/debugfs.h>
#include <linux/kstrtox.h>

#include "queues.h"

/* Maximum rate, in bits per second, and maximum of each time, an hour */
#define CARD_MAX_RATE	(10000ULL * 1000 * 1000 * 1000)
#define CARD_MAX_TIME	(3600ULL * NSEC_PER_SEC)

static struct dentry *card_debugfs_root;

static int card_u64_get(void *data, u64 *value)
{
	*value = READ_ONCE(*(const u64 *)data);
	return 0;
}

static int card_rate_set(void *data, u64 value)
{
	if (value > CARD_MAX_RATE)
		return -EINVAL;
	WRITE_ONCE(*(u64 *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_rate_fops, card_u64_get, card_rate_set, "%llu\n");

static int card_time_set(void *data, u64 value)
{
	if (value > CARD_MAX_TIME)
		return -EINVAL;
	WRITE_ONCE(*(u64 *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_time_fops, card_u64_get, card_time_set, "%llu\n");

/* A number of events; debugfs_create_atomic_t() takes negative numbers and cuts large ones */
static int card_number_get(void *data, u64 *value)
{
	*value = atomic_read((const atomic_t *)data);
	return 0;
}

static int card_number_set(void *data, u64 value)
{
	if (value > INT_MAX)
		return -EINVAL;
	atomic_set((atomic_t *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_number_fops, card_number_get, card_number_set, "%llu\n");

/* debugfs_write_file_bool() ignores text that is no boolean, and reports success */
static ssize_t card_bool_write(struct file *file, const char __user *text, size_t count,
			       loff_t *at)
{
	bool value;
	int rc = kstrtobool_from_user(text, count, &value);

	return rc ? rc : debugfs_write_file_bool(file, text, count, at);
}

static const struct file_operations card_bool_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = debugfs_read_file_bool,
	.write = card_bool_write,
	.llseek = default_llseek,
};

static int card_cache_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = READ_ONCE(card->wire.pages.entries);
	return 0;
}

static int card_cache_set(void *data, u64 value)
{
	struct card_wire *wire = &((struct card *)data)->wire;

	return card_wire_set_cache(wire, &wire->pages, min(value, U32_MAX));
}
DEFINE_DEBUGFS_ATTRIBUTE(card_cache_fops, card_cache_get, card_cache_set, "%llu\n");

static int card_qp_cache_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = READ_ONCE(card->wire.qps.entries);
	return 0;
}

static int card_qp_cache_set(void *data, u64 value)
{
	struct card_wire *wire = &((struct card *)data)->wire;

	return card_wire_set_cache(wire, &wire->qps, min(value, U32_MAX));
}
DEFINE_DEBUGFS_ATTRIBUTE(card_qp_cache_fops, card_qp_cache_get, card_qp_cache_set, "%llu\n");

static int card_units_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = READ_ONCE(card->wire.units);
	return 0;
}

static int card_units_set(void *data, u64 value)
{
	struct card *card = data;

	if (!value || value > CARD_MAX_UNITS)
		return -EINVAL;
	WRITE_ONCE(card->wire.units, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_units_fops, card_units_get, card_units_set, "%llu\n");

static int card_link_down_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = READ_ONCE(card->link_down);
	return 0;
}

static int card_link_down_set(void *data, u64 value)
{
	struct card *card = data;

	if (value > 1)
		return -EINVAL;
	WRITE_ONCE(card->link_down, value);
	card_link_changed(card);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_link_down_fops, card_link_down_get, card_link_down_set, "%llu\n");

/* 0 breaks all queue pairs */
static int card_break_set(void *data, u64 value)
{
	if (value > 0xffffff)
		return -EINVAL;
	card_qp_break(data, value, true);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_break_fops, NULL, card_break_set, "%llu\n");

static int card_gone_set(void *data, u64 value)
{
	struct card *card = data;

	if (value != 1)
		return -EINVAL;
	if (!ib_device_try_get(&card->ib))
		return -ENODEV;
	WRITE_ONCE(card->gone, true);
	/* a driver that is removed knows that its firmware does not answer */
	if (READ_ONCE(card->firmware) == CARD_STOPPED)
		card_set_firmware(card, CARD_FAILED);
	card_qp_break(card, 0, true);
	card_report_fatal(card);
	ib_unregister_device_queued(&card->ib);
	ib_device_put(&card->ib);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_gone_fops, NULL, card_gone_set, "%llu\n");

static int card_dead_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = READ_ONCE(card->firmware);
	return 0;
}

/* 1: the firmware stops; 2: its driver notices that; 0: it works again */
static int card_dead_set(void *data, u64 value)
{
	if (value > CARD_FAILED)
		return -EINVAL;
	card_set_firmware(data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_dead_fops, card_dead_get, card_dead_set, "%llu\n");

/* Whether the core adapts the interrupt moderation of new completion queues */
static int card_dim_get(void *data, u64 *value)
{
	const struct card *card = data;

	*value = card->ib.use_cq_dim;
	return 0;
}

static int card_dim_set(void *data, u64 value)
{
	struct card *card = data;

	if (value > 1)
		return -EINVAL;
	card->ib.use_cq_dim = value;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(card_dim_fops, card_dim_get, card_dim_set, "%llu\n");

/* The function through which the card accesses memory */
static int card_dma_show(struct seq_file *seq, void *unused)
{
	const struct card *card = seq->private;

	seq_printf(seq, "%s\n", card->function ? dev_name(card->function->dev) : "virtual");
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(card_dma);

static int card_profile_show(struct seq_file *seq, void *unused)
{
	const struct card *card = seq->private;

	seq_printf(seq, "%s\n", card->profile->name);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(card_profile);

/**
 * card_debugfs_add - create the files of a card
 * @card: card
 *
 * Without debugfs the card keeps its defaults.
 */
void card_debugfs_add(struct card *card)
{
	struct card_wire *wire = &card->wire;
	struct dentry *dir = debugfs_create_dir(dev_name(&card->ib.dev), card_debugfs_root);

	card->debugfs = dir;
	debugfs_create_file_unsafe("rate", 0600, dir, &wire->rate, &card_rate_fops);
	debugfs_create_file_unsafe("latency", 0600, dir, &wire->latency, &card_time_fops);
	debugfs_create_file_unsafe("message", 0600, dir, &wire->message, &card_time_fops);
	debugfs_create_file_unsafe("units", 0600, dir, card, &card_units_fops);
	debugfs_create_file_unsafe("cache_entries", 0600, dir, card, &card_cache_fops);
	debugfs_create_file_unsafe("cache_miss", 0600, dir, &wire->pages.miss, &card_time_fops);
	debugfs_create_file_unsafe("qp_cache_entries", 0600, dir, card, &card_qp_cache_fops);
	debugfs_create_file_unsafe("qp_cache_miss", 0600, dir, &wire->qps.miss, &card_time_fops);
	debugfs_create_file("dma", 0400, dir, card, &card_dma_fops);
	debugfs_create_file("profile", 0400, dir, card, &card_profile_fops);
	debugfs_create_file_unsafe("recoverable", 0600, dir, &card->recoverable, &card_bool_fops);
	debugfs_create_file_unsafe("moderation", 0600, dir, card, &card_dim_fops);

	debugfs_create_file_unsafe("completion_delay", 0600, dir, &wire->completion_delay,
				   &card_time_fops);
	debugfs_create_file_unsafe("lose", 0600, dir, &card->lose, &card_number_fops);
	debugfs_create_file_unsafe("refuse", 0600, dir, &card->refuse, &card_number_fops);
	debugfs_create_file_unsafe("stuck", 0600, dir, &card->stuck, &card_number_fops);
	debugfs_create_file_unsafe("keep_qps", 0600, dir, &card->keep_qps, &card_number_fops);
	debugfs_create_file_unsafe("keep_regions", 0600, dir, &card->keep_regions,
				   &card_number_fops);
	debugfs_create_file_unsafe("keep_keys", 0600, dir, &card->keep_keys, &card_number_fops);
	debugfs_create_file_unsafe("corrupt", 0600, dir, &card->corrupt, &card_number_fops);
	debugfs_create_file_unsafe("cut_chains", 0600, dir, &card->cut_chains, &card_number_fops);
	debugfs_create_file_unsafe("strict_keys", 0600, dir, &card->strict_keys, &card_bool_fops);
	debugfs_create_file_unsafe("cached_state", 0600, dir, &card->cached_state, &card_bool_fops);
	debugfs_create_file_unsafe("link_down", 0600, dir, card, &card_link_down_fops);
	debugfs_create_file_unsafe("dead", 0600, dir, card, &card_dead_fops);
	debugfs_create_file_unsafe("break", 0200, dir, card, &card_break_fops);
	debugfs_create_file_unsafe("gone", 0200, dir, card, &card_gone_fops);
}

/**
 * card_debugfs_remove - remove the files of a card; waits for readers and writers
 * @card: card
 */
void card_debugfs_remove(struct card *card)
{
	debugfs_remove_recursive(card->debugfs);
}

/**
 * card_debugfs_start - create the directory of the module
 */
void card_debugfs_start(void)
{
	card_debugfs_root = debugfs_create_dir("nfsrdma_card", NULL);
}

/**
 * card_debugfs_stop - remove the directory of the module
 */
void card_debugfs_stop(void)
{
	debugfs_remove_recursive(card_debugfs_root);
}
