// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA connections: set up with rdma_cm, broken on the first failure, drained
 * before their resources are released.
 *
 * nfr_conn_open() runs in a worker and waits for one rdma_cm event per step.
 * nfr_conn_break() marks the connection, notifies its owner and fences the
 * queue pair, in any context. The fence is a worker that moves the queue pair
 * to the error state. From then on the peer cannot access memory and pending
 * work requests are flushed, however late the owner closes. nfr_conn_drain()
 * waits for that flush, after which no completion occurs. Then the owner
 * releases its MRs and frees the connection.
 */
#include <linux/slab.h>

#include "compat/compat.h"
#include "connection/connection.h"
#include "observe/trace_connection.h"

/* Send work requests per credit: two registrations, the message, an invalidation */
#define NFR_SENDS_PER_CREDIT	4

/* Additional room, so that the largest Call fits into an idle send queue */
#define NFR_SENDS_SPARE		128

static const char nfr_conn_small[] = "the limits of the device are too low";
static const char nfr_conn_frwr[] = "the device does not support FRWR";

/* Default reason of a queue pair failure; a specific reason replaces it */
const char nfr_conn_flushed[] = "the queue pair failed";

/**
 * nfr_conn_break - mark a connection as broken
 * @conn: connection
 * @reason: disconnect reason, a string constant
 *
 * The first reason is kept, and the owner is notified once.
 *
 * Context: Any context except hard and soft interrupts.
 */
void nfr_conn_break(struct nfr_conn *conn, const char *reason)
{
	int was = atomic_xchg(&conn->state, NFR_CONN_BROKEN);

	/* a flush error is a consequence: prefer the reason of the failure itself */
	if (was != NFR_CONN_BROKEN || READ_ONCE(conn->reason) == nfr_conn_flushed)
		WRITE_ONCE(conn->reason, reason);
	if (was == NFR_CONN_BROKEN)
		return;
	trace_nfsrdma_disconnect(conn, reason);
	if (was == NFR_CONN_OPENING) {
		conn->step_status = -ENOTCONN;
		complete(&conn->step);
		return;
	}
	nfr_queue_fence(conn);
	conn->ops->broken(conn);
}

static void nfr_conn_event_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, event_work);

	nfr_conn_break(conn, READ_ONCE(conn->event));
}

static int nfr_conn_unfit(struct nfr_conn *conn, const char *reason)
{
	conn->reason = reason;
	return -EOPNOTSUPP;
}

/**
 * nfr_conn_fit_queue - limit credits to the depth of the device's queues
 * @conn: connection whose device is known
 * @chain: number of work requests of the largest message
 *
 * The send queue must hold two such chains: earlier work requests may be
 * unsignaled, and without a completion the wait for room would not end, see
 * nfr_sq_take().
 *
 * Return: 0, or -EOPNOTSUPP if the queues of the device are too small.
 */
int nfr_conn_fit_queue(struct nfr_conn *conn, u32 chain)
{
	int deep = conn->device->attrs.max_qp_wr;
	int least = max_t(int, NFR_QUEUE_SPARE + 2, 2 * chain + 1);

	conn->least_sends = 2 * chain;
	if (deep < least) {
		pr_err_ratelimited("nfsrdma: device %s: max_qp_wr is %d, expected at least %d\n",
				   conn->device->name, deep, least);
		return nfr_conn_unfit(conn, nfr_conn_small);
	}
	conn->wanted.credits = min_t(u32, conn->wanted.credits, deep - NFR_QUEUE_SPARE);
	return 0;
}

