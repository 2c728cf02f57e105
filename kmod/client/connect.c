// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections of the client: sunrpc requests one when a task needs it, and
 * closes it, with the transport locked, after it broke.
 *
 * Recovery takes place in nfr_client_close(), in this order: drain the queue
 * pair, or have it destroyed if the device refuses; take the MRs from all requests
 * and destroy them; deliver the Replies that waited for an invalidation; wake all
 * other requests with -ENOTCONN, so that sunrpc sends them again on the next
 * connection.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "client/slots.h"
#include "connection/cm.h"
#include "connection/queues.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "observe/trace.h"
#include "params.h"
#include "personality.h"
#include "work.h"

/* Initial reconnect delay; sunrpc doubles it up to max_reconnect_timeout */
#define NFR_RECONNECT_MIN	HZ

/* Upper limit for one step of connecting: detects a dead peer */
#define NFR_STEP_TIMEOUT	(15 * HZ)

/* Send work requests per credit: two registrations, the message, an invalidation */
#define NFR_SENDS_PER_CREDIT	4

/* Additional room, so that the largest Call fits into an idle send queue */
#define NFR_SENDS_SPARE		128

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

/*
 * The private data of the server decides: it returns the bit of a personality that
 * it accepts. Returns 0 or -ENOMEM.
 */
static int nfr_client_agree(const struct nfr_xprt *nx, struct nfr_link *link)
{
	if (link->conn.peer.capabilities & nfr_personality_bit(nx->personality->number))
		link->personality = nx->personality;
	return link->personality->agree ? link->personality->agree(link) : 0;
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
	conn->ops = nx->personality->ops;
	conn->id_number = nx->xprt.id;
	conn->generation = ++nx->generation;
	conn->step_timeout = clamp_t(unsigned long, nx->xprt.connect_timeout, HZ,
				     NFR_STEP_TIMEOUT);
	nfr_params_read(&conn->wanted);
	WRITE_ONCE(nx->inline_send, conn->wanted.inline_send);
	nfr_conn_init(conn);
	link->personality = &nfr_client_readwrite;
	nfr_client_regions_init(link);
	return link;
}

