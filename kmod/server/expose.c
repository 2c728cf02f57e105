// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replies that stay in memory of the server until the client has read them
 * (personality read-read).
 *
 * The registrations of a Reply's memory precede its Send in one chain. From then on
 * the client may read, until it says that it is done or the time for that is over.
 * Then the server invalidates the registrations, and the pages return to their owners
 * when that is complete: a Read that comes later fails, and breaks the connection. A
 * client that delays the invalidation for too long loses its connection.
 * The pages are charged to the budget of budget.c meanwhile.
 *
 * nfsd threads take MRs from the pool, completion handlers return them: its lock
 * requires that softirqs are disabled.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "connection/queues.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "memory/region.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/budget.h"
#include "server/expose.h"
#include "server/server.h"
#include "work.h"

/* Maximum duration of an invalidation, which waits for the messages before it */
#define NFR_SVC_REVOKING_MAX	(10 * HZ)

/* Attempts to find MRs for a Reply, between which other Replies may take them */
#define NFR_SVC_EXPOSE_TRIES	8

static struct lock_class_key nfr_svc_pool_key;
static atomic_t nfr_svc_exposed_total;
static atomic_t nfr_svc_dones_total;

/* Work requests of MRs are mostly unsignaled; those complete only when they fail. */
static void nfr_svc_mr_done(struct ib_cq *cq, struct ib_wc *wc)
{
	nfr_conn_check(cq->cq_context, wc);
}

/**
 * nfr_svc_pool_init - initialize the MRs of a connection
 * @svc: new connection with its device and the parameters set
 * @pool: zeroed pool
 *
 * Return: 0, or -EOPNOTSUPP if the device cannot register memory as this requires.
 */
int nfr_svc_pool_init(struct nfr_svc *svc, struct nfr_pool *pool)
{
	struct ib_device *device = svc->conn->device;

	nfr_mem_pool_init(pool);
	lockdep_set_class(&pool->lock, &nfr_svc_pool_key);
	pool->done = nfr_svc_mr_done;
	pool->number = svc->conn->id_number;
	pool->device_ends = &svc->conn->device_ends;
	nfr_mem_pool_fit(pool, device, svc->conn->wanted.mr_depth);
	if (pool->depth < nfr_mem_device_least(device))
		return -EOPNOTSUPP;
	svc->pool = pool;
	return 0;
}

/**
 * nfr_svc_expose_init - let clients read Replies of a connection
 * @svc: new connection with its device and the parameters set
 *
 * Return: 0, -ENOMEM, or -EOPNOTSUPP.
 */
int nfr_svc_expose_init(struct nfr_svc *svc)
{
	struct nfr_svc_exposures *exposures = kzalloc(sizeof(*exposures), NFR_GFP_RETRIED);
	int rc = exposures ? nfr_svc_pool_init(svc, &exposures->pool) : -ENOMEM;

	if (rc) {
		kfree(exposures);
		return rc;
	}
	exposures->svc = svc;
	INIT_LIST_HEAD(&exposures->exposed);
	INIT_LIST_HEAD(&exposures->revoking);
	*(struct nfr_svc_exposures **)nfr_svc_own(svc) = exposures;
	return 0;
}

/**
 * nfr_svc_expose_init_request - initialize the exposure of a request
 * @req: new request
 */
void nfr_svc_expose_init_request(struct nfr_svc_req *req)
{
	nfr_mem_exposure_init(&nfr_svc_exposed(req)->exposure);
}

/* --- mapping --- */

/**
 * nfr_svc_expose_release - unmap memory
 * @exposure: exposure that no client can use
 */
void nfr_svc_expose_release(struct nfr_exposure *exposure)
{
	local_bh_disable();
	nfr_mem_release(exposure);
	local_bh_enable();
}

/* Returns the number of segments, -ENOMEM if the pool has too few MRs, or another errno. */
static int nfr_svc_expose_map(struct nfr_svc *svc, struct nfr_exposure *exposure,
			      struct nfr_span span, struct nfr_segment *segs, u32 room)
{
	int rc;

	local_bh_disable();
	rc = nfr_mem_prepare(exposure, svc->pool, &span, DMA_TO_DEVICE, segs, room);
	if (rc < 0)
		nfr_mem_release(exposure);
	local_bh_enable();
	return rc;
}

/* The client may be this host, whose writeback of dirty pages depends on this connection. */
static int nfr_svc_expose_refill(struct nfr_svc *svc)
{
	unsigned int noio = memalloc_noio_save();
	int rc = nfr_mem_pool_fill(svc->pool, svc->conn->pd, NFR_BATCH);

	memalloc_noio_restore(noio);
	return rc;
}

