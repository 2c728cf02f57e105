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

#include "client/client.h"
#include "observe/trace_connection.h"

/* Initial reconnect delay; sunrpc doubles it up to max_reconnect_timeout */
#define NFR_RECONNECT_MIN	HZ

/* Upper limit for one step of connecting: detects a dead peer */
#define NFR_STEP_TIMEOUT	(15 * HZ)

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

static void nfr_client_received(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_xprt *nx = conn->owner;

	nx->personality->receive(conn, recv);
}

const struct nfr_conn_ops nfr_client_conn_ops = {
	.receive	= nfr_client_received,
	.writable	= nfr_client_writable,
	.broken		= nfr_client_broken,
	.unanswered	= "no reply to an abandoned Call",
};

/**
 * nfr_client_disconnect - break the connection of a transport
 * @nx: transport
 * @generation: generation of the connection; 0 for the current one
 * @reason: disconnect reason, a string constant
 *
 * The function does nothing if the transport has no connection of that
 * generation.
 */
void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason)
{
	struct nfr_conn *conn;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	if (conn && (!generation || conn->generation == generation))
		nfr_conn_break(conn, reason);
	rcu_read_unlock();
}

static bool nfr_client_is_closed(struct nfr_xprt *nx, u32 generation)
{
	const struct nfr_conn *conn;
	bool closed;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	closed = !conn || conn->generation != generation;
	rcu_read_unlock();
	return closed;
}

/**
 * nfr_client_wait_closed - wait until a broken connection is closed
 * @nx: transport, which the caller must not have locked
 * @generation: generation of the connection
 */
void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation)
{
	wait_event(nx->detached, nfr_client_is_closed(nx, generation));
}

/**
 * nfr_client_sleep_until_closed - put a task to sleep until a connection is closed
 * @nx: transport
 * @task: the calling task, in a callback; keeps its status
 * @generation: generation of the broken connection
 *
 * Context: Does not sleep.
 */
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation)
{
	rpc_sleep_on(&nx->closing, task, NULL);
	/* the connection may have been closed before the task was queued */
	if (nfr_client_is_closed(nx, generation))
		rpc_wake_up_queued_task(&nx->closing, task);
}

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

static struct nfr_conn *nfr_client_new_conn(struct nfr_xprt *nx)
{
	struct nfr_conn *conn = kzalloc(sizeof(*conn), NFR_GFP_RETRIED);

	if (!conn)
		return NULL;
	conn->owner = nx;
	conn->ops = &nfr_client_conn_ops;
	conn->id_number = nx->xprt.id;
	conn->generation = ++nx->generation;
	conn->step_timeout = clamp_t(unsigned long, nx->xprt.connect_timeout, HZ,
				     NFR_STEP_TIMEOUT);
	nfr_params_read(&conn->wanted);
	return conn;
}

static int nfr_client_open(struct nfr_xprt *nx)
{
	struct rpc_xprt *xprt = &nx->xprt;
	struct nfr_conn *conn;
	int rc;

	conn = nfr_client_new_conn(nx);
	if (!conn)
		return -ENOMEM;
	rc = nfr_conn_open(conn, xprt->xprt_net, (struct sockaddr *)&xprt->addr);
	trace_nfsrdma_connect(conn, xprt, rc);
	nx->last_status = rc;
	if (rc) {
		nx->last_failure = conn->reason;
		nfr_conn_drain(conn);
		nfr_conn_free(conn);
		return rc;
	}
	WRITE_ONCE(xprt->max_reqs, conn->wanted.credits);
	rcu_assign_pointer(nx->conn, conn);
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

	if (nfr_xprt_conn(nx))
		nfr_client_close(xprt);
	rc = nfr_client_open(nx);
	/* a task that saw the last attempt fail must not disconnect the new connection */
	xprt->connect_cookie++;
	xprt_clear_connecting(xprt);
	if (!rc) {
		nfr_client_connected(xprt);
		/* the connection may have broken before the transport pointed to it */
		if (!nfr_conn_is_up(nfr_xprt_conn(nx)))
			xprt_force_disconnect(xprt);
		rc = -EAGAIN;
	} else {
		rc = nfr_client_connect_error(rc);
	}
	nx->connected_once = true;
	xprt_unlock_connect(xprt, nx);
	xprt_wake_pending_tasks(xprt, rc);
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
	struct nfr_xprt *nx = nfr_xprt_of(xprt);
	unsigned long delay = 0;

	WARN_ON_ONCE(!xprt_lock_connect(xprt, task, nx));
	if (nx->connected_once) {
		delay = xprt_reconnect_delay(xprt);
		xprt_reconnect_backoff(xprt, NFR_RECONNECT_MIN);
	}
	nfr_conn_queue(&nx->connect_work, delay);
}

/* Add the counters of a closing connection to those of its transport. */
static void nfr_client_keep_counters(struct nfr_xprt *nx, const struct nfr_conn *conn)
{
	nx->counters.disconnects++;
	nx->counters.mrs_made += conn->pool.total;
	nx->counters.mrs_recycled += conn->pool.recycled;
	nx->counters.mrs_orphaned += conn->pool.orphaned;
	nx->last_disconnect = READ_ONCE(conn->reason);
	/* reset the back-off after a connection that worked */
	if (conn->replies)
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
	struct nfr_xprt *nx = nfr_xprt_of(xprt);
	struct nfr_conn *conn = nfr_xprt_conn(nx);
	LIST_HEAD(mrs);

	if (conn) {
		nfr_conn_drain(conn);
		mutex_lock(&nx->mutex);
		nfr_req_detach_all(nx, conn, &mrs);
		mutex_unlock(&nx->mutex);
		/*
		 * this waits for the device without the mutex; nx->conn still
		 * marks the memory as in use
		 */
		nfr_reg_destroy(conn, &mrs);
		mutex_lock(&nx->mutex);
		nfr_orphans_free(nx, conn, true);
		nfr_client_keep_counters(nx, conn);
		rcu_assign_pointer(nx->conn, NULL);
		mutex_unlock(&nx->mutex);
		wake_up_all(&nx->detached);
		rpc_wake_up(&nx->closing);
		synchronize_rcu();
		nfr_reply_flush_limbo(nx, conn);
		nfr_conn_free(conn);
	}
	xprt_disconnect_done(xprt);
}
