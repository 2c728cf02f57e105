// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections of the client: sunrpc requests one when a task needs it, and
 * closes it, with the transport locked, after it broke.
 *
 * Recovery takes place in nfr_client_close(), in this order: drain the queue
 * pair; take the MRs from all requests and destroy them; deliver the Replies
 * that waited for an invalidation; wake all other requests with -ENOTCONN, so
 * that sunrpc sends them again on the next connection.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "client/slots.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "observe/trace.h"
#include "params.h"
#include "variants.h"
#include "work.h"

/* Initial reconnect delay; sunrpc doubles it up to max_reconnect_timeout */
#define NFR_RECONNECT_MIN	HZ

/* Upper limit for one step of connecting: detects a dead peer */
#define NFR_STEP_TIMEOUT	(15 * HZ)

/* Send work requests per credit: two registrations, the message, an invalidation */
#define NFR_SENDS_PER_CREDIT	4

/* Additional room, so that the largest Call fits into an idle send queue */
#define NFR_SENDS_SPARE		128

/* Scatter-gather elements per RDMA Read, and pages of the largest Reply */
#define NFR_READ_SGES		32u
#define NFR_READ_PAGES		260

/* Segments and parts of a Reply, each of which takes an RDMA Read of its own */
#define NFR_READ_CONTEXTS	(NFR_DECODE_SEGS + 8)

/* Delay before the next attempt to fill the pool after an allocation failure */
#define NFR_REFILL_AGAIN	(HZ / 10)

/* Delay before the next attempt to invalidate, while the send queue is full */
#define NFR_EVICT_AGAIN		(HZ / 10)

/* Interval at which the cache looks for MRs that were not used for long */
#define NFR_EVICT_AGE		(10 * HZ)

static void nfr_client_broken(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;

	xprt_force_disconnect(&nx->xprt);
}

static void nfr_client_writable(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;

	xprt_write_space(&nx->xprt);
}

/* RDMA Reads of Replies come before Calls. */
static void nfr_client_writable_fetch(struct nfr_conn *conn)
{
	nfr_client_fetch_waiting(conn);
	nfr_client_writable(conn);
}

static void nfr_client_received(struct nfr_conn *conn, struct nfr_recv *recv)
{
	nfr_client_link_of(conn)->personality->receive(conn, recv);
}

static const struct nfr_conn_ops nfr_client_conn_ops = {
	.receive	= nfr_client_received,
	.writable	= nfr_client_writable,
	.broken		= nfr_client_broken,
	.unanswered	= "no reply to an abandoned Call",
};

/* The client may have to read its Replies: personality read-read */
static const struct nfr_conn_ops nfr_client_fetch_ops = {
	.receive	= nfr_client_received,
	.writable	= nfr_client_writable_fetch,
	.broken		= nfr_client_broken,
	.unanswered	= "no reply to an abandoned Call",
};

/* Map errors to those that sunrpc retries for hard mounts. */
static int nfr_client_connect_error(int rc)
{
	switch (rc) {
	case -ECONNREFUSED:
	case -ENETUNREACH:
	case -EHOSTUNREACH:
	case -ETIMEDOUT:
	case -ENOTCONN:
		return rc;
	case -ENOMEM:
		return -ENOBUFS;
	default:
		return -EHOSTUNREACH;
	}
}

/* --- memory regions --- */

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
	if (nfr_mem_pool_fill(&link->pool, conn->pd, NFR_BATCH)) {
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
	struct nfr_link *link = container_of(wc->wr_cqe, struct nfr_link, evict_cqe);
	struct nfr_conn *conn = cq->cq_context;

	if (!nfr_conn_check(conn, wc))
		return;
	nfr_mem_release(&link->evicted);
	/* pairs with nfr_client_evict_work() */
	smp_store_release(&link->evicting, false);
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

	count = nfr_mem_revoke(&link->evicted, &first, &last);
	link->evict_cqe.done = nfr_client_evict_done;
	last->wr_cqe = &link->evict_cqe;
	WRITE_ONCE(link->evicting, true);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_post(conn, first, last, count, true);
	spin_unlock_bh(&conn->lock);
	if (rc)
		WRITE_ONCE(link->evicting, false);
	return rc;
}

