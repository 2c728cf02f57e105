// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send queue of a connection. It takes ready chains of work requests, and does
 * not know their purpose.
 *
 * Few work requests are signaled; a completion retires all work requests before
 * it. A sender can reserve room for a chain that it will have to post later, so
 * that this chain never finds the queue full.
 */
#include <linux/slab.h>

#include "connection/connection.h"
#include "connection/send.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"

/* Retire the oldest signaled work request, and all before it. */
static inline void nfr_conn_retire_oldest(struct nfr_conn *conn)
{
	struct nfr_send_queue *sq = &conn->sq;

	spin_lock_bh(&conn->lock);
	sq->retired = sq->marks[sq->marks_tail++ & (sq->ring - 1)];
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_conn_retire - account for a signaled work request that the queue pair survived
 * @conn: connection
 * @wc: its completion, a failed one or not
 *
 * All earlier work requests are complete, too.
 */
void nfr_conn_retire(struct nfr_conn *conn, const struct ib_wc *wc)
{
	trace_nfsrdma_completion(conn, wc);
	nfr_conn_retire_oldest(conn);
}

/**
 * nfr_conn_check - account for the completion of a send work request
 * @conn: connection
 * @wc: completion of a signaled work request, or of any that failed
 *
 * A success retires all earlier work requests. A failure breaks the connection.
 *
 * Return: true if the work request succeeded.
 */
bool nfr_conn_check(struct nfr_conn *conn, const struct ib_wc *wc)
{
	trace_nfsrdma_completion(conn, wc);
	if (wc->status != IB_WC_SUCCESS) {
		nfr_conn_failed(conn, wc);
		return false;
	}
	nfr_conn_retire_oldest(conn);
	return true;
}

static void nfr_conn_signal_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_conn *conn = cq->cq_context;

	if (nfr_conn_check(conn, wc))
		conn->ops->writable(conn);
}

/**
 * nfr_conn_has_room - check for send queue room
 * @conn: connection
 * @credit: whether a credit is needed, too
 *
 * Return: true if there is the room that the last rejected message needed, and
 * the credit.
 */
bool nfr_conn_has_room(struct nfr_conn *conn, bool credit)
{
	bool room;

	spin_lock_bh(&conn->lock);
	room = (!credit || conn->inflight < conn->granted) &&
	       nfr_conn_sq_free(&conn->sq) >= conn->sq.needed;
	spin_unlock_bh(&conn->lock);
	return room;
}

/**
 * nfr_conn_post - post a chain of work requests
 * @conn: connection; the caller holds its lock
 * @first: first work request of the chain
 * @last: last work request; signaled if @signal is set or a signal is due
 * @count: number of work requests
 * @signal: whether the caller needs the completion
 *
 * Return: 0, -EAGAIN if the queue is full, or -ENOTCONN if the queue is closed
 * or posting failed; then the caller has to break the connection.
 */
int nfr_conn_post(struct nfr_conn *conn, struct ib_send_wr *first, struct ib_send_wr *last,
		  u32 count, bool signal)
{
	int rc = nfr_conn_sq_admit(&conn->sq, count);

	if (rc)
		return rc;
	nfr_conn_sq_take(&conn->sq, count, last, signal);
	return nfr_conn_submit(conn, first);
}

/**
 * nfr_conn_sq_create - allocate the accounting of a send queue
 * @conn: connection
 * @size: capacity in work requests
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_conn_sq_create(struct nfr_conn *conn, u32 size)
{
	struct nfr_send_queue *sq = &conn->sq;

	sq->size = size;
	sq->ring = roundup_pow_of_two(size);
	sq->marks = kcalloc(sq->ring, sizeof(*sq->marks), NFR_GFP_RETRIED);
	conn->signal_cqe.done = nfr_conn_signal_done;
	return sq->marks ? 0 : -ENOMEM;
}

/**
 * nfr_conn_sq_close - stop posting to the send queue
 * @conn: connection about to be drained, which requires that nothing else posts
 */
void nfr_conn_sq_close(struct nfr_conn *conn)
{
	spin_lock_bh(&conn->lock);
	conn->sq.closed = true;
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_conn_sq_destroy - undo nfr_conn_sq_create()
 * @conn: connection without a queue pair
 */
void nfr_conn_sq_destroy(struct nfr_conn *conn)
{
	kfree(conn->sq.marks);
}