/* Check the device, and choose the depth of queues and MRs. */
static int nfr_conn_fit(struct nfr_conn *conn)
{
	const struct ib_device_attr *attrs = &conn->device->attrs;

	nfr_pool_init(conn);
	if (!(attrs->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		pr_err_ratelimited("nfsrdma: device %s: no memory management extensions, which FRWR requires\n",
				   conn->device->name);
		return nfr_conn_unfit(conn, nfr_conn_frwr);
	}
	if (conn->pool.depth < NFR_MIN_DEPTH) {
		pr_err_ratelimited("nfsrdma: device %s: max_fast_reg_page_list_len is %u, expected at least %u\n",
				   conn->device->name, conn->pool.depth, NFR_MIN_DEPTH);
		return nfr_conn_unfit(conn, nfr_conn_small);
	}
	return nfr_conn_fit_queue(conn, nfr_pool_chain(conn));
}

/* Size the queues of a client, which posts no RDMA Reads or Writes */
static void nfr_conn_size(struct nfr_conn *conn)
{
	conn->receives = 2 * NFR_BATCH;
	conn->sends = conn->wanted.credits * NFR_SENDS_PER_CREDIT + NFR_SENDS_SPARE;
	conn->send_sges = 1;
}

static void nfr_conn_init(struct nfr_conn *conn)
{
	atomic_set(&conn->state, NFR_CONN_OPENING);
	init_completion(&conn->step);
	spin_lock_init(&conn->lock);
	INIT_LIST_HEAD(&conn->recvs);
	INIT_LIST_HEAD(&conn->all_recvs);
	INIT_LIST_HEAD(&conn->pool.free);
	INIT_WORK(&conn->event_work, nfr_conn_event_work);
	nfr_queue_init(conn);
	nfr_lost_init(conn);
	conn->granted = 1;
	conn->reason = "none";
	conn->step_status = 0;
}

/**
 * nfr_conn_open - connect to a peer
 * @conn: zeroed structure with owner, ops, numbers and @wanted set
 * @net: network namespace
 * @peer: address of the peer
 *
 * The caller has to call nfr_conn_drain() and nfr_conn_free() even after an
 * error.
 *
 * Context: Sleeps.
 *
 * Return: 0, or a negative errno that is valid for xprt_wake_pending_tasks().
 */
int nfr_conn_open(struct nfr_conn *conn, struct net *net, struct sockaddr *peer)
{
	int rc;

	nfr_conn_init(conn);
	conn->id = rdma_create_id(net, nfr_cm_event, conn, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(conn->id)) {
		rc = PTR_ERR(conn->id);
		conn->id = NULL;
		return rc;
	}
	rc = nfr_cm_resolve(conn, peer);
	if (rc)
		return rc;
	rc = nfr_conn_fit(conn);
	if (rc)
		return rc;
	nfr_conn_size(conn);
	rc = nfr_queue_create(conn);
	if (rc)
		return rc;
	rc = nfr_pool_fill(conn, NFR_BATCH);
	if (rc)
		return rc;
	return nfr_cm_connect(conn);
}

/**
 * nfr_conn_adopt - take over a connection that a peer requests
 * @conn: zeroed structure with owner, ops, numbers and @wanted set
 * @id: id of the connection request
 *
 * Context: rdma_cm event handler of @id.
 */
void nfr_conn_adopt(struct nfr_conn *conn, struct rdma_cm_id *id)
{
	nfr_conn_init(conn);
	conn->id = id;
	conn->device = id->device;
	id->context = conn;
	id->event_handler = nfr_cm_event;
}

/**
 * nfr_conn_accept - accept the connection request of a peer
 * @conn: adopted connection with its queue sizes set
 * @remote_invalidation: whether the peer accepts Send With Invalidate
 * @depth: number of concurrent RDMA Reads that the peer accepts
 *
 * Messages may arrive before this function returns. The caller has to call
 * nfr_conn_drain() and nfr_conn_free() even after an error.
 *
 * Return: 0 or a negative errno.
 */
int nfr_conn_accept(struct nfr_conn *conn, bool remote_invalidation, u32 depth)
{
	int rc = nfr_queue_create(conn);

	if (rc)
		return rc;
	if (atomic_cmpxchg(&conn->state, NFR_CONN_OPENING, NFR_CONN_UP) != NFR_CONN_OPENING)
		return -ENOTCONN;
	rc = nfr_cm_accept(conn, remote_invalidation, depth);
	if (rc)
		atomic_set(&conn->state, NFR_CONN_BROKEN);
	return rc;
}

/**
 * nfr_conn_drain - end all traffic of a connection
 * @conn: connection, broken or not
 *
 * When this function returns, all work requests are complete, no completion
 * handler runs, and the peer cannot access any MR.
 *
 * Context: Sleeps.
 */
void nfr_conn_drain(struct nfr_conn *conn)
{
	static const char reason[] = "closed by this side";

	if (atomic_xchg(&conn->state, NFR_CONN_BROKEN) == NFR_CONN_UP) {
		WRITE_ONCE(conn->reason, reason);
		trace_nfsrdma_disconnect(conn, reason);
	}
	nfr_sq_close(conn);
	if (conn->id && conn->id->qp) {
		rdma_disconnect(conn->id);
		ib_drain_qp(conn->id->qp);
	}
	nfr_queue_quiesce(conn);
	if (conn->pool.depth)
		cancel_delayed_work_sync(&conn->pool.refill);
}

/**
 * nfr_conn_free - free a drained connection
 * @conn: connection
 */
void nfr_conn_free(struct nfr_conn *conn)
{
	nfr_lost_destroy(conn);
	nfr_pool_destroy(conn);
	nfr_queue_destroy(conn);
	if (conn->id)
		rdma_destroy_id(conn->id);
	/*
	 * no more events after the device objects are gone, but the last one
	 * may have queued a fence
	 */
	cancel_work_sync(&conn->event_work);
	cancel_work_sync(&conn->fence_work);
	kfree(conn);
}
