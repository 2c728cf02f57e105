// SPDX-License-Identifier: GPL-2.0-only
/* Pool of memory regions of a connection. It grows on demand and never shrinks. */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "connection/connection.h"
#include "memory/memory.h"

/* Swiotlb and IOMMUs can map at least this many contiguous bytes */
#define NFR_MAX_ENTRY		(128 * 1024)

/* Delay before the next attempt to fill the pool after an allocation failure */
#define NFR_REFILL_AGAIN	(HZ / 10)

/* Covers the largest client payload, 1 MiB, at any offset in a page */
#define NFR_USEFUL_DEPTH	((1024 * 1024 >> PAGE_SHIFT) + 1)

/* --- one MR --- */

/* MR work requests are mostly unsignaled; those complete only when they fail. */
static void nfr_mr_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_mr *mr = container_of(wc->wr_cqe, struct nfr_mr, cqe);

	if (wc->status != IB_WC_WR_FLUSH_ERR)
		mr->conn->pool.recycled++;
	nfr_queue_check(mr->conn, wc);
}

static struct nfr_mr *nfr_mr_alloc(struct nfr_conn *conn)
{
	u32 depth = conn->pool.depth;
	struct nfr_mr *mr;

	mr = kzalloc(sizeof(*mr), NFR_GFP_RETRIED);
	if (!mr)
		return NULL;
	mr->sgl = kcalloc(depth, sizeof(*mr->sgl), NFR_GFP_RETRIED);
	if (!mr->sgl)
		goto out_free;
	sg_init_table(mr->sgl, depth);
	mr->mr = ib_alloc_mr(conn->pd, IB_MR_TYPE_MEM_REG, depth);
	if (IS_ERR(mr->mr))
		goto out_free;
	mr->conn = conn;
	mr->cqe.done = nfr_mr_done;
	mr->reg.wr.opcode = IB_WR_REG_MR;
	mr->reg.wr.wr_cqe = &mr->cqe;
	mr->reg.mr = mr->mr;
	return mr;
out_free:
	kfree(mr->sgl);
	kfree(mr);
	return NULL;
}

static void nfr_mr_free(struct nfr_mr *mr)
{
	ib_dereg_mr(mr->mr);
	kfree(mr->sgl);
	kfree(mr);
}

/* --- the pool --- */

static void nfr_pool_refill(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, pool.refill.work);
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();

	if (!nfr_conn_is_up(conn))
		goto out;
	if (nfr_pool_fill(conn, NFR_BATCH))
		nfr_conn_refill(conn, NFR_REFILL_AGAIN);
	conn->ops->writable(conn);
out:
	memalloc_noio_restore(noio);
}

/**
 * nfr_pool_init - initialize the pool and choose the depth of its MRs
 * @conn: connection whose device is known
 *
 * Deeper MRs mean fewer registrations per request, but pages beyond the largest
 * payload would waste memory.
 */
void nfr_pool_init(struct nfr_conn *conn)
{
	u32 device = conn->device->attrs.max_fast_reg_page_list_len;
	struct nfr_pool *pool = &conn->pool;
	u32 wanted = conn->wanted.mr_depth ?: NFR_USEFUL_DEPTH;

	spin_lock_init(&pool->lock);
	INIT_LIST_HEAD(&pool->free);
	INIT_DELAYED_WORK(&pool->refill, nfr_pool_refill);
	pool->depth = min(wanted, device);
	pool->max_entry = min_t(u32, ib_dma_max_seg_size(conn->device), NFR_MAX_ENTRY);
}

/**
 * nfr_pool_chain - compute the longest chain of work requests of one Call
 * @conn: connection after nfr_pool_init()
 *
 * A Call has at most a Read chunk, and a Write or Reply chunk. Each MR takes a
 * registration and an invalidation. The head and the tail of a span take an MR
 * each.
 *
 * Return: number of work requests.
 */
u32 nfr_pool_chain(const struct nfr_conn *conn)
{
	u32 regions = DIV_ROUND_UP(NFR_USEFUL_DEPTH, conn->pool.depth) + 2;

	return 2 * 2 * regions + 1;
}

/**
 * nfr_pool_fill - allocate MRs
 * @conn: connection with a protection domain
 * @count: number of MRs to allocate
 *
 * Context: May sleep.
 *
 * Return: 0, or -ENOMEM if no MR could be allocated.
 */
int nfr_pool_fill(struct nfr_conn *conn, u32 count)
{
	struct nfr_pool *pool = &conn->pool;
	struct nfr_mr *mr;
	u32 made;

	for (made = 0; made < count; made++) {
		mr = nfr_mr_alloc(conn);
		if (!mr)
			break;
		spin_lock(&pool->lock);
		list_add(&mr->list, &pool->free);
		pool->total++;
		spin_unlock(&pool->lock);
	}
	return made ? 0 : -ENOMEM;
}

/**
 * nfr_pool_take - take an MR from the pool
 * @conn: connection
 *
 * Return: MR, or NULL if the pool is empty.
 */
struct nfr_mr *nfr_pool_take(struct nfr_conn *conn)
{
	struct nfr_pool *pool = &conn->pool;
	struct nfr_mr *mr;

	spin_lock(&pool->lock);
	mr = list_first_entry_or_null(&pool->free, struct nfr_mr, list);
	if (mr)
		list_del(&mr->list);
	spin_unlock(&pool->lock);
	return mr;
}

/**
 * nfr_pool_give - return an MR to the pool
 * @conn: connection
 * @mr: unmapped MR; removed from its list
 */
void nfr_pool_give(struct nfr_conn *conn, struct nfr_mr *mr)
{
	struct nfr_pool *pool = &conn->pool;

	spin_lock(&pool->lock);
	list_move(&mr->list, &pool->free);
	spin_unlock(&pool->lock);
}

/**
 * nfr_pool_destroy - destroy the MRs in the pool
 * @conn: drained connection, whose requests have returned their MRs
 */
void nfr_pool_destroy(struct nfr_conn *conn)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &conn->pool.free, list)
		nfr_mr_free(mr);
	INIT_LIST_HEAD(&conn->pool.free);
}
