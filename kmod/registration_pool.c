// SPDX-License-Identifier: GPL-2.0-only
/* The memory regions of a connection: made when they are needed, kept until it ends. */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "connection.h"
#include "registration.h"

/* Bounce buffers and IOMMUs map this much at once, whatever else they cannot */
#define NFR_MAX_ENTRY		(128 * 1024)

/* Memory was short when the pool was to be filled */
#define NFR_REFILL_AGAIN	(HZ / 10)

/* The largest payload of a client, 1 MiB, starting anywhere in a page */
#define NFR_USEFUL_DEPTH	((1024 * 1024 >> PAGE_SHIFT) + 1)

/* --- one region --- */

/* Requests of a region that are not signaled complete only when they fail. */
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
	/* writing dirty pages out may be waiting for these */
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
 * nfr_pool_init - decide how deep regions are
 * @conn: resolved: its device is known
 *
 * Deeper regions mean fewer registrations for a request. More than the largest
 * payload would be memory for nothing.
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
 * nfr_pool_chain - work requests that the largest Call takes of the send queue
 * @conn: with nfr_pool_init() done
 *
 * It has a Read chunk, and a Write chunk or Reply chunk; each region is
 * registered and invalidated. A chunk's buffers before and behind the pages
 * have a region of their own.
 */
u32 nfr_pool_chain(const struct nfr_conn *conn)
{
	u32 regions = DIV_ROUND_UP(NFR_USEFUL_DEPTH, conn->pool.depth) + 2;

	return 2 * 2 * regions + 1;
}

/**
 * nfr_pool_fill - make memory regions; waits
 * @conn: with a protection domain
 * @count: how many
 *
 * Returns 0, or -ENOMEM when not even one could be made.
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
 * nfr_pool_take - take a region out of the pool
 * @conn: the connection
 *
 * Returns NULL when there is none.
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
 * nfr_pool_give - put a region into the pool
 * @conn: the connection
 * @mr: not mapped; taken off the list it is on
 */
void nfr_pool_give(struct nfr_conn *conn, struct nfr_mr *mr)
{
	struct nfr_pool *pool = &conn->pool;

	spin_lock(&pool->lock);
	list_move(&mr->list, &pool->free);
	spin_unlock(&pool->lock);
}

/**
 * nfr_pool_destroy - destroy the regions that nobody uses
 * @conn: drained; requests have given theirs back
 */
void nfr_pool_destroy(struct nfr_conn *conn)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &conn->pool.free, list)
		nfr_mr_free(mr);
	INIT_LIST_HEAD(&conn->pool.free);
}
