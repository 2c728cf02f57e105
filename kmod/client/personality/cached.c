// SPDX-License-Identifier: GPL-2.0-only
/* Personality cached: version 1; registrations survive their Call, see regions.c. */
#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "params.h"

static void nfr_client_cached_show(const struct nfr_link *link, struct seq_file *seq)
{
	const struct nfr_cache *cache = link->pool.cache;

	seq_printf(seq, "cache_hits %llu\n", READ_ONCE(cache->hits));
	seq_printf(seq, "cache_misses %llu\n", READ_ONCE(cache->misses));
	seq_printf(seq, "cache_mrs %u\n", READ_ONCE(cache->held));
	seq_printf(seq, "cache_slots %u\n", READ_ONCE(cache->nslots));
	seq_printf(seq, "cache_copies %llu\n", READ_ONCE(cache->copies));
	seq_printf(seq, "cache_idle_pages %u\n", READ_ONCE(cache->idle));
	seq_printf(seq, "cache_pages %u of %u\n", nfr_mem_cache_pages_held(),
		   nfr_params_cache_pages());
}

const struct nfr_client_personality nfr_client_cached = {
	.number		= NFR_CACHED,
	.ops		= &nfr_client_conn_ops,
	.agree		= nfr_client_regions_cache,
	.show		= nfr_client_cached_show,
	.marshal	= nfr_client_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