/* Invalidate what the cache gives up, one batch at a time. */
static void nfr_client_evict_work(struct work_struct *work)
{
	struct nfr_cache *cache = container_of(work, struct nfr_cache, work.work);
	struct nfr_link *link = container_of(cache->pool, struct nfr_link, pool);
	bool more;
	int rc;

	/* pairs with nfr_client_evict_done(), which has emptied link->evicted */
	if (!nfr_conn_is_up(&link->conn) || smp_load_acquire(&link->evicting))
		return;
	more = nfr_mem_cache_victims(&link->pool, &link->evicted, NFR_BATCH);
	if (!link->evicted.count) {
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

/* --- personalities --- */

static const struct nfr_personality nfr_client_version1 = {
	.marshal	= nfr_client_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};

static const struct nfr_personality nfr_client_pre_posted = {
	.marshal	= nfr_client_lane_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};

static const struct nfr_personality *const nfr_client_personalities[NFR_VARIANTS] = {
	[NFR_READ_WRITE]	= &nfr_client_version1,
	[NFR_READ_READ]		= &nfr_client_version0,
	[NFR_PADDED]		= &nfr_client_padded,
	[NFR_PRE_POSTED]	= &nfr_client_pre_posted,
	[NFR_CACHED]		= &nfr_client_version1,
	[NFR_OPTIMISTIC]	= &nfr_client_optimistic,
};

/*
 * The private data of the server decides: it returns the bit of a personality that
 * it accepts. Returns 0 or -ENOMEM.
 */
static int nfr_client_agree(const struct nfr_xprt *nx, struct nfr_link *link)
{
	if (link->conn.peer.capabilities & nfr_variant_bit(nx->variant))
		link->variant = nx->variant;
	link->personality = nfr_client_personalities[link->variant];
	if (link->variant == NFR_PADDED)
		link->padded = min(link->conn.wanted.padded_max,
				   nfr_padded_limit(link->conn.peer.capabilities));
	if (link->variant != NFR_CACHED)
		return 0;
	return nfr_mem_cache_create(&link->pool, nfr_client_evict_work);
}

/* --- connecting --- */

static struct nfr_link *nfr_client_new_link(struct nfr_xprt *nx)
{
	struct nfr_link *link = kzalloc(sizeof(*link), NFR_GFP_RETRIED);
	struct nfr_conn *conn;

	if (!link)
		return NULL;
	conn = &link->conn;
	conn->owner = nx;
	conn->ops = nx->variant == NFR_READ_READ ? &nfr_client_fetch_ops : &nfr_client_conn_ops;
	conn->id_number = nx->xprt.id;
	conn->generation = ++nx->generation;
	conn->step_timeout = clamp_t(unsigned long, nx->xprt.connect_timeout, HZ,
				     NFR_STEP_TIMEOUT);
	nfr_params_read(&conn->wanted);
	WRITE_ONCE(nx->inline_send, conn->wanted.inline_send);
	link->variant = NFR_READ_WRITE;
	link->personality = &nfr_client_version1;
	link->pool.number = conn->id_number;
	link->pool.done = nfr_client_mr_done;
	nfr_mem_pool_init(&link->pool);
	nfr_mem_exposure_init(&link->evicted);
	INIT_DELAYED_WORK(&link->refill, nfr_client_refill_work);
	return link;
}

/* The client reads Replies as the server reads Calls. */
static void nfr_client_fit_reads(struct nfr_conn *conn)
{
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	u32 chain;

	profile->send_sges = min_t(u32, attrs->max_send_sge, NFR_READ_SGES);
	chain = NFR_READ_CONTEXTS + NFR_READ_PAGES / profile->send_sges;
	profile->least_sends = max(profile->least_sends, 2 * chain);
	profile->sends += conn->wanted.credits + 2 * chain;
	profile->rw_contexts = max_t(u32, conn->wanted.credits, NFR_READ_CONTEXTS);
	profile->least_contexts = NFR_READ_CONTEXTS;
	profile->reads_issued = min_t(int, attrs->max_qp_init_rd_atom, U8_MAX);
}

/* Check the device, choose the depth of MRs, and set the profile of the connection. */
static int nfr_client_fit(const struct nfr_xprt *nx, struct nfr_link *link)
{
	struct nfr_conn *conn = &link->conn;
	struct nfr_pool *pool = &link->pool;
	int rc;

	nfr_mem_pool_fit(pool, conn->device, conn->wanted.mr_depth);
	if (!(conn->device->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		pr_err_ratelimited("nfsrdma: device %s: no memory management extensions, which FRWR requires\n",
				   conn->device->name);
		return nfr_conn_unfit(conn, "the device does not support FRWR");
	}
	if (pool->depth < NFR_MIN_DEPTH) {
		pr_err_ratelimited("nfsrdma: device %s: max_fast_reg_page_list_len is %u, expected at least %u\n",
				   conn->device->name, pool->depth, NFR_MIN_DEPTH);
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	}
	rc = nfr_conn_fit_queue(conn, nfr_mem_pool_chain(pool));
	if (rc)
		return rc;
	conn->profile.receives = 2 * NFR_BATCH;
	conn->profile.sends = conn->wanted.credits * NFR_SENDS_PER_CREDIT + NFR_SENDS_SPARE;
	conn->profile.send_sges = 1;
	conn->profile.recv_sges = 1;
	/* the server reads the data of Calls */
	conn->profile.reads_served = min_t(int, conn->device->attrs.max_qp_rd_atom, U8_MAX);
	if (nx->variant == NFR_READ_READ)
		nfr_client_fit_reads(conn);
	if (nx->variant == NFR_PADDED)
		nfr_conn_recv_align(conn);
	conn->profile.private = (struct nfr_private) {
		.remote_invalidation = conn->wanted.remote_invalidation,
		.extended = true,
		.capabilities = nfr_variant_bit(nx->variant) |
				nfr_padded_capability(conn->profile.recv_data),
		.token = nx->token,
	};
	return 0;
}

static int nfr_client_establish(struct nfr_xprt *nx, struct nfr_link *link)
{
	struct nfr_conn *conn = &link->conn;
	int rc;

	rc = nfr_conn_resolve(conn, nx->xprt.xprt_net, (struct sockaddr *)&nx->xprt.addr);
	if (!rc)
		rc = nfr_client_fit(nx, link);
	if (!rc)
		rc = nfr_conn_queues_create(conn);
	if (!rc)
		rc = nfr_mem_pool_fill(&link->pool, conn->pd, NFR_BATCH);
	if (!rc && nx->variant == NFR_READ_READ)
		rc = nfr_client_fetch_create(conn);
	if (!rc)
		rc = nfr_conn_connect(conn);
	return rc ?: nfr_client_agree(nx, link);
}

/* Wait until the device has flushed all work requests. */
static void nfr_client_drain(struct nfr_link *link)
{
	nfr_conn_drain(&link->conn);
	nfr_mem_cache_close(&link->pool);
	cancel_delayed_work_sync(&link->refill);
}

static void nfr_client_free_link(struct nfr_link *link)
{
	nfr_client_fetch_destroy(&link->conn);
	nfr_mem_pool_destroy(&link->pool);
	kfree(link->pool.cache);
	nfr_conn_free(&link->conn);
	kfree(link);
}

static int nfr_client_open(struct nfr_xprt *nx)
{
	struct nfr_link *link = nfr_client_new_link(nx);
	struct rpc_xprt *xprt = &nx->xprt;
	int rc;

	if (!link)
		return -ENOMEM;
	rc = nfr_client_establish(nx, link);
	trace_nfsrdma_connect(&link->conn, xprt, link->pool.depth, rc);
	nx->last_status = rc;
	if (rc) {
		nx->last_failure = link->conn.reason;
		nfr_client_drain(link);
		nfr_client_free_link(link);
		return rc;
	}
	WRITE_ONCE(xprt->max_reqs, link->conn.wanted.credits);
	rcu_assign_pointer(nx->conn, &link->conn);
	return 0;
}

static void nfr_client_connected(struct rpc_xprt *xprt)
{
	xprt->stat.connect_count++;
	xprt->stat.connect_time += (long)jiffies - xprt->stat.connect_start;
	xprt_set_connected(xprt);
}

/**
 * nfr_client_connect_worker - connect a transport, locked for this worker
 * @work: connect_work of a struct nfr_xprt
 */
void nfr_client_connect_worker(struct work_struct *work)
{
	struct nfr_xprt *nx = container_of(work, struct nfr_xprt, connect_work.work);
	struct rpc_xprt *xprt = &nx->xprt;
	unsigned int noio = memalloc_noio_save();
	int rc;

	if (nfr_client_xprt_conn(nx))
		nfr_client_close(xprt);
	rc = nfr_client_open(nx);
	/* a task that saw the last attempt fail must not disconnect the new connection */
	xprt->connect_cookie++;
	xprt_clear_connecting(xprt);
	if (!rc) {
		nfr_client_connected(xprt);
		/* the connection may have broken before the transport pointed to it */
		if (!nfr_conn_is_up(nfr_client_xprt_conn(nx)))
			xprt_force_disconnect(xprt);
		rc = -EAGAIN;
	} else {
		rc = nfr_client_connect_error(rc);
	}
	nx->connected_once = true;
	/*
	 * Wake tasks before one of them can send: a Call that is already under way on
	 * the new connection must not be woken to be sent again.
	 */
	xprt_wake_pending_tasks(xprt, rc);
	xprt_unlock_connect(xprt, nx);
	memalloc_noio_restore(noio);
}

/**
 * nfr_client_connect - schedule a connection attempt
 * @xprt: transport, locked by @task
 * @task: task that needs the connection
 *
 * The second attempt waits for one second, later ones wait longer: sunrpc's
 * back-off.
 *
 * Context: Does not sleep.
 */
void nfr_client_connect(struct rpc_xprt *xprt, struct rpc_task *task)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	unsigned long delay = 0;

	WARN_ON_ONCE(!xprt_lock_connect(xprt, task, nx));
	if (nx->connected_once) {
		delay = xprt_reconnect_delay(xprt);
		xprt_reconnect_backoff(xprt, NFR_RECONNECT_MIN);
	}
	nfr_work_queue(&nx->connect_work, delay);
}

/* Add the counters of a closing connection to those of its transport. */
static void nfr_client_keep_counters(struct nfr_xprt *nx, const struct nfr_link *link)
{
	nx->counters.disconnects++;
	nx->counters.mrs_made += link->pool.total;
	nx->counters.mrs_recycled += link->pool.recycled;
	nx->counters.mrs_orphaned += link->pool.orphaned;
	nx->last_disconnect = READ_ONCE(link->conn.reason);
	/* reset the back-off after a connection that worked */
	if (link->replies)
		nx->xprt.reestablish_timeout = 0;
}

/**
 * nfr_client_close - close the connection
 * @xprt: locked transport
 *
 * When this function returns, no request has MRs.
 *
 * Context: Sleeps.
 */
void nfr_client_close(struct rpc_xprt *xprt)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	struct nfr_conn *conn = nfr_client_xprt_conn(nx);
	struct nfr_link *link;
	LIST_HEAD(mrs);

	if (nx->branches)
		nfr_client_branches_close(nx->branches);
	if (conn) {
		link = nfr_client_link_of(conn);
		nfr_client_drain(link);
		if (link->personality->drained)
			link->personality->drained(conn);
		mutex_lock(&nx->mutex);
		nfr_client_req_detach_all(nx, conn, &mrs);
		nfr_mem_cache_detach(&link->pool, &mrs);
		nfr_mem_detach(&link->evicted, &mrs);
		mutex_unlock(&nx->mutex);
		/*
		 * this waits for the device without the mutex; nx->conn still
		 * marks the memory as in use
		 */
		nfr_mem_destroy(&mrs);
		mutex_lock(&nx->mutex);
		nfr_client_free_abandoned(nx, conn, true);
		nfr_client_keep_counters(nx, link);
		rcu_assign_pointer(nx->conn, NULL);
		mutex_unlock(&nx->mutex);
		wake_up_all(&nx->detached);
		rpc_wake_up(&nx->closing);
		synchronize_rcu();
		nfr_client_deliver_held(nx, conn);
		nfr_client_free_link(link);
	}
	xprt_disconnect_done(xprt);
}
