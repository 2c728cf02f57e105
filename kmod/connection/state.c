// SPDX-License-Identifier: GPL-2.0-only
/*
 * State of a connection, and the reason of its end.
 *
 * nfr_conn_break() marks the connection, notifies its owner and fences the
 * queue pair, in any context. The fence is a worker that moves the queue pair
 * to the error state. From then on the peer cannot access memory and pending
 * work requests are flushed, however late the owner closes.
 */
#include <linux/sched/mm.h>

#include "connection/connection.h"
#include "connection/state.h"
#include "observe/trace.h"
#include "work.h"

/* Default reason of a queue pair failure; a specific reason replaces it */
static const char nfr_conn_flushed[] = "the queue pair failed";

/* Reason of a connection that the peer ended */
const char nfr_conn_disconnected[] = "disconnected by the peer";

/**
 * nfr_conn_break - mark a connection as broken
 * @conn: connection
 * @reason: disconnect reason, a string constant
 *
 * The first reason is kept, and the owner is notified once. The owner drains
 * the queue pair later, when it closes the connection.
 *
 * Context: Any, except hard interrupts; softirqs only if the owner permits them.
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
	queue_work(nfr_work_poll, &conn->fence_work);
	conn->ops->broken(conn);
}

/**
 * nfr_conn_is_left - check whether the peer ended a connection, for whatever reason
 * @conn: broken connection
 *
 * Return: true if the peer disconnected, or the queue pair failed and the device does not say why.
 */
bool nfr_conn_is_left(const struct nfr_conn *conn)
{
	const char *reason = READ_ONCE(conn->reason);

	return reason == nfr_conn_disconnected || reason == nfr_conn_flushed;
}

/**
 * nfr_conn_failed - break the connection after a work request failed
 * @conn: connection
 * @wc: failed work completion
 */
void nfr_conn_failed(struct nfr_conn *conn, const struct ib_wc *wc)
{
	bool flushed = wc->status == IB_WC_WR_FLUSH_ERR;

	nfr_conn_break(conn, flushed ? nfr_conn_flushed : ib_wc_status_msg(wc->status));
	/*
	 * A Send that is longer than its receive, InfiniBand specification, section 9.7.5.2.4. The
	 * peer's disconnect may be known before.
	 */
	if ((wc->status == IB_WC_REM_INV_REQ_ERR || wc->status == IB_WC_REM_OP_ERR) &&
	    conn->ops->refused)
		conn->ops->refused(conn);
}

/**
 * nfr_conn_break_later - break a connection from interrupt context
 * @conn: connection
 * @reason: disconnect reason, a string constant
 */
void nfr_conn_break_later(struct nfr_conn *conn, const char *reason)
{
	WRITE_ONCE(conn->event, reason);
	queue_work(nfr_work_slow, &conn->event_work);
}

static void nfr_conn_event_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, event_work);

	nfr_conn_break(conn, READ_ONCE(conn->event));
}

/* Move a queue pair to the error state. Caller holds the mutex. */
static enum nfr_proof nfr_conn_fence_queue(struct nfr_conn *conn)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	int rc = ib_modify_qp(conn->id->qp, &attr, IB_QP_STATE);

	if (!rc)
		return NFR_PROOF_FENCED;
	pr_err_ratelimited("nfsrdma: device %s: a queue pair refused the error state: %d\n",
			   conn->device->name, rc);
	return NFR_PROOF_NONE;
}

/**
 * nfr_conn_fence - move the queue pair to the error state
 * @conn: connection that has, or had, a queue pair
 *
 * Context: Sleeps.
 *
 * Return: NFR_PROOF_FENCED or more if the peer cannot access memory by this connection any more.
 * NFR_PROOF_NONE if the device refused: then the peer reaches each region until the region or the
 * queue pair is destroyed.
 */
enum nfr_proof nfr_conn_fence(struct nfr_conn *conn)
{
	enum nfr_proof proof;

	mutex_lock(&conn->ending);
	proof = conn->proof;
	if (proof < NFR_PROOF_FENCED) {
		proof = nfr_conn_fence_queue(conn);
		conn->proof = proof;
	}
	mutex_unlock(&conn->ending);
	return proof;
}

/* The connection was up, and therefore has a queue pair. */
static void nfr_conn_fence_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, fence_work);
	/* the end of the connection waits for this work, and writeback may wait for that */
	unsigned int noio = memalloc_noio_save();

	if (!READ_ONCE(conn->queues_end))
		nfr_conn_fence(conn);
	memalloc_noio_restore(noio);
}

/**
 * nfr_conn_state_init - initialize the state of a connection
 * @conn: new connection
 */
void nfr_conn_state_init(struct nfr_conn *conn)
{
	atomic_set(&conn->state, NFR_CONN_OPENING);
	init_completion(&conn->step);
	INIT_WORK(&conn->event_work, nfr_conn_event_work);
	INIT_WORK(&conn->fence_work, nfr_conn_fence_work);
	mutex_init(&conn->ending);
	conn->proof = NFR_PROOF_NONE;
	conn->reason = "none";
	conn->step_status = 0;
}

/**
 * nfr_conn_state_end - wait for the last work of a connection
 * @conn: connection without an rdma_cm id
 */
void nfr_conn_state_end(struct nfr_conn *conn)
{
	/* no more events after the device objects are gone; the last one may have queued a fence */
	cancel_work_sync(&conn->event_work);
	cancel_work_sync(&conn->fence_work);
}