/**
 * nfr_svc_expose_memory - map memory for RDMA Reads of the client
 * @svc: connection
 * @exposure: empty exposure
 * @span: memory
 * @segs: output, an element for each segment
 * @room: maximum number of segments
 *
 * Context: nfsd thread; may sleep to allocate MRs.
 *
 * Return: number of segments, -ENOMEM, -ENOBUFS, or -EMSGSIZE if @room does not suffice.
 */
int nfr_svc_expose_memory(struct nfr_svc *svc, struct nfr_exposure *exposure,
			  const struct nfr_span *span, struct nfr_segment *segs, u32 room)
{
	int rc, tries = NFR_SVC_EXPOSE_TRIES;

	do {
		rc = nfr_svc_expose_map(svc, exposure, *span, segs, room);
	} while (rc == -ENOMEM && tries-- && !nfr_svc_expose_refill(svc));
	return rc;
}

/**
 * nfr_svc_expose - map memory of a Reply for RDMA Reads of the client
 * @req: request, whose Reply is being prepared
 * @span: memory
 * @chunk: output; its @segs have @room elements
 * @room: maximum number of segments
 *
 * Context: nfsd thread; may sleep to allocate MRs.
 *
 * Return: 0, -ENOMEM, or -EIO if @room does not suffice.
 */
int nfr_svc_expose(struct nfr_svc_req *req, const struct nfr_span *span, struct nfr_chunk *chunk,
		   u32 room)
{
	u32 pages = PFN_UP(nfr_mem_span_length(span));
	struct nfr_svc *svc = req->svc;
	int rc;

	rc = nfr_svc_expose_memory(svc, &nfr_svc_exposed(req)->exposure, span, chunk->segs, room);
	if (rc < 0)
		return rc == -EMSGSIZE ? -EIO : -ENOMEM;
	chunk->nsegs = rc;
	nfr_svc_exposed(req)->pages = pages;
	atomic_add(pages, &nfr_svc_exposures(svc)->pages);
	atomic_add(pages, &nfr_svc_exposed_total);
	nfr_svc_budget_raise(req, pages);
	nfr_svc_budget_keep(req, pages << PAGE_SHIFT);
	return 0;
}

static void nfr_svc_expose_uncount(struct nfr_svc_req *req)
{
	atomic_sub(nfr_svc_exposed(req)->pages, &nfr_svc_exposures(req->svc)->pages);
	atomic_sub(nfr_svc_exposed(req)->pages, &nfr_svc_exposed_total);
	nfr_svc_exposed(req)->pages = 0;
}

/**
 * nfr_svc_expose_undo - undo nfr_svc_expose()
 * @req: request whose registrations were not posted
 */
void nfr_svc_expose_undo(struct nfr_svc_req *req)
{
	nfr_svc_expose_release(&nfr_svc_exposed(req)->exposure);
	nfr_svc_expose_uncount(req);
}

/* --- access of the client --- */

/**
 * nfr_svc_expose_posted - wait for the Done of a client that may read a Reply
 * @req: request whose Reply was posted; the caller holds nfr_conn.lock
 */
void nfr_svc_expose_posted(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	nfr_svc_exposed(req)->since = jiffies;
	list_add_tail(&req->list, &nfr_svc_exposures(svc)->exposed);
	nfr_svc_exposures(svc)->nexposed++;
	atomic_inc(&nfr_svc_dones_total);
	trace_nfsrdma_svc_expose(req, nfr_svc_exposed(req)->exposure.count,
				 nfr_svc_exposed(req)->pages, nfr_svc_exposures(svc)->nexposed);
	nfr_work_queue(&nfr_svc_exposures(svc)->expire, NFR_SVC_EXPOSE_CHECK);
}

/* Caller holds the lock of the connection. */
static void nfr_svc_expose_unlist(struct nfr_svc_req *req)
{
	list_del(&req->list);
	nfr_svc_exposures(req->svc)->nexposed--;
	atomic_dec(&nfr_svc_dones_total);
}

/**
 * nfr_svc_expose_done - find the request that a Done ends
 * @svc: connection that received the Done
 * @xid: its XID
 *
 * Return: request, which no other Done ends; NULL if the client cannot read the Reply
 * of such a Call.
 */
struct nfr_svc_req *nfr_svc_expose_done(struct nfr_svc *svc, u32 xid)
{
	struct nfr_svc_req *req, *found = NULL;

