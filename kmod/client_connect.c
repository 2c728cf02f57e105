// SPDX-License-Identifier: GPL-2.0-only
/*
 * The client's connections: made when a task asks, given up when they break,
 * closed by sunrpc with the transport locked.
 *
 * Closing is where recovery happens, in this order: the queue pair is drained;
 * every request loses its memory regions, which are destroyed; replies that
 * waited for an invalidation are delivered; the rest of the requests are woken
 * with -ENOTCONN, and sunrpc sends them again over the next connection.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client.h"
#include "trace_connection.h"

/* Before the second try; sunrpc doubles it up to max_reconnect_timeout */
#define NFR_RECONNECT_MIN	HZ

/* One step of connecting may take this long; a dead peer is noticed by then */
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
	.unanswered	= "calls given up were never answered",
};

/**
 * nfr_client_disconnect - give a connection up, if it is there
 * @nx: the transport
 * @generation: of the connection; 0 for the present one
 * @reason: a string constant
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
 * nfr_client_wait_closed - wait until a connection that was given up is closed
 * @nx: the transport, not locked by this task
 * @generation: of the connection
 */
void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation)
{
	wait_event(nx->detached, nfr_client_is_closed(nx, generation));
}

/**
 * nfr_client_sleep_until_closed - put a task to sleep until a connection is closed
 * @nx: the transport
 * @task: calls this, in a callback; its status stays what it is
 * @generation: of the connection, which was given up
 *
 * Does not wait.
 */
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation)
{
	rpc_sleep_on(&nx->closing, task, NULL);
	/* it may have been closed before the task was in the queue */
	if (nfr_client_is_closed(nx, generation))
		rpc_wake_up_queued_task(&nx->closing, task);
}

/* Errors that sunrpc knows to retry on hard mounts; whatever else happened counts as one of them. */
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
 * nfr_client_connect_worker - connect, with the transport locked for us
 * @work: of a struct nfr_xprt
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
	/* a task that saw the last attempt fail must not condemn what this one made */
	xprt->connect_cookie++;
	xprt_clear_connecting(xprt);
	if (!rc) {
		nfr_client_connected(xprt);
		/* it may have broken before anybody could be told */
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
 * nfr_client_connect - sunrpc wants a connection; does not wait
 * @xprt: locked by @task
 * @task: asks
 *
 * A second attempt waits a second, further ones longer: sunrpc's back-off.
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

/* The counters of a connection that ends are kept by its transport. */
static void nfr_client_keep_counters(struct nfr_xprt *nx, const struct nfr_conn *conn)
{
	nx->counters.disconnects++;
	nx->counters.mrs_made += conn->pool.total;
	nx->counters.mrs_recycled += conn->pool.recycled;
	nx->counters.mrs_orphaned += conn->pool.orphaned;
	nx->last_disconnect = READ_ONCE(conn->reason);
	/* a connection that worked starts the back-off anew */
	if (conn->replies)
		nx->xprt.reestablish_timeout = 0;
}

/**
 * nfr_client_close - end the connection; waits
 * @xprt: locked
 *
 * Afterwards no request has memory registered.
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
		/* the device takes its time; until the pointer is cleared the memory counts as in use */
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
