// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory regions of a connection: more of them when Calls need them, and the end of those that
 * the cache of the personality cached gives up.
 */
#include <linux/sched/mm.h>

#include "client/client.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "work.h"

/* Delay before the next attempt to fill the pool after an allocation failure */
#define NFR_REFILL_AGAIN	(HZ / 10)

/* Delay before the next attempt to invalidate, while the send queue is full */
#define NFR_EVICT_AGAIN		(HZ / 10)

/* Interval at which the cache looks for MRs that were not used for long */
#define NFR_EVICT_AGE		(10 * HZ)

/* The work requests of MRs are mostly unsignaled; those complete only when they fail. */
static void nfr_client_mr_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_mr *mr = container_of(wc->wr_cqe, struct nfr_mr, cqe);

	if (wc->status != IB_WC_WR_FLUSH_ERR)
		mr->pool->recycled++;
	nfr_conn_check(cq->cq_context, wc);
}

static void nfr_client_refill_work(struct work_struct *work)
{
	struct nfr_link *link = container_of(work, struct nfr_link, refill.work);
	struct nfr_conn *conn = &link->conn;
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();

	if (!nfr_conn_is_up(conn))
		goto out;
	if (nfr_mem_pool_fill(&link->pool, conn->pd, NFR_BATCH) && nfr_conn_is_up(conn)) {
		/* the cache may have MRs that no Call uses */
		if (link->pool.cache)
			nfr_mem_cache_evict(&link->pool, NFR_BATCH * NFR_MIN_DEPTH);
		nfr_work_queue(&link->refill, NFR_REFILL_AGAIN);
	}
	conn->ops->writable(conn);
out:
	memalloc_noio_restore(noio);
}

/* --- registrations that survive their Call (personality cached) --- */

static void nfr_client_evict_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_link *link = container_of(wc->wr_cqe, struct nfr_link, eviction.cqe);
	struct nfr_conn *conn = cq->cq_context;

	if (!nfr_conn_check(conn, wc))
		return;
	nfr_mem_release(&link->eviction.mrs);
	/* pairs with nfr_client_evict_work() */
	smp_store_release(&link->eviction.posted, false);
	nfr_work_hurry(&link->pool.cache->work);
	conn->ops->writable(conn);
}

/* Returns 0, -EAGAIN if the send queue is full, or -ENOTCONN. */
static int nfr_client_evict(struct nfr_link *link)
{
	struct ib_send_wr *first = NULL, *last = NULL;
	struct nfr_conn *conn = &link->conn;
	u32 count;
	int rc;

	count = nfr_mem_revoke(&link->eviction.mrs, &first, &last);
	link->eviction.cqe.done = nfr_client_evict_done;
	last->wr_cqe = &link->eviction.cqe;
	WRITE_ONCE(link->eviction.posted, true);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_post(conn, first, last, count, true);
	spin_unlock_bh(&conn->lock);
	if (rc)
		WRITE_ONCE(link->eviction.posted, false);
	return rc;
}

/* Invalidate what the cache gives up, one batch at a time. */
static void nfr_client_evict_work(struct work_struct *work)
{
	struct nfr_cache *cache = container_of(work, struct nfr_cache, work.work);
	struct nfr_link *link = container_of(cache->pool, struct nfr_link, pool);
	bool more;
	int rc;

	/* pairs with nfr_client_evict_done(), which has emptied link->eviction.mrs */
	if (!nfr_conn_is_up(&link->conn) || smp_load_acquire(&link->eviction.posted))
		return;
	more = nfr_mem_cache_victims(&link->pool, &link->eviction.mrs, NFR_BATCH);
	if (!link->eviction.mrs.count) {
		if (more)
			nfr_work_queue(&cache->work, NFR_EVICT_AGE);
		return;
	}
	rc = nfr_client_evict(link);
	if (rc == -EAGAIN)
		nfr_work_queue(&cache->work, NFR_EVICT_AGAIN);
	else if (rc)
		nfr_conn_break(&link->conn, "posting an invalidation failed");
}

/* --- life --- */

/**
 * nfr_client_regions_init - initialize the MRs of a connection, which has none yet
 * @link: new connection
 */
void nfr_client_regions_init(struct nfr_link *link)
{
	link->pool.number = link->conn.id_number;
	link->pool.done = nfr_client_mr_done;
	link->pool.device_ends = &link->conn.device_ends;
	nfr_mem_pool_init(&link->pool);
	nfr_mem_exposure_init(&link->eviction.mrs);
	INIT_DELAYED_WORK(&link->refill, nfr_client_refill_work);
}

/**
 * nfr_client_regions_cache - keep MRs valid between Calls; see nfr_client_personality.agree
 * @link: connection
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_client_regions_cache(struct nfr_link *link)
{
	return nfr_mem_cache_create(&link->pool, nfr_client_evict_work);
}

/**
 * nfr_client_regions_end - end the work of nfr_client_regions_init() and nfr_client_regions_cache()
 * @link: drained connection, for which no Call waits
 */
void nfr_client_regions_end(struct nfr_link *link)
{
	/* a refill that fails has the cache evict: it ends before the work of the cache does */
	cancel_delayed_work_sync(&link->refill);
	nfr_mem_cache_close(&link->pool);
}
