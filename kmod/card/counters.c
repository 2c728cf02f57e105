// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters of a card: rdma-statistic(8) and
 * /sys/class/infiniband/<card>/ports/1/hw_counters.
 */
#include "card.h"

static const struct rdma_stat_desc card_stats[CARD_COUNTERS] = {
	[CARD_COUNT_SENDS].name = "sends",
	[CARD_COUNT_WRITES].name = "writes",
	[CARD_COUNT_READS].name = "reads",
	[CARD_COUNT_DATAGRAMS].name = "datagrams",
	[CARD_COUNT_BYTES].name = "bytes",
	[CARD_COUNT_REGISTRATIONS].name = "registrations",
	[CARD_COUNT_INVALIDATIONS].name = "invalidations",
	[CARD_COUNT_COMPLETIONS].name = "completions",
	[CARD_COUNT_INTERRUPTS].name = "interrupts",
	[CARD_COUNT_FLUSHED].name = "flushed",
	[CARD_COUNT_REFUSED].name = "refused",
	[CARD_COUNT_RNR].name = "receiver_not_ready",
	[CARD_COUNT_RETRIES].name = "retries",
	[CARD_COUNT_LOST].name = "lost",
	[CARD_COUNT_CACHE_MISSES].name = "cache_misses",
	[CARD_COUNT_QP_MISSES].name = "qp_cache_misses",
	[CARD_COUNT_DMA_FAULTS].name = "dma_faults",
};

/**
 * card_alloc_stats - allocate the counters of a port for the core
 * @ib: device of the card
 * @port: 1
 *
 * Return: counters, or NULL.
 */
struct rdma_hw_stats *card_alloc_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(card_stats, CARD_COUNTERS,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

/**
 * card_get_stats - sum the counters of a port over all CPUs
 * @ib: device of the card
 * @stats: output
 * @port: 1, or 0 for the device, which has no counters
 * @index: ignored: all counters are set
 *
 * Return: number of counters, or -EINVAL.
 */
int card_get_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	const struct card *card = to_card(ib);
	int i, cpu;

	if (!port)
		return -EINVAL;
	for (i = 0; i < CARD_COUNTERS; i++) {
		stats->value[i] = 0;
		for_each_possible_cpu(cpu)
			stats->value[i] += per_cpu_ptr(card->counts, cpu)->value[i];
	}
	return CARD_COUNTERS;
}