	spin_lock_bh(&svc->conn->lock);
	list_for_each_entry(req, &nfr_svc_exposures(svc)->exposed, list) {
		if (req->head.xid != xid)
			continue;
		found = req;
		nfr_svc_expose_unlist(req);
		break;
	}
	spin_unlock_bh(&svc->conn->lock);
	return found;
}

/**
 * nfr_svc_expose_late - collect the requests whose client is too late
 * @svc: connection
 * @late: output
 *
 * Return: false if the client could not read any Reply: there is nothing to check later.
 */
bool nfr_svc_expose_late(struct nfr_svc *svc, struct list_head *late)
{
	unsigned long timeout = nfr_params_server_done_timeout();
	struct nfr_svc_exposures *exposures = nfr_svc_exposures(svc);
	struct nfr_svc_req *req, *next;
	bool more;

	spin_lock_bh(&svc->conn->lock);
	more = !list_empty(&exposures->exposed) || !list_empty(&exposures->revoking);
	list_for_each_entry_safe(req, next, &exposures->exposed, list) {
		if (time_before(jiffies, nfr_svc_exposed(req)->since + timeout))
			break;
		nfr_svc_expose_unlist(req);
		list_add_tail(&req->list, late);
	}
	spin_unlock_bh(&svc->conn->lock);
	return more;
}

/*
 * Check whether an invalidation takes too long. Returns true if the oldest one began more than
 * NFR_SVC_REVOKING_MAX ago.
 */
bool nfr_svc_expose_is_stuck(struct nfr_svc *svc)
{
	struct nfr_svc_exposed *oldest;
	bool stuck;

	spin_lock_bh(&svc->conn->lock);
	oldest = list_first_entry_or_null(&nfr_svc_exposures(svc)->revoking,
					  struct nfr_svc_exposed, revoking);
	stuck = oldest && time_after(jiffies, oldest->since + NFR_SVC_REVOKING_MAX);
	spin_unlock_bh(&svc->conn->lock);
	return stuck;
}

/* --- end of the access --- */

/**
 * nfr_svc_expose_revoke - chain the invalidations of an exposed Reply
 * @req: request with its @revoke_cqe set; the caller has to post the chain
 */
void nfr_svc_expose_revoke(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct ib_send_wr *last = NULL;

	nfr_mem_revoke(&nfr_svc_exposed(req)->exposure, &req->first, &last);
	last->wr_cqe = &nfr_svc_exposed(req)->revoke_cqe;
	req->signal = true;
	spin_lock_bh(&svc->conn->lock);
	nfr_svc_exposed(req)->since = jiffies;
	list_add_tail(&nfr_svc_exposed(req)->revoking, &nfr_svc_exposures(svc)->revoking);
	spin_unlock_bh(&svc->conn->lock);
}

/**
 * nfr_svc_expose_end - unmap the memory of a Reply
 * @req: request whose invalidations are complete
 *
 * Context: Completion handler.
 */
void nfr_svc_expose_end(struct nfr_svc_req *req)
{
	spin_lock_bh(&req->svc->conn->lock);
	list_del(&nfr_svc_exposed(req)->revoking);
	spin_unlock_bh(&req->svc->conn->lock);
	nfr_svc_expose_release(&nfr_svc_exposed(req)->exposure);
	nfr_svc_expose_uncount(req);
}

/**
 * nfr_svc_expose_destroy - undo nfr_svc_expose_init()
 * @svc: connection that has ended, without references, whose requests still exist
 *
 * Context: Sleeps.
 */
void nfr_svc_expose_destroy(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	LIST_HEAD(mrs);

	list_for_each_entry(req, &svc->all, all) {
		nfr_mem_detach(&nfr_svc_exposed(req)->exposure, &mrs);
		nfr_svc_expose_uncount(req);
	}
	atomic_sub(nfr_svc_exposures(svc)->nexposed, &nfr_svc_dones_total);
	nfr_mem_destroy(&mrs, svc->conn->proof);
	nfr_mem_pool_destroy(svc->pool);
	kfree(nfr_svc_exposures(svc));
}

/* Print the pages that clients may read, and the RDMA_DONEs that they have not sent yet. */
void nfr_svc_expose_totals(struct seq_file *seq)
{
	seq_printf(seq, "exposed_pages %u\n", atomic_read(&nfr_svc_exposed_total));
	seq_printf(seq, "dones_outstanding %u\n", atomic_read(&nfr_svc_dones_total));
}