/* Check the device, choose the depth of MRs, and set the profile of the connection. */
static int nfr_client_fit(const struct nfr_xprt *nx, struct nfr_link *link)
{
	const struct nfr_client_personality *wanted = nx->personality;
	struct nfr_conn *conn = &link->conn;
	struct nfr_pool *pool = &link->pool;
	int rc;

	nfr_mem_pool_fit(pool, conn->device, conn->wanted.mr_depth);
	if (!pool->depth) {
		pr_err_ratelimited("nfsrdma: device %s: no memory management extensions, which FRWR requires\n",
				   conn->device->name);
		return nfr_conn_unfit(conn, "the device does not support FRWR");
	}
	if (pool->depth < nfr_mem_device_least(conn->device)) {
		pr_err_ratelimited("nfsrdma: device %s: max_fast_reg_page_list_len is %u, expected at least %u\n",
				   conn->device->name, pool->depth, nfr_mem_device_least(conn->device));
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
	if (wanted->fit)
		wanted->fit(conn);
	conn->profile.private = (struct nfr_private) {
		.remote_invalidation = conn->wanted.remote_invalidation,
		.extended = true,
		.capabilities = nfr_personality_bit(wanted->number) | conn->profile.offers,
		.token = nx->token,
	};
	return 0;
}

static int nfr_client_establish(struct nfr_xprt *nx, struct nfr_link *link)
{
	const struct nfr_client_personality *wanted = nx->personality;
	struct nfr_conn *conn = &link->conn;
	int rc;

	rc = nfr_conn_resolve(conn, nx->xprt.xprt_net, (struct sockaddr *)&nx->xprt.addr,
			      nx->xprt.resvport);
	if (!rc)
		rc = nfr_client_fit(nx, link);
	if (!rc)
		rc = nfr_conn_queues_create(conn);
	if (!rc)
		rc = nfr_mem_pool_fill(&link->pool, conn->pd, NFR_BATCH);
	if (!rc && wanted->create)
		rc = wanted->create(conn);
	if (!rc)
		rc = nfr_conn_connect(conn);
	return rc ?: nfr_client_agree(nx, link);
}

/* End all work for a connection, and then the access of the peer. Returns what proves that. */
static enum nfr_proof nfr_client_drain(struct nfr_xprt *nx, struct nfr_link *link)
{
	nfr_conn_drain(&link->conn);
	nfr_client_regions_end(link);
	if (nx->personality->stop)
		nx->personality->stop(&link->conn);
	return nfr_conn_end(&link->conn);
}

static void nfr_client_free_link(struct nfr_xprt *nx, struct nfr_link *link)
{
	if (nx->personality->destroy)
		nx->personality->destroy(&link->conn);
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
		nfr_client_drain(nx, link);
		nfr_client_free_link(nx, link);
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

/**
 * nfr_client_unlock_worker - have a transport closed although a task that ends has locked it
 * @work: unlock_work of a struct nfr_xprt
 *
 * sunrpc may hand the lock to a task whose Call another task has just sent. If the task is
 * killed, it gives the lock back when its request is not pinned any more
 * (net/sunrpc/xprt.c, xprt_release()). A Reply that waits for the connection to be closed
 * pins the request, and closing needs the lock.
 */
void nfr_client_unlock_worker(struct work_struct *work)
{
	struct nfr_xprt *nx = container_of(work, struct nfr_xprt, unlock_work.work);
	struct rpc_xprt *xprt = &nx->xprt;
	struct rpc_task *task;

	if (!test_bit(XPRT_CLOSE_WAIT, &xprt->state))
		return;
	spin_lock(&xprt->transport_lock);
	task = test_bit(XPRT_SND_IS_COOKIE, &xprt->state) ? NULL : xprt->snd_task;
	if (task && test_bit(RPC_TASK_MSG_PIN_WAIT, &task->tk_runstate))
		xprt_release_xprt(xprt, task);
	spin_unlock(&xprt->transport_lock);
	nfr_work_queue(&nx->unlock_work, NFR_UNLOCK_AGAIN);
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

/*
 * End the waits for invalidations that the device has not completed, and never will. A Reply waits
 * for the connection to be closed then, as after a failed invalidation, and so does a task.
 */
static void nfr_client_unfinish(struct nfr_req *req, const struct nfr_conn *conn)
{
	/* nobody else handles Replies of the connection any more */
	if (req->recv && req->recv->conn == conn && list_empty(&req->list))
		nfr_client_reply_hold(req);
	if (req->inv_waits) {
		req->inv_waits = false;
		req->inv_ok = false;
		complete(&req->inv_done);
	}
}

/* The same for all requests. Caller holds the mutex. */
static void nfr_client_unfinish_all(struct nfr_xprt *nx, const struct nfr_conn *conn)
{
	struct nfr_req *req;

	spin_lock(&nx->xprt.reserve_lock);
	list_for_each_entry(req, &nx->reqs, all)
		nfr_client_unfinish(req, conn);
	spin_unlock(&nx->xprt.reserve_lock);
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
	enum nfr_proof proof;
	struct nfr_link *link;
	LIST_HEAD(mrs);
	bool returned;

	if (nx->branches)
		nfr_client_branches_close(nx->branches);
	if (conn) {
		link = nfr_client_link_of(conn);
		proof = nfr_client_drain(nx, link);
		if (link->personality->drained)
			link->personality->drained(conn);
		mutex_lock(&nx->mutex);
		if (proof == NFR_PROOF_DESTROYED)
			nfr_client_unfinish_all(nx, conn);
		nfr_client_req_detach_all(nx, conn, &mrs);
		nfr_mem_cache_detach(&link->pool, &mrs);
		nfr_mem_detach(&link->eviction.mrs, &mrs);
		mutex_unlock(&nx->mutex);
		/*
		 * this waits for the device without the mutex; nx->conn still
		 * marks the memory as in use
		 */
		returned = nfr_mem_destroy(&mrs, proof);
		mutex_lock(&nx->mutex);
		if (!returned)
			nfr_client_buffers_lose(nx);
		nfr_client_abandon_close(nx);
		nfr_client_buffers_retire(nx, conn, true);
		nfr_client_keep_counters(nx, link);
		rcu_assign_pointer(nx->conn, NULL);
		mutex_unlock(&nx->mutex);
		wake_up_all(&nx->detached);
		rpc_wake_up(&nx->closing);
		synchronize_rcu();
		nfr_client_deliver_held(nx, conn);
		nfr_client_free_link(nx, link);
	}
	xprt_disconnect_done(xprt);
}
